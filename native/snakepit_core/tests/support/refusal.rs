//! A kernel that refuses to signal some processes, with an errno of the test's choice.
//!
//! A seccomp filter on one thread hands each of its `pidfd_send_signal` to the test, which looks whom
//! the pidfd is of, and refuses or lets the kernel go on. This is what a security module does.

use std::fs;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

const RECEIVE: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;

/// Runs `work` in a thread that may not signal these. `None`, and a word on it, where the kernel or a
/// sandbox does not let a filter be watched.
pub fn refusing<T: Send>(pids: &[i32], errno: Errno, work: impl FnOnce() -> T + Send) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let listener = listen();
            let listens = listener.is_ok();
            sender.send(listener).unwrap();
            listens.then(work)
        });
        match receiver.recv().unwrap() {
            // Its other end is the filter, and that ends with the thread.
            Ok(listener) => while answer_one(&listener, pids, errno) {},
            Err(error) => eprintln!("skipped: a watched seccomp filter: {error}"),
        }
        worker.join().unwrap()
    })
}

/// Has this thread's calls of `pidfd_send_signal` wait for an answer of whoever has the listener.
fn listen() -> io::Result<OwnedFd> {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let mut filter = [
        // The number of the call, at the beginning of `struct seccomp_data`.
        statement(0x20, 0),
        libc::sock_filter {
            code: 0x15,
            jt: 0,
            jf: 1,
            k: u32::try_from(libc::SYS_pidfd_send_signal).unwrap(),
        },
        statement(0x06, libc::SECCOMP_RET_USER_NOTIF),
        statement(0x06, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: takes integers and is this thread's alone; then `program` and `filter` outlive the call,
    // which returns a new descriptor or -1.
    let raw = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    let raw = i32::try_from(Errno::result(raw)?).unwrap();
    // SAFETY: the kernel just made this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Whether there may be more.
fn answer_one(listener: &OwnedFd, pids: &[i32], errno: Errno) -> bool {
    let mut watched = [PollFd::new(std::os::fd::AsFd::as_fd(listener), PollFlags::POLLIN)];
    poll(&mut watched, PollTimeout::NONE).unwrap();
    if !watched[0].revents().unwrap().contains(PollFlags::POLLIN) {
        return false;
    }
    // SAFETY: plain integers; the kernel wants them to be zero, and writes as much as there is.
    let mut call: libc::seccomp_notif = unsafe { zeroed() };
    // SAFETY: `call` outlives the call.
    if unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut call) } != 0 {
        return true;
    }
    let [descriptor, signal, ..] = call.data.args;
    // Signal 0 reaches nobody; security modules are asked about it all the same, but it says nothing.
    let refused = signal != 0 && whose(descriptor).is_some_and(|pid| pids.contains(&pid));
    let mut answer = libc::seccomp_notif_resp {
        id: call.id,
        val: 0,
        error: if refused { -(errno as i32) } else { 0 },
        flags: if refused { 0 } else { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE.try_into().unwrap() },
    };
    // SAFETY: `answer` outlives the call.
    unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &raw mut answer) };
    true
}

/// Of which process a pidfd of this process is.
fn whose(descriptor: u64) -> Option<i32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
}
