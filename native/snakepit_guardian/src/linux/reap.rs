//! The children that have ended.

use nix::errno::Errno;
use serde_bytes::ByteBuf;
use snakepit_core::wire::{Event, Exit, Step};
use tracing::debug;

use super::children::State;
use super::ending::Ending;
use super::guardian::Guardian;
use super::tail::Tail;

impl Guardian {
    /// Reaps all that have ended. When no child at all is left there is no descendant either: each
    /// would have become a child.
    pub(crate) fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: plain data, filled by the kernel.
            let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
            // SAFETY: both pointers are to locals.
            let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage) };
            match pid {
                0 => break,
                pid if pid > 0 => self.reaped(pid, exit_of(status, &usage)),
                _ if Errno::last() == Errno::EINTR => {}
                _ => {
                    self.trees.nobody_left();
                    break;
                }
            }
        }
    }

    fn reaped(&mut self, pid: i32, exit: Exit) {
        let Some(id) = self.children.id_of(pid) else {
            self.trees.forget(pid);
            self.note_end(pid);
            return;
        };
        // What it said before it ended comes first.
        self.hear_last(id);
        let Some(mut child) = self.children.remove(id) else { return };
        self.note_child_end(&child);
        if self.ending.as_ref().is_some_and(Ending::is_final) {
            // Nobody is there to be told, and everything below is being ended anyway.
            return;
        }
        match child.state {
            State::Running => {
                let tail = child.tail.as_mut().map(Tail::take_stock);
                debug!(id, pid, status = ?exit.status, signal = ?exit.signal, "exited");
                let tail = ByteBuf::from(tail.unwrap_or_default());
                self.frames.send(&Event::Exited { id, exit, tail });
                self.trees.linger(id, pid);
            }
            // It never ran. If it was asked to stop, that is done.
            State::Discarded if child.kill_at.is_some() => {
                self.frames.send(&Event::TreeGone { id, killed: 0, survivors: Vec::new() });
            }
            State::Discarded => {}
            // Ended at the gate by someone else.
            _ => {
                let step = Step::Fork;
                self.frames.send(&Event::Failed { id, step, errno: libc::ECHILD });
            }
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
