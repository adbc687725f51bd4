//! How far the end of a tree is.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use snakepit_core::Signal;
use snakepit_core::wire::KillMode;

use crate::event::{Member, Time};

/// How long after the group the processes are asked that left it: most trees are gone by then, and need no
/// walk.
pub const ASK_REST_AFTER: Duration = Duration::from_millis(20);
/// How long the kernel may take to carry out SIGKILL before what is left counts as surviving.
pub const GIVE_UP: Duration = Duration::from_secs(10);
/// How long those are waited for that may not be signalled.
pub const REFUSED_GIVE_UP: Duration = Duration::from_secs(1);
/// How long after SIGKILL the first walk looks for what is left; twice as long each time.
pub const FIRST_RETRY: Duration = Duration::from_millis(10);
/// The longest time between two of these.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// In how many rounds of killing a tree that does not fork all the time is gone.
const ROUNDS: u32 = 2;
/// After so many passes a tree that does not come to rest is killed as it is.
const MAX_PASSES: u32 = 100;

/// How far the end of a tree is.
#[derive(Debug)]
pub enum Phase {
    /// It has not been asked to end, and its leader runs.
    Running,
    /// It was sent its stop signal.
    Asked(Box<Asked>),
    /// It is being killed.
    Killing(Box<Killing>),
    /// It cannot be killed, and the BEAM knows that.
    Survived,
}

/// A tree that has been asked to end.
#[derive(Debug)]
pub struct Asked {
    /// With this signal.
    pub signal: Signal,
    /// When.
    pub at: Time,
    /// When its grace period is over.
    pub kill_at: Time,
    /// Whether the leader's group has had the signal.
    pub group: bool,
    /// Whether everyone is asked: if not, the leader is to end first.
    pub everyone: bool,
    /// Whether this is because the leader has ended: then everyone that is found was there before.
    pub leader_ended: bool,
    /// When to look for those below that have not had the signal.
    pub walk_at: Option<Time>,
    /// Those below that have had it: pids, and start times unless they were hidden.
    pub reached: HashMap<i32, u64>,
    /// What the leader gets instead of SIGKILL when its grace period is over, and how long it has then.
    pub abort: Option<(Signal, Duration)>,
}

/// A tree that is being killed.
#[derive(Debug)]
pub struct Killing {
    /// Since when.
    pub since: Time,
    /// How many times there was a new process to kill.
    pub rounds: u32,
    /// When to look at what is left.
    pub next: Time,
    pause: Duration,
    /// Passes that stop everyone, and whom they have found.
    pub freeze: Option<Freeze>,
    /// Those that may not be signalled.
    pub refused: HashSet<i32>,
    /// Whether everyone was killed once more before giving up: what kept them may have passed.
    pub last_try: bool,
}

/// Stopping everyone, before anyone is killed.
#[derive(Debug, Default)]
pub struct Freeze {
    passes: u32,
    found: HashSet<(i32, u64)>,
}

impl Asked {
    /// Asked now, to be killed after `grace`; `leader_ended` if that is the reason.
    pub fn new(now: Time, signal: Signal, grace: Duration, leader_ended: bool) -> Self {
        Self {
            signal,
            at: now,
            kill_at: now.saturating_add(grace),
            group: false,
            everyone: leader_ended,
            leader_ended,
            walk_at: None,
            reached: HashMap::new(),
            abort: None,
        }
    }

    /// The leader has ended after it was asked: from now on everyone is, or is killed.
    pub fn leader_has_ended(&mut self, now: Time, mode: KillMode) {
        if mode == KillMode::Mixed {
            self.kill_at = now;
        }
        if mode != KillMode::Tree {
            self.at = now;
            self.leader_ended = true;
        }
        self.everyone = true;
        self.walk_at.get_or_insert(now);
    }

    /// Returns whether a process that was just found, adopted or by a walk, is to be asked.
    ///
    /// One that was started after the others were asked, by a process that cleans up, is not: it has the rest
    /// of the grace period. In doubt, in the tick in which the others were asked, it is: those that clean up
    /// are nearly always in the group that has had the signal, and are not asked again.
    pub fn should_ask(&self, leader: i32, member: &Member) -> bool {
        let started_later = member.started.is_some_and(|started| started > self.at);
        let same = |start: &u64| *start == member.start || *start == 0 || member.start == 0;
        let had_it = (self.group && member.group == leader)
            || self.reached.get(&member.pid).is_some_and(same);
        !started_later && !had_it
    }
}

impl Killing {
    /// Begins now.
    pub fn new(now: Time) -> Self {
        Self {
            since: now,
            rounds: 0,
            next: now + FIRST_RETRY,
            pause: FIRST_RETRY,
            freeze: None,
            refused: HashSet::new(),
            last_try: false,
        }
    }

    /// Returns when to give up on these roots.
    pub fn give_up_at(&self, roots: &[i32]) -> Time {
        let all_refused = !roots.is_empty() && roots.iter().all(|pid| self.refused.contains(pid));
        self.since + if all_refused { REFUSED_GIVE_UP } else { GIVE_UP }
    }

    /// Counts a new process to kill. Returns whether that has happened too often.
    pub fn another_round(&mut self) -> bool {
        self.rounds += 1;
        self.rounds > ROUNDS
    }

    /// Sets the time of the next walk: later than the last was.
    pub fn wait(&mut self, now: Time) {
        self.next = now + self.pause;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
    }
}

impl Freeze {
    /// Returns which of those that a pass has found to stop; `None` if all of them are at rest and none is new,
    /// or there have been too many passes.
    pub fn pass(&mut self, members: &[Member]) -> Option<Vec<i32>> {
        self.passes += 1;
        let mut stop = Vec::new();
        for member in members {
            let new = self.found.insert((member.pid, member.start));
            if new || !member.at_rest {
                stop.push(member.pid);
            }
        }
        (!stop.is_empty() && self.passes < MAX_PASSES).then_some(stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADER: i32 = 10;

    fn asked_at(at: Time) -> Asked {
        let mut asked = Asked::new(at, Signal::TERM, Duration::from_secs(1), false);
        asked.group = true;
        asked.everyone = true;
        asked
    }

    fn member(group: i32, started_ms: u64) -> Member {
        let started = Some(Duration::from_millis(started_ms));
        Member { pid: 11, start: started_ms / 10, group, started, at_rest: false }
    }

    #[test]
    fn one_that_may_have_been_there_is_asked_and_a_later_one_is_not() {
        let asked = asked_at(Duration::from_millis(1004));
        // Its start is rounded down: it began between 1000 and 1010.
        assert!(asked.should_ask(LEADER, &member(11, 1000)));
        assert!(!asked.should_ask(LEADER, &member(11, 1010)));
    }

    #[test]
    fn one_in_the_group_that_was_asked_or_that_was_reached_is_not_asked_again() {
        let mut asked = asked_at(Duration::from_millis(1004));
        assert!(!asked.should_ask(LEADER, &member(LEADER, 1000)));
        asked.reached.insert(11, 100);
        assert!(!asked.should_ask(LEADER, &member(11, 1000)));
        // Another with the same pid.
        assert!(asked.should_ask(LEADER, &member(11, 900)));
    }
}
