//! Every difference between operating systems, behind one set of functions.
//!
//! | item | contract |
//! |---|---|
//! | `Reference` | a hold on one process: open by pid, ask whether it has exited, signal it |
//! | `wait_for_exits` | blocks on kernel notification until all have exited or the deadline has come |
//! | `scan`, `inspect` | the whole process table, or one line of it |
//! | `boot_id`, `pid_namespace` | what makes pids of another boot or container incomparable |
//! | `load_host_ids` | reads these two, which may fail |
//! | `start_is_past` | whether no other process can still get this start time |
//! | `boot_time`, `start_between` | the clock of start times (Linux) |
//! | `lock_limit` | the resource limit that carries a lineage |
//! | `is_realtime_signal` | signals that have numbers and no names |

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;

#[cfg(any(target_os = "macos", target_os = "freebsd"))]
mod kqueue;
#[cfg(any(target_os = "macos", target_os = "freebsd"))]
pub(crate) use kqueue::*;

#[cfg(target_os = "macos")]
mod macos;
#[cfg(any(target_os = "macos", test))]
mod procargs;
#[cfg(target_os = "macos")]
pub(crate) use macos::*;

#[cfg(target_os = "freebsd")]
mod freebsd;
#[cfg(target_os = "freebsd")]
pub(crate) use freebsd::*;
