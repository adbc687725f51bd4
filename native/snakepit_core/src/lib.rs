//! What Snakepit knows about OS processes, written once.
//!
//! Everything here serves two promises: nothing that Snakepit started is left behind, and nothing
//! else is ever signalled. The NIF and the guardian are thin users of this crate; neither has a
//! second way to find, identify or signal a process.
//!
//! | module | concern |
//! |---|---|
//! | [`identity`] | what tells a process from a later one with the same pid |
//! | [`process`] | a process that was opened and verified; the only way to signal one |
//! | [`protect`] | who must never be signalled, whatever the caller asks |
//! | [`table`], [`proc_text`] | one pass over all processes of the system |
//! | [`group`], [`tree`] | process groups, and everything that descends from a process |
//! | `forked`, `descendants` | what a parent knows of its own children, and what is below them (Linux) |
//! | [`stop`] | end many processes together, politely first |
//! | [`marker`], [`run_id`] | the environment and arguments that say whose a process is |
//! | [`run`] | the processes of a run, found by what they carry |
//! | [`lineage`] | a mark that survives a scrubbed environment |
//! | [`threads`] | the end of a BEAM, before its process has ended |
//! | [`wire`] | what the BEAM and the guardian say to each other |
//! | [`record`] | what the ledger stores of a worker |
//! | [`directory`], [`private_file`], [`filesystem`] | whose the data directory is, and where it lies |
//! | [`run_directory`], [`lock`], [`journal`], [`queue`], [`adopted`], [`obituary`] | the files of a run |
//! | [`ledger`], [`external_term`] | what a run has recorded, read without a BEAM |
//! | [`place`] | where a run was |
//! | [`guardian`] | which processes are guardians, and of which runs |
//! | [`dead_runs`] | what dead runs have left behind, found and ended |
//! | [`terminal`] | what a person's terminal was set to |
//! | `usage` | what the processes of one tree use (Linux) |
//! | [`self_test`] | what this place lets a process do |
//! | `doctor` | the same for people, with costs and remedies (Linux) |

pub mod account;
pub mod adopted;
pub mod dead_runs;
#[cfg(target_os = "linux")]
pub mod descendants;
pub mod directory;
#[cfg(target_os = "linux")]
pub mod doctor;
mod entropy;
pub mod error;
pub mod external_term;
pub mod filesystem;
#[cfg(target_os = "linux")]
pub mod forked;
pub mod group;
pub mod guardian;
pub mod identity;
pub mod journal;
pub mod ledger;
pub mod lineage;
pub mod lock;
pub mod marker;
pub mod obituary;
mod os;
pub mod pid;
pub mod place;
pub mod private_file;
pub mod proc_text;
pub mod process;
pub mod protect;
pub mod queue;
pub mod record;
pub mod run;
pub mod run_directory;
pub mod run_id;
pub mod self_test;
mod settle;
pub mod signal;
pub mod stop;
pub mod table;
pub mod terminal;
#[cfg(target_os = "linux")]
pub mod threads;
pub mod tree;
#[cfg(target_os = "linux")]
pub mod usage;
pub mod wire;

pub use error::Error;
pub use identity::Identity;
pub use pid::Pid;
pub use process::Process;
pub use signal::Signal;
