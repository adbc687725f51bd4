//! `pidfd_open(2)`, `pidfd_send_signal(2)`, and the file handle that names a pidfd for good.
//!
//! A pidfd refers to one process for as long as it is open, whatever happens to the pid. This file
//! holds the only system call with which Snakepit signals a process on Linux.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::identity::KernelHandle;
use crate::{Pid, Signal};

/// Linux 6.9: the signal goes to the group that the pidfd's process leads.
const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;

/// Linux 6.9: the pidfd refers to one thread.
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;

/// Larger than any handle the kernel makes (`MAX_HANDLE_SZ`).
const HANDLE_CAPACITY: usize = 128;

/// An open pidfd.
#[derive(Debug)]
pub(crate) struct Reference {
    pid: Pid,
    fd: OwnedFd,
}

impl Reference {
    /// `None` if there is no such process. A zombie still opens.
    pub(crate) fn open(pid: Pid) -> Result<Option<Self>, Errno> {
        // SAFETY: takes two integers and returns a new descriptor or -1.
        let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
        match Errno::result(raw) {
            Ok(raw) => {
                let raw = i32::try_from(raw).map_err(|_| Errno::EBADF)?;
                // SAFETY: the kernel just made this descriptor and nobody else knows it.
                Ok(Some(Self { pid, fd: unsafe { OwnedFd::from_raw_fd(raw) } }))
            }
            // The number names a thread (EINVAL, since Linux 6.16 ENOENT), or a group whose leader
            // has been reaped.
            Err(Errno::ESRCH | Errno::EINVAL | Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// `name_to_handle_at(2)`: eight bytes that no other process of this boot will ever have.
    /// `None` before Linux 6.14, where pidfds have no file handles.
    pub(crate) fn handle(&self) -> Option<KernelHandle> {
        #[repr(C)]
        struct FileHandle {
            bytes: libc::c_uint,
            kind: libc::c_int,
            data: [u8; HANDLE_CAPACITY],
        }
        let mut handle = FileHandle { bytes: 128, kind: 0, data: [0; HANDLE_CAPACITY] };
        let mut mount_id: libc::c_int = 0;
        // SAFETY: `handle` has the layout of `struct file_handle` with room for `bytes` bytes, and
        // both pointers are valid for the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                self.fd.as_raw_fd(),
                c"".as_ptr(),
                &raw mut handle,
                &raw mut mount_id,
                libc::AT_EMPTY_PATH,
            )
        };
        let bytes = handle.data.get(..usize::try_from(handle.bytes).ok()?)?;
        (result == 0).then(|| KernelHandle { kind: handle.kind, bytes: bytes.to_vec() })
    }

    /// True for a zombie too: it will not run again. A leader that ended while its other threads
    /// go on shows as a zombie in `/proc`, and has not exited.
    pub(crate) fn has_exited(&self) -> Result<bool, Errno> {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut fds, PollTimeout::ZERO) {
                Err(Errno::EINTR) => {}
                other => return Ok(other? > 0),
            }
        }
    }

    /// Whether the pid still belongs to this process, as a zombie at least. What was read from
    /// `/proc/<pid>` before a `true` was read from this process.
    pub(crate) fn holds_its_pid(&self) -> bool {
        self.pidfd_send_signal(0, 0) != Err(Errno::ESRCH)
    }

    /// `pidfd_send_signal(2)` with signal 0: whether the kernel and filters allow signals through pidfds.
    pub(crate) fn probe(&self) -> Result<(), Errno> {
        self.pidfd_send_signal(0, 0)
    }

    pub(crate) fn send(&self, signal: Signal) -> Result<(), Errno> {
        self.pidfd_send_signal(signal.as_raw(), 0)
    }

    /// To the group that this process leads, even if the leader itself has been reaped since.
    /// `EINVAL` before Linux 6.9.
    pub(crate) fn send_group(&self, signal: Signal) -> Result<(), Errno> {
        self.pidfd_send_signal(signal.as_raw(), PIDFD_SIGNAL_PROCESS_GROUP)
    }

    fn pidfd_send_signal(&self, signal: libc::c_int, flags: libc::c_uint) -> Result<(), Errno> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: a null siginfo is allowed and means what kill(2) would have filled in.
        let result = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.fd.as_raw_fd(), signal, no_info, flags)
        };
        Errno::result(result).map(drop)
    }
}

/// A pidfd that becomes readable when this thread has ended. `EINVAL` before Linux 6.9.
pub(crate) fn open_thread(thread: Pid) -> Result<OwnedFd, Errno> {
    // SAFETY: takes two integers and returns a new descriptor or -1.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, thread.as_raw(), PIDFD_THREAD) };
    let raw = i32::try_from(Errno::result(raw)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel just made this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Blocks until every process has exited or `deadline` has come, whichever is first.
///
/// `epoll` with one-shot interest rather than `poll`: a thousand deaths one after the other cost a
/// thousand events, not a thousand passes over a thousand descriptors.
pub(crate) fn wait_for_exits(references: &[&Reference], deadline: Instant) -> Result<(), Errno> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for reference in references {
        let interest = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        epoll.add(&reference.fd, EpollEvent::new(interest, 0))?;
    }
    let mut events = [EpollEvent::empty(); 64];
    let mut left = references.len();
    while left > 0 {
        let remaining = deadline.saturating_duration_since(Instant::now());
        match epoll.wait(&mut events, timeout(remaining)) {
            Ok(count) => left -= count,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        if remaining.is_zero() {
            break;
        }
    }
    Ok(())
}

/// Rounded up: rounding down would spin through the last millisecond.
fn timeout(remaining: Duration) -> EpollTimeout {
    let millis = i32::try_from(remaining.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    EpollTimeout::try_from(millis).unwrap_or(EpollTimeout::ZERO)
}
