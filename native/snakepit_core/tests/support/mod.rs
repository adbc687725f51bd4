//! What the integration tests share. Nothing here uses the code under test, except to name pids.

#![allow(dead_code, reason = "each test file uses a part")]

use std::process::Command;
use std::time::{Duration, Instant};

use snakepit_core::stop::Plan;
use snakepit_core::{Identity, Pid, Process, Signal};

pub mod fork;
pub mod freezer;
pub mod hidden;
pub mod judge;
pub mod pidfd;
pub mod refusal;
pub mod spawn;

/// A user that owns nothing else on the machine.
pub const NOBODY: u32 = 65534;

/// Waits until `condition` holds; fails the test if that takes too long.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(within(Duration::from_secs(10), condition), "still not so: {what}");
}

/// Whether `condition` comes to hold in this time. For destructors, which must not panic.
pub fn within(time: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + time;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether this is root. If not, says what is skipped.
pub fn is_root(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: {what} needs root");
    }
    root
}

/// A badly behaved program from `test/fixtures`. The system's own Python: one in a home directory
/// is out of reach for other users, and slow where it is a wrapper.
pub fn fixture(name: &str) -> Command {
    let python = ["/usr/bin/python3", "/usr/local/bin/python3"];
    let found = python.iter().find(|path| std::path::Path::new(path).exists());
    let mut command = Command::new(found.unwrap_or(&"python3"));
    command.arg(format!("{}/../../test/fixtures/{name}", env!("CARGO_MANIFEST_DIR")));
    command
}

/// `SIGTERM`, `grace` for it, and ample time for `SIGKILL`.
pub fn plan(grace: Duration) -> Plan {
    Plan { signal: Signal::TERM, grace, kill_wait: Duration::from_secs(10) }
}

pub fn pid(number: i32) -> Pid {
    Pid::new(number.into()).unwrap()
}

/// Taken by the code under test.
#[track_caller]
pub fn identify(number: i32) -> Identity {
    Process::open_settled(pid(number)).unwrap().expect("there is such a process").identity().clone()
}

/// The same without waiting: before Linux 6.14 it does not name a process in its first tick for good.
#[track_caller]
pub fn glance(number: i32) -> Identity {
    Process::open(pid(number)).unwrap().expect("there is such a process").identity().clone()
}

/// Runs `work` in a thread that belongs to another user. The raw system call changes one thread;
/// its wrapper in the C library would change them all.
pub fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    let as_user = || {
        // SAFETY: takes three integers.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(result, 0, "setresuid");
        work()
    };
    std::thread::scope(|scope| scope.spawn(as_user).join().unwrap())
}
