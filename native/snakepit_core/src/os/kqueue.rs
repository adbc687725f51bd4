//! `kqueue(2)` and `kill(2)`, for systems whose kernel has no handle of a process: macOS, FreeBSD.
//!
//! A process is its pid and its start time in microseconds. Both are compared right before each
//! signal; between that and the signal the pid would have to be given up and given away again for
//! a wrong process to be hit. This file holds the only call with which Snakepit signals a process
//! on these systems. Type-checked only: nothing here has run yet.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use libc::timespec;
use nix::errno::Errno;
use nix::sys::event::{EvFlags, EventFilter, FilterFlag, KEvent, Kqueue};
use nix::sys::time::TimeSpec;

use super::inspect;
use crate::identity::KernelHandle;
use crate::table::{Columns, Entry};
use crate::{Pid, Signal};

/// Longer timeouts are cut to this and waited for again: macOS refuses those beyond three years.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// How often to check whether a process that is ending has ended.
const EXIT_PAUSE: Duration = Duration::from_millis(1);

/// A pid, and when the process that had it at the time of opening was started.
#[derive(Debug)]
pub(crate) struct Reference {
    pid: Pid,
    start: u64,
}

impl Reference {
    /// `None` if there is no such process. A zombie still opens.
    pub(crate) fn open(pid: Pid) -> Result<Option<Self>, Errno> {
        let entry = inspect(pid, Columns::default())?;
        Ok(entry.map(|entry| Self { pid, start: entry.start }))
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// These kernels name no process for good.
    #[expect(clippy::unused_self, reason = "the same call on every system")]
    pub(crate) fn handle(&self) -> Option<KernelHandle> {
        None
    }

    /// True for a zombie too: it will not run again.
    pub(crate) fn has_exited(&self) -> Result<bool, Errno> {
        Ok(self.inspect()?.is_none_or(|entry| !entry.is_alive()))
    }

    /// Whether the pid still belongs to this process, as a zombie at least. What was read by pid
    /// before a `true` was read from this process.
    pub(crate) fn holds_its_pid(&self) -> bool {
        self.inspect().is_ok_and(|entry| entry.is_some())
    }

    /// `ESRCH` if the pid is someone else's by now, `EPERM` if that cannot be told.
    #[expect(clippy::disallowed_methods, reason = "the start time was compared just before")]
    pub(crate) fn send(&self, signal: Signal) -> Result<(), Errno> {
        match self.inspect()? {
            None => return Err(Errno::ESRCH),
            Some(entry) if entry.start == 0 => return Err(Errno::EPERM),
            Some(_) => {}
        }
        // SAFETY: takes two integers. A `Pid` is positive, so this is one process and no group.
        Errno::result(unsafe { libc::kill(self.pid.as_raw(), signal.as_raw()) }).map(drop)
    }

    /// Never: `killpg(2)` takes a bare number, and nothing tells whose group it is at that moment.
    #[expect(clippy::unused_self, reason = "the same call on every system")]
    pub(crate) fn send_group(&self, _signal: Signal) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Its line of the process table, unless the pid is no longer its own.
    fn inspect(&self) -> Result<Option<Entry>, Errno> {
        let entry = inspect(self.pid, Columns::default())?;
        Ok(entry.filter(|entry| entry.start == self.start))
    }

    fn ident(&self) -> usize {
        // A `Pid` is positive, so nothing is lost.
        self.pid.as_raw().unsigned_abs() as usize
    }
}

/// Blocks until every process has exited or `deadline` has come, whichever is first.
pub(crate) fn wait_for_exits(references: &[&Reference], deadline: Instant) -> Result<(), Errno> {
    let queue = Kqueue::new()?;
    let mut left = HashSet::with_capacity(references.len());
    for reference in references {
        // Order: a process that is still there after the queue began to watch its pid is the one
        // that is watched. One that is not has exited, and the present owner of its pid does not matter.
        if watch(&queue, reference)? && !reference.has_exited()? {
            left.insert(reference.ident());
        }
    }
    let mut events = [interest(0, EvFlags::empty()); 64];
    while !left.is_empty() {
        let remaining = deadline.saturating_duration_since(Instant::now());
        match queue.kevent(&[], &mut events, Some(timeout(remaining))) {
            Ok(count) => events.iter().take(count).for_each(|event| {
                left.remove(&event.ident());
            }),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        if remaining.is_zero() {
            break;
        }
    }
    // The event comes while the kernel still takes the process apart, and on FreeBSD at once for
    // one that is watched in that state. Callers ask `has_exited` next, which is true from the
    // zombie on.
    for reference in references {
        while Instant::now() < deadline && !reference.has_exited()? {
            std::thread::sleep(EXIT_PAUSE);
        }
    }
    Ok(())
}

/// No limit here can carry a mark: see `lineage`.
#[expect(clippy::unnecessary_wraps, reason = "the same call on every system")]
pub(crate) fn lock_limit(_pid: Pid) -> Result<Option<u64>, Errno> {
    Ok(None)
}

/// False if there is no such process to watch, which for macOS includes zombies.
fn watch(queue: &Kqueue, reference: &Reference) -> Result<bool, Errno> {
    let change = interest(reference.ident(), EvFlags::EV_ADD | EvFlags::EV_ONESHOT);
    // Without room for events the error of the change is that of the call.
    match queue.kevent(&[change], &mut [], None) {
        Ok(_) => Ok(true),
        Err(Errno::ESRCH) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn interest(ident: usize, flags: EvFlags) -> KEvent {
    KEvent::new(ident, EventFilter::EVFILT_PROC, flags, FilterFlag::NOTE_EXIT, 0, 0)
}

fn timeout(remaining: Duration) -> timespec {
    *TimeSpec::from_duration(remaining.min(LONGEST_WAIT)).as_ref()
}
