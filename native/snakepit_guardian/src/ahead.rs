//! Children forked ahead, so that the next one asked for is there already.
//!
//! A few of them wait while nothing happens. While one after the other is taken, more do: each batch delays the
//! next start, and so does its entry in the ledger, so fewer and larger ones are better for most.

use std::time::Duration;

use crate::event::Time;

/// How long no child is asked for before those that wait are topped up.
const QUIET: Duration = Duration::from_millis(10);
/// After how long the children that a busy time has left waiting are discarded.
const IDLE: Duration = Duration::from_secs(1);
/// How soon half of those that wait are used up in a busy time.
const HURRY: Duration = Duration::from_millis(50);
/// How many times as many wait in a busy time, at most.
const GROWTH: usize = 4;
/// How long after a failure none is forked ahead.
const REST: Duration = Duration::from_secs(1);
/// The most in one batch: children that were released meanwhile are served in between.
pub const BATCH: usize = 16;

/// How many children are to wait at the gate, and when.
#[derive(Debug)]
pub struct Ahead {
    /// How many wait while nothing happens, and how many do now.
    least: usize,
    target: usize,
    /// Children that the BEAM asked for beyond those kept ahead.
    wanted: u32,
    /// Until when none is forked ahead, after that has failed.
    rest_until: Option<Time>,
    /// When the children that wait are topped up.
    refill_at: Option<Time>,
    /// When half of them were used up.
    used_up_at: Option<Time>,
    /// When those are discarded that are too many, if none is taken until then.
    shrink_at: Option<Time>,
    /// The error of the last fork that failed, until there are as many children as there should be.
    failing: Option<i32>,
}

impl Ahead {
    /// Keeps `target` children waiting.
    pub fn new(target: u32) -> Self {
        let target = target as usize;
        Self {
            least: target,
            target,
            wanted: 0,
            rest_until: None,
            refill_at: None,
            used_up_at: None,
            shrink_at: None,
            failing: None,
        }
    }

    /// Adds children that the BEAM asks for.
    pub fn want(&mut self, count: u32) {
        self.wanted = self.wanted.saturating_add(count);
    }

    /// Starts the quiet time anew: a child was taken.
    pub fn taken(&mut self, now: Time) {
        self.refill_at = None;
        self.shrink_at = (self.target > self.least).then_some(now + IDLE);
    }

    /// Returns how many of the children that wait are to be discarded: the busy time is over.
    pub fn surplus(&mut self, now: Time, waiting: usize) -> usize {
        if self.shrink_at.is_none_or(|at| at > now) {
            return 0;
        }
        (self.target, self.shrink_at, self.used_up_at) = (self.least, None, None);
        waiting.saturating_sub(self.least)
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

    /// Returns when to ask again for [`Ahead::batch`] and [`Ahead::surplus`], if it is not at once.
    pub fn deadline(&self) -> Option<Time> {
        [self.refill_at, self.shrink_at].into_iter().flatten().min()
    }

    /// Returns whether the BEAM waits for a fork.
    pub fn is_wanted(&self) -> bool {
        self.wanted > 0
    }

    /// Returns, for each child to fork now, whether the BEAM waits for it. `waiting` and `released` are the
    /// children at the gate and those on their way from there to their program.
    pub fn batch(&mut self, now: Time, waiting: usize, released: usize) -> Vec<bool> {
        let due = self.refill_is_due(now, waiting, released);
        let target = match due {
            Some(target) => target,
            None if self.wanted == 0 => return Vec::new(),
            None if self.is_resting(now) => 0,
            None => self.target,
        };
        self.refill_at = None;
        let count = (target.saturating_sub(waiting) + self.wanted as usize).min(BATCH);
        let asked = count.min(self.wanted as usize);
        self.wanted -= u32::try_from(asked).unwrap_or(self.wanted);
        (0..count).map(|index| index < asked).collect()
    }

    /// Returns up to how many to top up, if it is time to: when it is quiet, or when half of them are used up. A
    /// fork costs the guardian a copy of each page that it writes to next, which the forks of a batch share; and
    /// it takes processor time from a child that is on its way to its program.
    fn refill_is_due(&mut self, now: Time, waiting: usize, released: usize) -> Option<usize> {
        if self.is_resting(now) {
            self.refill_at = None;
            return None;
        }
        if waiting <= self.target / 2 && released == 0 {
            self.grow(now);
            return Some(self.target);
        }
        if waiting >= self.least {
            self.refill_at = None;
            return None;
        }
        (*self.refill_at.get_or_insert(now + QUIET) <= now).then_some(self.least)
    }

    fn grow(&mut self, now: Time) {
        if self.used_up_at.is_some_and(|at| now < at + HURRY) {
            self.target = (2 * self.target).min(GROWTH * self.least);
            self.shrink_at = Some(now + IDLE);
        }
        self.used_up_at = Some(now);
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
    fn more_wait_in_a_busy_time_and_no_more_than_before_when_it_is_over() {
        let mut ahead = Ahead::new(8);
        assert_eq!(ahead.batch(MS, 4, 0).len(), 4);
        assert_eq!(ahead.batch(2 * MS, 4, 0).len(), 12);
        assert_eq!(ahead.batch(3 * MS, 8, 0).len(), BATCH);
        assert_eq!(ahead.batch(4 * MS, 16, 0).len(), BATCH, "no more than four times as many");
        ahead.taken(5 * MS);
        assert_eq!(ahead.surplus(6 * MS, 32), 0);
        assert_eq!(ahead.deadline(), Some(5 * MS + IDLE));
        assert_eq!(ahead.surplus(5 * MS + IDLE, 32), 24);
        assert_eq!(ahead.surplus(6 * MS + IDLE, 8), 0);
        assert_eq!(ahead.batch(7 * MS + IDLE, 4, 0).len(), 4, "as before");
    }

    #[test]
    fn half_of_them_used_up_now_and_then_is_no_busy_time() {
        let mut ahead = Ahead::new(8);
        for time in 1..10 {
            assert_eq!(ahead.batch(time * HURRY, 4, 0).len(), 4);
        }
        assert_eq!(ahead.deadline(), None);
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
