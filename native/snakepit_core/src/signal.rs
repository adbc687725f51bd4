//! Signals by name and by number.

use std::fmt;

use crate::Error;

/// A signal that exists on this system. There is no signal 0: asking whether a process lives is
/// not sending it something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal(libc::c_int);

/// POSIX names, and the few others that every supported system has.
const NAMES: &[(&str, libc::c_int)] = &[
    ("sigabrt", libc::SIGABRT),
    ("sigalrm", libc::SIGALRM),
    ("sigbus", libc::SIGBUS),
    ("sigchld", libc::SIGCHLD),
    ("sigcont", libc::SIGCONT),
    ("sigfpe", libc::SIGFPE),
    ("sighup", libc::SIGHUP),
    ("sigill", libc::SIGILL),
    ("sigint", libc::SIGINT),
    ("sigio", libc::SIGIO),
    ("sigkill", libc::SIGKILL),
    ("sigpipe", libc::SIGPIPE),
    ("sigprof", libc::SIGPROF),
    ("sigquit", libc::SIGQUIT),
    ("sigsegv", libc::SIGSEGV),
    ("sigstop", libc::SIGSTOP),
    ("sigsys", libc::SIGSYS),
    ("sigterm", libc::SIGTERM),
    ("sigtrap", libc::SIGTRAP),
    ("sigtstp", libc::SIGTSTP),
    ("sigttin", libc::SIGTTIN),
    ("sigttou", libc::SIGTTOU),
    ("sigurg", libc::SIGURG),
    ("sigusr1", libc::SIGUSR1),
    ("sigusr2", libc::SIGUSR2),
    ("sigvtalrm", libc::SIGVTALRM),
    ("sigwinch", libc::SIGWINCH),
    ("sigxcpu", libc::SIGXCPU),
    ("sigxfsz", libc::SIGXFSZ),
];

impl Signal {
    /// `SIGTERM`.
    pub const TERM: Self = Self(libc::SIGTERM);
    /// `SIGKILL`.
    pub const KILL: Self = Self(libc::SIGKILL);
    /// `SIGCONT`.
    pub const CONT: Self = Self(libc::SIGCONT);
    /// `SIGSTOP`.
    pub const STOP: Self = Self(libc::SIGSTOP);

    /// Returns a signal by its lower-case name, such as `sigterm`.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSignal`].
    pub fn from_name(name: &str) -> Result<Self, Error> {
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, number)| Self(*number))
            .ok_or(Error::UnknownSignal)
    }

    /// By number: the named ones, and the real-time signals where there are some.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSignal`], also for 0.
    pub fn from_number(number: i64) -> Result<Self, Error> {
        let number = libc::c_int::try_from(number).map_err(|_| Error::UnknownSignal)?;
        let named = NAMES.iter().any(|(_, known)| *known == number);
        if named || crate::os::is_realtime_signal(number) {
            Ok(Self(number))
        } else {
            Err(Error::UnknownSignal)
        }
    }

    /// The name, if it has one.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(_, number)| *number == self.0).map(|(name, _)| *name)
    }

    /// The number, for system calls.
    pub fn as_raw(self) -> libc::c_int {
        self.0
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "signal {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_its_number_are_the_same_signal() {
        for (name, number) in NAMES {
            let signal = Signal::from_name(name).unwrap();
            assert_eq!(signal, Signal::from_number(i64::from(*number)).unwrap());
            assert_eq!(signal.name(), Some(*name));
        }
    }

    #[test]
    fn what_does_not_exist_is_refused() {
        for name in ["", "SIGTERM", "term", "sigfoo", "sigterm "] {
            assert!(Signal::from_name(name).is_err(), "{name:?}");
        }
        for number in [0, -9, 127, 1_000_000, i64::MAX] {
            assert!(Signal::from_number(number).is_err(), "{number}");
        }
    }
}
