//! `clone(2)` and `clone3(2)`: copies of the test process that only wait, the latter with a pid of the test's choice.

use std::io;
use std::mem::size_of;

use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::{judge, pidfd};

/// A child that only waits for signals. Killed and reaped when the test is over.
#[derive(Debug)]
pub struct Forked {
    pub pid: i32,
}

impl Forked {
    pub fn new() -> Self {
        Self::any().expect("clone")
    }

    /// Not by `clone3`, which not all kernels and sandboxes have; nor by `fork` of the C library, which takes
    /// locks that a copy of a process with threads may find taken for ever.
    pub fn any() -> io::Result<Self> {
        // SAFETY: a plain fork. The child has its own copy of all memory and does not leave `wait`.
        let result = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        Self::wait(result, || ())
    }

    /// As root with the pid that is asked for. The child runs `first` and waits from then on. It is
    /// a copy of a process with threads, so `first` may make system calls and nothing else.
    pub fn with_pid(pid: i32, first: impl FnOnce()) -> io::Result<Self> {
        let arguments = libc::clone_args {
            exit_signal: libc::SIGCHLD.try_into().unwrap(),
            set_tid: (&raw const pid) as u64,
            set_tid_size: 1,
            // SAFETY: plain integers, for which zero means "not used".
            ..unsafe { std::mem::zeroed() }
        };
        // SAFETY: `arguments` and `pid` outlive the call. The child has its own copy of all memory and does not
        // leave `wait`.
        let result = unsafe {
            libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>())
        };
        Self::wait(result, first)
    }

    /// Behind the call that made the child, in both: does not return in the child.
    fn wait(result: i64, first: impl FnOnce()) -> io::Result<Self> {
        match i32::try_from(result).unwrap() {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                first();
                loop {
                    // SAFETY: no arguments; returns only after a handler, and there is none.
                    unsafe { libc::pause() };
                }
            }
            pid => Ok(Self { pid }),
        }
    }

    /// Ends and reaps this one and gives its pid to another.
    pub fn succeeded_by(self, first: impl FnOnce()) -> Self {
        let pid = self.pid;
        drop(self);
        Self::with_pid(pid, first).expect("clone3 with the pid that has become free")
    }

    pub fn is_untouched(&self) -> bool {
        judge::look(self.pid).is_some_and(|seen| seen.is_untouched())
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if let Ok(fd) = pidfd::open(self.pid) {
            let _ = pidfd::send(&fd, libc::SIGKILL);
        }
        let _ = waitpid(Pid::from_raw(self.pid), None);
    }
}

/// Whether pids can be chosen here. If not, says what is skipped.
pub fn can_choose_pids() -> bool {
    let spare = Forked::new().pid;
    let chosen = Forked::with_pid(spare, || ());
    if let Err(error) = &chosen {
        eprintln!("skipped: clone3 with set_tid: {error}");
    }
    chosen.is_ok()
}
