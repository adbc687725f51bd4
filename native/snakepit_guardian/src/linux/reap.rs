//! Reaps the guardian's children: those that it has forked, and those that it has adopted.

use std::mem::MaybeUninit;

use nix::errno::Errno;
use snakepit_core::wire::Exit;
use snakepit_guardian::Event;
use snakepit_guardian::event::ExecResult;

use super::resources::ChildResources;
use super::scan::observe;
use super::shell::Shell;

impl Shell {
    /// `wait4(2)` until no ended child is left, and does what follows from that.
    pub(super) fn reap(&mut self) {
        self.reap_each();
        self.perform_all();
    }

    /// Order: each is observed before it is reaped. Afterwards it cannot be told whose it was.
    fn reap_each(&mut self) {
        loop {
            let pid = match next_to_reap() {
                Ok(Some(pid)) => pid,
                Ok(None) => return,
                Err(Errno::EINTR) => continue,
                Err(_no_child) => {
                    self.dispatch(Event::NoChildren);
                    return;
                }
            };
            if !self.machine.knows(pid) {
                let observed = observe(self.now(), pid, self.run_id, false);
                self.dispatch(Event::Adopted(observed.adoptee()));
            }
            // Order: what it reported before it ended comes first. That it has executed its program shows in
            // the end of file of the gate, and not even then: a sibling that was forked a moment ago, and has
            // not had a processor since, holds a copy of it. But a child that could not execute has reported.
            if let Some(id) = self.machine.released(pid) {
                let result = self.resources.get(&id).and_then(ChildResources::exec_result);
                let result = result.unwrap_or(ExecResult::Executed);
                self.dispatch(Event::Gate { id, result });
            }
            // Order: what was decided is done before a child is reaped. After that, its pid may be another's.
            self.perform_all();
            let Some(exit) = wait_for(pid) else { return };
            self.reaped_since_list = true;
            self.dispatch(Event::Reaped { pid, exit });
        }
    }
}

/// `waitid(2)` with `WNOWAIT`: returns a child that has ended, which stays a zombie; `None` if none has.
fn next_to_reap() -> Result<Option<i32>, Errno> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is to a local.
    Errno::result(unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) })?;
    // SAFETY: all zeroes, or filled by the kernel for a child.
    let pid = unsafe { info.assume_init().si_pid() };
    Ok((pid > 0).then_some(pid))
}

/// `wait4(2)`: reaps a child that has ended.
fn wait_for(pid: i32) -> Option<Exit> {
    let mut status = 0;
    // SAFETY: plain data, filled by the kernel.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to locals.
        let result = unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) };
        match result {
            result if result == pid => return Some(exit_of(status, &usage)),
            -1 if Errno::last() == Errno::EINTR => {}
            _ => return None,
        }
    }
}

fn exit_of(status: libc::c_int, usage: &libc::rusage) -> Exit {
    let micros = |time: libc::timeval| {
        u64::try_from(time.tv_sec * 1_000_000 + time.tv_usec).unwrap_or_default()
    };
    Exit {
        status: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
        core: libc::WCOREDUMP(status),
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        max_rss_kb: u64::try_from(usage.ru_maxrss).unwrap_or_default(),
    }
}
