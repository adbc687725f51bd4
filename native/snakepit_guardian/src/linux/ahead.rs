//! Children forked ahead, so that the next one asked for is there already.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use serde_bytes::ByteBuf;
use snakepit_core::Pid;
use snakepit_core::newborn;
use snakepit_core::wire::Event;
use tracing::warn;

use super::children::Child;
use super::ending::Ending;
use super::guardian::Guardian;
use super::midwife::{self, Newborn};
use super::trees::PERIOD;

/// How long nobody is asked for before children are forked ahead again.
const QUIET: Duration = Duration::from_millis(10);
/// A few at a time: whoever was released meanwhile is served in between.
const BATCH: usize = 16;

/// How many children are to wait at the gate, and when.
pub struct Ahead {
    target: usize,
    /// Children that the BEAM asked for beyond those kept ahead.
    wanted: u32,
    /// Until when none is forked ahead, after that has failed.
    rest_until: Option<Instant>,
    /// When children are forked ahead again.
    refill_at: Option<Instant>,
}

impl Ahead {
    pub fn new(target: u32) -> Self {
        Self { target: target as usize, wanted: 0, rest_until: None, refill_at: None }
    }

    /// The BEAM asks for more than wait.
    pub fn want(&mut self, count: u32) {
        self.wanted = self.wanted.saturating_add(count);
    }

    /// Someone has taken a child, so it is not quiet.
    pub fn put_off(&mut self) {
        self.refill_at = None;
    }

    /// Whether someone waits for a fork that did not fit into this turn.
    pub fn is_wanted(&self) -> bool {
        self.wanted > 0
    }

    pub fn next_refill(&self) -> Option<Instant> {
        self.refill_at
    }

    /// How many to fork now; `waiting` and `released` are the children at the gate and those on
    /// their way from there to their program.
    fn missing(&mut self, waiting: usize, released: usize) -> usize {
        if self.wanted == 0 && !self.refill_is_due(waiting, released) {
            return 0;
        }
        self.refill_at = None;
        let target = if self.is_resting() { 0 } else { self.target };
        (target.saturating_sub(waiting) + self.wanted as usize).min(BATCH)
    }

    /// All at once and when it is quiet, or when none is left. A fork costs the guardian a copy of each
    /// page that it writes to next, which the forks of a batch share; and it takes processor time from a
    /// child that is on its way to its program.
    fn refill_is_due(&mut self, waiting: usize, released: usize) -> bool {
        if waiting >= self.target || self.is_resting() {
            self.refill_at = None;
            return false;
        }
        if waiting == 0 {
            return released == 0;
        }
        let now = Instant::now();
        *self.refill_at.get_or_insert(now + QUIET) <= now
    }

    /// What failed a moment ago would fail again. Where it fails after the fork, the end of that child
    /// is what wakes the loop, so trying each time would never end.
    fn is_resting(&self) -> bool {
        self.rest_until.is_some_and(|until| until > Instant::now())
    }
}

impl Guardian {
    /// Keeps a few children waiting at the gate, and forks those that were asked for beyond them.
    pub(crate) fn fork_ahead(&mut self) {
        if self.ending.as_ref().is_some_and(Ending::is_final) {
            return;
        }
        let counts = self.children.counts();
        let missing = self.ahead.missing(counts.ready, counts.released);
        if missing == 0 {
            return;
        }
        let mut litter = Vec::with_capacity(missing);
        for _ in 0..missing {
            let asked = self.ahead.is_wanted();
            self.ahead.wanted = self.ahead.wanted.saturating_sub(1);
            match Newborn::expected(self.children.next_id(), asked) {
                Ok(newborn) => litter.push(newborn),
                Err(errno) => {
                    self.cannot_fork(asked, errno);
                    break;
                }
            }
        }
        midwife::deliver(&mut litter, self.run_id, self.changes);
        for newborn in litter {
            let asked = newborn.asked;
            match newborn.pid() {
                Some(Ok(pid)) => {
                    if let Err(errno) = self.announce(newborn, pid) {
                        self.cannot_fork(asked, errno);
                    }
                }
                Some(Err(errno)) => self.cannot_fork(asked, errno),
                // One before it could not be forked: the next turn tries again.
                None => self.ahead.want(asked.into()),
            }
        }
    }

    fn cannot_fork(&mut self, asked: bool, errno: Errno) {
        if asked {
            self.frames.send(&Event::ForkFailed { errno: errno as i32 });
        }
        warn!("cannot fork: {errno}");
        self.ahead.rest_until = Some(Instant::now() + PERIOD);
    }

    /// Tells the BEAM of a child that waits. Without an identity it must not run: nobody could find
    /// it again.
    fn announce(&mut self, newborn: Newborn, pid: Pid) -> Result<(), Errno> {
        let Newborn { id, gate, before, after, .. } = newborn;
        self.children.insert(id, Child::waiting(pid, gate));
        let errno = match newborn::identify(pid, before, after) {
            Ok(Some(identity)) => {
                let identity = ByteBuf::from(identity.encode());
                self.frames.send(&Event::Ready { id, pid: pid.as_raw().into(), identity });
                return Ok(());
            }
            Err(snakepit_core::Error::Os { errno, .. }) => errno,
            Ok(None) | Err(_) => Errno::ESRCH,
        };
        if let Some(mut child) = self.children.get_mut(id) {
            child.discard();
        }
        Err(errno)
    }
}
