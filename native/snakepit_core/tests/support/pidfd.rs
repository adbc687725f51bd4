//! The tests' own hold on a process, to signal it and to clean up behind a failure.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::judge;

/// One process that is not a child of this one. Killed when the test is over.
#[derive(Debug)]
pub struct Stray {
    pub pid: i32,
    start: u64,
}

impl Stray {
    /// Notes a process that lives now.
    #[track_caller]
    pub fn catch(pid: i32) -> Self {
        Self { pid, start: judge::look(pid).expect("it lives").start }
    }

    fn look(&self) -> Option<judge::Seen> {
        judge::look(self.pid).filter(|seen| seen.start == self.start)
    }

    /// By the judge's word; a later process with this pid does not count.
    pub fn lives(&self) -> bool {
        self.look().is_some_and(|seen| seen.runs())
    }

    pub fn is_untouched(&self) -> bool {
        self.look().is_some_and(|seen| seen.is_untouched())
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        // Order: once it is held, its start time tells whether it is the one.
        let Ok(fd) = open(self.pid) else { return };
        if self.lives() {
            let _ = send(&fd, libc::SIGKILL);
        }
    }
}

/// The pids that a fixture printed.
pub fn catch_all(line: &str) -> Vec<Stray> {
    line.split_whitespace().map(|pid| Stray::catch(pid.parse().unwrap())).collect()
}

pub fn open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(fd).unwrap() {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel just made this descriptor and nobody else knows it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

pub fn send(fd: &OwnedFd, signal: i32) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    let (call, fd) = (libc::SYS_pidfd_send_signal, fd.as_raw_fd());
    // SAFETY: a null siginfo is allowed.
    let result = unsafe { libc::syscall(call, fd, signal, no_info, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
