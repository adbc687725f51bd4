//! What the guardian decides, apart from what it does.
//!
//! [`Machine`] takes events and a clock and returns actions. It makes no system call and owns no
//! descriptor, so it can be driven by a model of a kernel, by the million steps (`tests/simulation.rs`).
//! The shell around it, which has `epoll`, `wait4` and the descriptors, is the binary.
//!
//! | module | decides |
//! |---|---|
//! | [`event`] | what can happen, and what can be done |
//! | [`machine`] | which component an event is for, and in which order they act |
//! | [`children`] | how far each forked child is, from the gate to its program |
//! | [`trees`] | which tree an adopted process belongs to, and which tree has something to do |
//! | [`tree`], [`phase`] | how one tree is ended, step by step |
//! | [`shutdown`] | when everything has ended, and what the obituary says |
//! | [`ahead`] | how many children are forked before they are asked for |
//! | [`leases`] | what ends because the BEAM has not said that it may go on |
//! | [`connections`] | which connection belongs to which token |
//! | [`budget`] | how much of the time output may take |

pub mod ahead;
pub mod budget;
pub mod children;
pub mod connections;
pub mod event;
pub mod leases;
pub mod machine;
pub mod phase;
pub mod shutdown;
pub mod tree;
pub mod trees;

pub use event::{Action, Event};
pub use machine::Machine;
