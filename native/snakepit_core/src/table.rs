//! One pass over all processes of the system.

use crate::marker::Markers;
use crate::{Error, Pid, os};

/// What to read besides pid, parent, group, session, state and start time. Each costs a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns {
    /// The real user.
    pub uid: bool,
    /// The command line.
    pub arguments: bool,
    /// Snakepit's markers from the environment.
    pub markers: bool,
}

/// One process as it was at the time of the pass.
///
/// Parent, group and session are plain numbers: 0 stands for one outside this pid namespace.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its pid.
    pub pid: Pid,
    /// Its parent's pid.
    pub parent: i32,
    /// Its process group.
    pub group: i32,
    /// Its session.
    pub session: i32,
    /// Whether it can run.
    pub state: ProcessState,
    /// When it started; see [`crate::Identity::start`].
    pub start: u64,
    /// See [`crate::Identity::settled`].
    pub settled: bool,
    /// Its real user, if asked for and readable.
    pub uid: Option<u32>,
    /// Its command line, if asked for; empty for kernel threads and zombies.
    pub arguments: Arguments,
    /// Its markers, if asked for.
    pub environment: Environment,
}

impl Entry {
    /// Whether it can still run.
    pub fn is_alive(&self) -> bool {
        self.state != ProcessState::Zombie
    }
}

/// Whether a process can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// Running or waiting for something.
    Alive,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// In a system call that no signal interrupts.
    Uninterruptible,
    /// Ended, not reaped yet.
    Zombie,
}

/// A command line. Arguments are bytes, not text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments(Vec<u8>);

impl Arguments {
    /// From what `/proc/<pid>/cmdline` holds: each argument ends with a NUL. A process that
    /// rewrote its title may have left out the last one.
    pub fn from_nul_separated(bytes: &[u8]) -> Self {
        Self(bytes.strip_suffix(b"\0").unwrap_or(bytes).to_vec())
    }

    /// Each argument, the program's name first; nothing for a process without a command line.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let empty = self.0.is_empty();
        self.0.split(|byte| *byte == 0).filter(move |_| !empty)
    }
}

/// What is known of a process's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Environment {
    /// It was not asked for.
    NotRead,
    /// No rights: another user's process, or one that changed its user.
    Unreadable,
    /// Its markers, each `None` where it has none.
    Read(Markers),
}

/// Returns every process that this one can see. Those that end during the pass may be missing.
///
/// # Errors
///
/// [`Error::Os`] when the table itself cannot be read, for example without `/proc`;
/// [`Error::NotItsTable`] when it does not contain this process: an empty `/proc`, or that of another
/// pid namespace, is not a system on which nothing runs.
pub fn read(columns: Columns) -> Result<Vec<Entry>, Error> {
    let entries = os::scan(columns).map_err(Error::os("process table"))?;
    with_reader(entries, Pid::current())
}

fn with_reader(entries: Vec<Entry>, reader: Pid) -> Result<Vec<Entry>, Error> {
    let contained = entries.iter().any(|entry| entry.pid == reader);
    if contained { Ok(entries) } else { Err(Error::NotItsTable) }
}

/// Returns one process; `None` if it is gone.
///
/// # Errors
///
/// As for [`read`].
pub fn read_one(pid: Pid, columns: Columns) -> Result<Option<Entry>, Error> {
    os::inspect(pid, columns).map_err(Error::os("process table"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
        Arguments::from_nul_separated(bytes).iter().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn arguments_are_split_at_nul_and_nowhere_else() {
        assert_eq!(split(b"sleep\0 60 \0"), [b"sleep".to_vec(), b" 60 ".to_vec()]);
        assert_eq!(split(b"nginx: master"), [b"nginx: master".to_vec()]);
        assert_eq!(split(b"a\0\0\xff\xfe\0"), [b"a".to_vec(), vec![], vec![0xff, 0xfe]]);
        assert!(split(b"").is_empty());
    }

    #[test]
    fn a_table_without_its_reader_is_none() {
        let table = read(Columns::default()).unwrap();
        let others: Vec<_> =
            table.iter().filter(|entry| entry.pid != Pid::current()).cloned().collect();
        assert!(with_reader(table, Pid::current()).is_ok());
        assert!(!others.is_empty());
        for table in [others, Vec::new()] {
            let read = with_reader(table, Pid::current());
            assert!(matches!(read, Err(Error::NotItsTable)), "{read:?}");
        }
    }

    #[test]
    fn this_process_is_in_the_table_with_its_arguments() {
        let columns = Columns { uid: true, arguments: true, markers: true };
        let table = read(columns).unwrap();
        let own = table.iter().find(|entry| entry.pid == Pid::current()).unwrap();
        assert_eq!(own.parent, nix::unistd::getppid().as_raw());
        assert_eq!(own.group, nix::unistd::getpgrp().as_raw());
        assert_eq!(own.uid, Some(nix::unistd::getuid().as_raw()));
        assert!(own.is_alive());
        assert!(own.arguments.iter().next().is_some());
        assert!(matches!(own.environment, Environment::Read(_)));
    }
}
