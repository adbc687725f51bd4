//! A number that can be the pid of one process.

use std::fmt;

/// A positive pid. Zero and negative numbers mean groups or "everyone" to the kernel, so they
/// are never one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(libc::pid_t);

impl Pid {
    /// `None` for anything that the OS could not have given to a single process.
    pub fn new(number: i64) -> Option<Self> {
        libc::pid_t::try_from(number).ok().filter(|pid| *pid > 0).map(Self)
    }

    /// This very process.
    pub fn current() -> Self {
        Self(nix::unistd::getpid().as_raw())
    }

    /// The number, for system calls.
    pub fn as_raw(self) -> libc::pid_t {
        self.0
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_another_meaning_are_not_pids() {
        for number in [0, -1, -4711, i64::from(i32::MAX) + 1, i64::MAX, i64::MIN] {
            assert_eq!(Pid::new(number), None, "{number}");
        }
        assert_eq!(Pid::new(1).map(Pid::as_raw), Some(1));
    }
}
