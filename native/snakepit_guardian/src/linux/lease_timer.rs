//! `timerfd(2)` for leases: after a suspend it fires at once, where the timeout of `epoll_wait(2)` goes on where it was.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::Epoll;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use snakepit_core::clock;
use snakepit_guardian::event::Time;
use tracing::warn;

use super::shell::{LEASES, Shell, add};

/// Made when there is a lease for the first time.
#[derive(Default)]
pub struct LeaseTimer {
    timer: Option<TimerFd>,
    set_to: Option<Time>,
    failed: bool,
}

/// Returns what the clock of leases shows. A guardian that cannot read it takes every lease to be over.
fn clock_now() -> Time {
    clock::now().unwrap_or(Time::MAX)
}

impl LeaseTimer {
    /// Has the loop woken at this moment.
    pub fn set(&mut self, epoll: &Epoll, deadline: Option<Time>) {
        let Some(at) = deadline.filter(|_| !self.failed && self.set_to != deadline) else { return };
        if let Err(errno) = self.try_to_set(epoll, at) {
            warn!(
                "timerfd: {errno}; after a suspend of the machine, leases are noticed to be over a moment too late"
            );
            self.failed = true;
        }
        self.set_to = deadline;
    }

    fn try_to_set(&mut self, epoll: &Epoll, at: Time) -> Result<(), Errno> {
        if self.timer.is_none() {
            let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
            let timer = TimerFd::new(ClockId::CLOCK_BOOTTIME, flags)?;
            add(epoll, timer.as_fd(), LEASES)?;
            self.timer = Some(timer);
        }
        let Some(timer) = &self.timer else { return Ok(()) };
        // Zero would turn it off.
        let at = TimeSpec::from_duration(at.max(Duration::from_millis(1)));
        timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
    }

    /// It has fired.
    pub fn clear(&mut self) {
        if let Some(timer) = &self.timer {
            let _ = timer.wait();
        }
        self.set_to = None;
    }
}

impl Shell {
    /// Ends what runs under leases that are over.
    pub(super) fn pass_lease_time(&mut self) {
        if self.machine.lease_deadline().is_some() {
            let now = self.now();
            self.machine.pass_lease_time(now, clock_now());
            self.perform_all();
        }
    }

    /// Returns when the next lease is over, by the other clock, if the machine is not suspended until then.
    pub(super) fn lease_deadline(&self) -> Option<Time> {
        let at = self.machine.lease_deadline()?;
        Some(self.now() + at.saturating_sub(clock_now()))
    }
}
