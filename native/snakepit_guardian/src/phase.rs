//! How far the end of a tree is.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use snakepit_core::Signal;
use snakepit_core::wire::KillMode;

use crate::event::{Member, Time};

/// How long after the group those are asked that left it: most trees are gone by then, and do not have
/// to be looked at one by one.
pub const ASK_REST_AFTER: Duration = Duration::from_millis(20);
/// How long the kernel may take to carry out SIGKILL before what is left counts as surviving.
pub const GIVE_UP: Duration = Duration::from_secs(10);
/// How long those are waited for that may not be signalled.
pub const REFUSED_GIVE_UP: Duration = Duration::from_secs(1);
/// How long after SIGKILL what is left is looked at, at first; twice as long each time.
pub const CHASE: Duration = Duration::from_millis(10);
/// How often at least.
pub const PERIOD: Duration = Duration::from_secs(1);
/// Start times are in ticks of this length.
const TICK: Duration = Duration::from_millis(10);
/// In how many rounds of killing a tree that does not fork all the time is gone.
const ROUNDS: u32 = 2;
/// After so many passes a tree that does not come to rest is killed as it is.
const MAX_PASSES: u32 = 100;

/// How far the end of a tree is.
#[derive(Debug)]
pub enum Phase {
    /// Nobody has asked it to end, and its leader runs.
    Running,
    /// It has had its stop signal.
    Asked(Box<Asked>),
    /// It is being killed.
    Killing(Box<Killing>),
    /// It cannot be killed, and the BEAM has been told so.
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
}

/// A tree that is being killed.
#[derive(Debug)]
pub struct Killing {
    /// Since when.
    pub since: Time,
    /// How many times there was somebody new to kill.
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
        }
    }

    /// The leader has ended after it was asked: from now on everyone is.
    pub fn leader_has_ended(&mut self, now: Time, mode: KillMode) {
        if mode != KillMode::Tree {
            self.at = now;
            self.leader_ended = true;
        }
        self.everyone = true;
        self.walk_at.get_or_insert(now);
    }

    /// Whether one that was just found is to be asked: adopted, or, if `below`, by a walk.
    ///
    /// One that was started after the others were asked, by somebody who tidies up, is not: it has the rest
    /// of the grace period. Start times are rounded down to ticks. In doubt an adopted one is asked, since
    /// nobody tidies up with it any more; and one below another is not, since it is asked when it is adopted.
    pub fn concerns(&self, now: Time, leader: i32, member: &Member, below: bool) -> bool {
        let margin = if below { TICK } else { Duration::ZERO };
        let young = member.age.is_some_and(|age| now.saturating_sub(age) + margin > self.at);
        let same = |start: &u64| *start == member.start || *start == 0 || member.start == 0;
        let had_it = (self.group && member.group == leader)
            || self.reached.get(&member.pid).is_some_and(same);
        !young && !had_it
    }
}

impl Killing {
    /// From now on.
    pub fn new(now: Time) -> Self {
        Self {
            since: now,
            rounds: 0,
            next: now + CHASE,
            pause: CHASE,
            freeze: None,
            refused: HashSet::new(),
            last_try: false,
        }
    }

    /// When to give up on these roots.
    pub fn give_up_at(&self, roots: &[i32]) -> Time {
        let all_refused = !roots.is_empty() && roots.iter().all(|pid| self.refused.contains(pid));
        self.since + if all_refused { REFUSED_GIVE_UP } else { GIVE_UP }
    }

    /// Somebody new was there to be killed. True if that has happened too often.
    pub fn another_round(&mut self) -> bool {
        self.rounds += 1;
        self.rounds > ROUNDS
    }

    /// Everyone was killed, or looked at; the next look is later than the last was.
    pub fn wait(&mut self, now: Time) {
        self.next = now + self.pause;
        self.pause = (2 * self.pause).min(PERIOD);
    }
}

impl Freeze {
    /// Whom to stop of those that a pass has found; `None` if all of them are at rest and none is new, or
    /// there have been too many passes.
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
