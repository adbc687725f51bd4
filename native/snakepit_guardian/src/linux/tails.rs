//! The output of all children that the guardian keeps the end of.
//!
//! It has an `epoll` of its own within the loop's, so that all of it can be left alone for a while:
//! whoever prints without end would otherwise keep the guardian, and with it a processor, busy for as
//! long as it pleases. It waits in its own `write` instead.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};

use super::guardian::{Guardian, TAILS, add};

/// Output is read for at most this part of each period. What is printed in bursts is not held up.
const PERIOD: Duration = Duration::from_millis(10);
const SHARE: Duration = Duration::from_millis(2);

pub struct Tails {
    pub epoll: Epoll,
    begun: Instant,
    spent: Duration,
    /// Until when nothing is read.
    rest_until: Option<Instant>,
}

impl Tails {
    pub fn new() -> Result<Self, Errno> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { epoll, begun: Instant::now(), spent: Duration::ZERO, rest_until: None })
    }

    /// From here on the child's output is read.
    pub fn watch(&self, output: BorrowedFd, id: u64) -> Result<(), Errno> {
        add(&self.epoll, output, id)
    }

    pub fn rest_until(&self) -> Option<Instant> {
        self.rest_until
    }

    /// Notes how long reading took. True if that is enough for this period.
    fn account(&mut self, begun: Instant, ended: Instant) -> bool {
        if begun >= self.begun + PERIOD {
            self.begun = begun;
            self.spent = Duration::ZERO;
        }
        self.spent += ended - begun;
        self.spent >= SHARE
    }
}

impl Guardian {
    /// Reads once from each child that has printed something.
    pub(crate) fn pump_tails(&mut self) {
        let begun = Instant::now();
        let mut events = [EpollEvent::empty(); 128];
        let count = self.tails.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or_default();
        for event in &events[..count] {
            self.pump(event.data());
        }
        if self.tails.account(begun, Instant::now()) {
            let _ = self.epoll.delete(&self.tails.epoll.0);
            self.tails.rest_until = Some(self.tails.begun + PERIOD);
        }
    }

    pub(crate) fn resume_tails(&mut self, now: Instant) {
        if self.tails.rest_until.is_some_and(|until| until <= now) {
            self.tails.rest_until = None;
            let _ = add(&self.epoll, self.tails.epoll.0.as_fd(), TAILS);
        }
    }

    fn pump(&mut self, id: u64) {
        let Some(mut child) = self.children.get_mut(id) else { return };
        if let Some(tail) = &mut child.tail {
            if !tail.pump() {
                let _ = self.tails.epoll.delete(&tail.output);
            }
        }
    }
}
