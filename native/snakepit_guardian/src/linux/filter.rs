//! System call filters that kill. A process cannot find out by itself whether a filter lets a call pass: the
//! filter may kill it. So where there is a filter, a short-lived process makes the call first.

use std::mem::MaybeUninit;

use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use snakepit_core::proc_text;

/// More than two system calls need.
const STACK: usize = 16 * 1024;

/// Returns whether the guardian may call `setpriority(2)`, which it can do without. It is in systemd's
/// `@resources`, where those are forbidden the caller gets SIGSYS, unless the unit names an errno.
pub fn passes_setpriority() -> bool {
    let status = std::fs::read("/proc/self/status").unwrap_or_default();
    !proc_text::is_filtered(&status) || survives(set_own_priority)
}

extern "C" fn set_own_priority(_: *mut libc::c_void) -> libc::c_int {
    // SAFETY: integers only.
    unsafe {
        let nice = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::setpriority(libc::PRIO_PROCESS, 0, nice);
    }
    0
}

fn survives(call: extern "C" fn(*mut libc::c_void) -> libc::c_int) -> bool {
    let mut stack = [const { MaybeUninit::<u128>::uninit() }; STACK / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end.cast();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: this process has one thread, which goes on when the other has ended; until then the stack
    // is the other's alone.
    let pid = unsafe { libc::clone(call, top, flags, std::ptr::null_mut()) };
    if pid < 0 {
        // Nothing was tried.
        return false;
    }
    loop {
        match waitpid(Pid::from_raw(pid), None) {
            Err(Errno::EINTR) => {}
            ended => return matches!(ended, Ok(WaitStatus::Exited(..))),
        }
    }
}
