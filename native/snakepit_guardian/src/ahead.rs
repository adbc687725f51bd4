//! Children forked ahead, so that the next one asked for is there already.

use std::time::Duration;

use crate::event::Time;

/// How long no child is asked for before those that wait are topped up.
const QUIET: Duration = Duration::from_millis(10);
/// How long after a failure none is forked ahead.
const REST: Duration = Duration::from_secs(1);
/// The most in one batch: children that were released meanwhile are served in between.
pub const BATCH: usize = 16;

/// How many children are to wait at the gate, and when.
#[derive(Debug)]
pub struct Ahead {
    target: usize,
    /// Children that the BEAM asked for beyond those kept ahead.
    wanted: u32,
    /// Until when none is forked ahead, after that has failed.
    rest_until: Option<Time>,
    /// When the children that wait are topped up.
    refill_at: Option<Time>,
    /// The error of the last fork that failed, until there are as many children as there should be.
    failing: Option<i32>,
}

impl Ahead {
    /// Keeps `target` children waiting.
    pub fn new(target: u32) -> Self {
        let (rest_until, refill_at, failing) = (None, None, None);
        Self { target: target as usize, wanted: 0, rest_until, refill_at, failing }
    }

    /// Adds children that the BEAM asks for.
    pub fn want(&mut self, count: u32) {
        self.wanted = self.wanted.saturating_add(count);
    }

    /// Starts the quiet time anew: a child was taken.
    pub fn postpone_refill(&mut self) {
        self.refill_at = None;
    }

    /// Pauses after a fork that has failed. What failed a moment ago would fail again; and where it fails after
    /// the fork, the end of that child is what wakes the loop, so trying each time would never end.
    ///
    /// Returns whether this failure is a new one: it may fail in the same way each second for days.
    pub fn failed(&mut self, now: Time, errno: i32) -> bool {
        self.rest_until = Some(now + REST);
        self.failing.replace(errno) != Some(errno)
    }

    /// Returns whether forks have failed and work again: as many children wait as should. One success is not
    /// enough, since at a limit some succeed and the next ones do not.
    pub fn recovered(&mut self, waiting: usize) -> bool {
        waiting >= self.target.max(1) && self.failing.take().is_some()
    }

    /// Returns when to ask again for [`Ahead::batch`], if it is not at once.
    pub fn deadline(&self) -> Option<Time> {
        self.refill_at
    }

    /// Returns whether the BEAM waits for a fork.
    pub fn is_wanted(&self) -> bool {
        self.wanted > 0
    }

    /// Returns, for each child to fork now, whether the BEAM waits for it. `waiting` and `released` are the
    /// children at the gate and those on their way from there to their program.
    pub fn batch(&mut self, now: Time, waiting: usize, released: usize) -> Vec<bool> {
        if self.wanted == 0 && !self.refill_is_due(now, waiting, released) {
            return Vec::new();
        }
        self.refill_at = None;
        let target = if self.is_resting(now) { 0 } else { self.target };
        let count = (target.saturating_sub(waiting) + self.wanted as usize).min(BATCH);
        let asked = count.min(self.wanted as usize);
        self.wanted -= u32::try_from(asked).unwrap_or(self.wanted);
        (0..count).map(|index| index < asked).collect()
    }

    /// Returns whether to top up: when it is quiet, or when half of them are used up. A fork costs the guardian
    /// a copy of each page that it writes to next, which the forks of a batch share; and it takes processor
    /// time from a child that is on its way to its program.
    fn refill_is_due(&mut self, now: Time, waiting: usize, released: usize) -> bool {
        if waiting >= self.target || self.is_resting(now) {
            self.refill_at = None;
            return false;
        }
        if waiting <= self.target / 2 && released == 0 {
            return true;
        }
        *self.refill_at.get_or_insert(now + QUIET) <= now
    }

    fn is_resting(&self, now: Time) -> bool {
        self.rest_until.is_some_and(|until| until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn those_that_are_asked_for_come_at_once_and_first() {
        let mut ahead = Ahead::new(2);
        ahead.want(3);
        assert_eq!(ahead.batch(MS, 2, 5), [true, true, true]);
        assert_eq!(ahead.batch(MS, 0, 0), [false, false]);
        ahead.want(100);
        assert_eq!(ahead.batch(MS, 0, 0).len(), BATCH);
        assert!(ahead.is_wanted());
    }

    #[test]
    fn the_rest_is_forked_when_it_is_quiet_or_half_are_used_up() {
        let mut ahead = Ahead::new(8);
        assert!(ahead.batch(MS, 7, 0).is_empty());
        assert_eq!(ahead.deadline(), Some(MS + QUIET));
        assert_eq!(ahead.batch(MS + QUIET, 7, 0).len(), 1);
        assert!(ahead.batch(MS, 4, 1).is_empty(), "while one is on its way to its program");
        assert_eq!(ahead.batch(MS, 4, 0).len(), 4);
    }

    #[test]
    fn after_a_failure_only_those_are_forked_that_the_beam_waits_for() {
        let mut ahead = Ahead::new(8);
        ahead.failed(MS, libc::EAGAIN);
        assert!(ahead.batch(MS, 0, 0).is_empty());
        ahead.want(1);
        assert_eq!(ahead.batch(MS, 0, 0), [true]);
        assert_eq!(ahead.batch(MS + REST, 0, 0).len(), 8);
    }

    #[test]
    fn a_failure_is_new_once_and_so_is_its_end() {
        let mut ahead = Ahead::new(8);
        assert!(!ahead.recovered(8));
        assert!(ahead.failed(MS, libc::EAGAIN));
        assert!(!ahead.failed(2 * MS, libc::EAGAIN));
        assert!(ahead.failed(3 * MS, libc::ENOMEM), "another reason");
        assert!(!ahead.recovered(7), "some have succeeded");
        assert!(!ahead.failed(4 * MS, libc::ENOMEM));
        assert!(ahead.recovered(8));
        assert!(!ahead.recovered(8));
        assert!(ahead.failed(5 * MS, libc::ENOMEM));
    }
}
