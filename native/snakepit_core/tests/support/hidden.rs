//! A place where `/proc` hides what its user may not trace, and a program that may not be traced.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;

use super::NOBODY;

/// Runs `work` in a thread that is an ordinary user with `hidepid=2`. `None`, and a word on it, where
/// that cannot be had.
pub fn where_processes_hide<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| match enter() {
            Ok(()) => Some(work()),
            Err(errno) => {
                eprintln!("skipped: hidepid=2 in a mount namespace: {errno}");
                None
            }
        });
        worker.join().unwrap()
    })
}

/// Namespace and user are this thread's alone.
fn enter() -> Result<(), Errno> {
    let (root, proc, none) = (c"/".as_ptr(), c"proc".as_ptr(), std::ptr::null());
    // SAFETY: integers, and strings that end with a NUL. The calls of `libc` for the last two would
    // change the user of all threads.
    unsafe {
        Errno::result(libc::unshare(libc::CLONE_NEWNS))?;
        Errno::result(libc::mount(none, root, none, libc::MS_PRIVATE | libc::MS_REC, none.cast()))?;
        let options = c"hidepid=2".as_ptr().cast();
        Errno::result(libc::mount(proc, c"/proc".as_ptr(), proc, 0, options))?;
        Errno::result(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY))?;
        Errno::result(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY))?;
    }
    Ok(())
}

/// A program that its own user may execute and not read, so the kernel lets nobody trace it. Removed
/// when the test is over.
pub struct Untraceable {
    path: PathBuf,
}

impl Untraceable {
    /// The copy is made by another process: a child that another thread forks while the file is open for
    /// writing here would keep it open, and nobody can execute it meanwhile.
    pub fn new(program: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("snakepit_untraceable_{}_{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut install = Command::new("install");
        install.args(["-m", "0111"]).arg(format!("/bin/{program}")).arg(&path);
        assert!(install.status().unwrap().success());
        Self { path }
    }

    pub fn command(&self) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(&self.path);
        command.uid(NOBODY).gid(NOBODY);
        command
    }
}

impl Drop for Untraceable {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
