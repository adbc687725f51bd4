//! `clone3(2)`: copies of the test process that only wait, with a pid of the test's choice.

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
        Self::with_pid(None, || ()).expect("clone3")
    }

    /// As root with the pid that is asked for. The child runs `first` and waits from then on. It is
    /// a copy of a process with threads, so `first` may make system calls and nothing else.
    pub fn with_pid(pid: Option<i32>, first: impl FnOnce()) -> io::Result<Self> {
        let wanted = pid.unwrap_or_default();
        let arguments = libc::clone_args {
            exit_signal: libc::SIGCHLD.try_into().unwrap(),
            set_tid: if pid.is_some() { (&raw const wanted) as u64 } else { 0 },
            set_tid_size: u64::from(pid.is_some()),
            // SAFETY: plain integers, for which zero means "not used".
            ..unsafe { std::mem::zeroed() }
        };
        // SAFETY: `arguments` and `wanted` outlive the call. The child has its own copy of all
        // memory and does not leave this function.
        let result = unsafe {
            libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>())
        };
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
        Self::with_pid(Some(pid), first).expect("clone3 with the pid that has become free")
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
    let chosen = Forked::with_pid(Some(spare), || ());
    if let Err(error) = &chosen {
        eprintln!("skipped: clone3 with set_tid: {error}");
    }
    chosen.is_ok()
}
