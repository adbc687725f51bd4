//! What can go wrong, by intent. Sentences for people are written in Elixir.

use std::io;

use nix::errno::Errno;

use crate::{Pid, Signal};

/// The errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number cannot be the pid of a process.
    #[error("{0} is not a pid")]
    NotAPid(i64),

    /// Signalling this process or group would hit the caller, its session, or the system.
    #[error("{0} is protected")]
    Protected(i64),

    /// There is no such process, or it has ended.
    #[error("no process {0}")]
    NoSuchProcess(i64),

    /// The process may or may not be the one that is meant, so it is left alone.
    #[error("cannot tell whether {0} is the process that is meant")]
    Ambiguous(Pid),

    /// The kernel refused the signal.
    #[error("cannot send {signal} to {pid}")]
    Signal {
        /// Whom the signal was for.
        pid: Pid,
        /// What was to be sent.
        signal: Signal,
        /// Why the kernel refused.
        #[source]
        errno: Errno,
    },

    /// The process table does not contain the process that reads it. Who is missing there is not gone.
    #[error("the process table is not this process's")]
    NotItsTable,

    /// No signal has this name or number here.
    #[error("no such signal")]
    UnknownSignal,

    /// These bytes are not an identity that this crate encoded.
    #[error("not an identity")]
    NotAnIdentity,

    /// The text is not a run id.
    #[error("not a run id")]
    NotARunId,

    /// Another system call failed.
    #[error("{call} failed")]
    Os {
        /// The system call or file.
        call: &'static str,
        /// Why it failed.
        #[source]
        errno: Errno,
    },
}

impl Error {
    /// For `map_err`: names the call that failed.
    /// For what a system call says.
    pub fn os(call: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Os { call, errno }
    }

    /// For what the standard library says of a file.
    pub fn io(call: &'static str, error: &io::Error) -> Self {
        Self::Os { call, errno: errno(error) }
    }

    /// Returns whether this process, or the system, has no descriptor left.
    pub(crate) fn is_exhaustion(&self) -> bool {
        matches!(self, Self::Os { errno: Errno::EMFILE | Errno::ENFILE, .. })
    }
}

/// Returns the errno of an error of the standard library; `EIO` for one that the system has not made.
pub fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
