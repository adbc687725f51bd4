//! One child's tree: how far its end is, and what comes next.
//!
//! ```text
//!  Running ──stop, or the leader ends──▶ Asked ──grace period over──▶ Killing ──gives up──▶ Survived
//!                                          │                            │                     │
//!                                          └───── no process is left ────┴─────────────────────┘
//! ```
//!
//! The stop signal goes to everyone once: to the leader's group, to adopted members, and, a moment later,
//! to what else is below them. SIGKILL then goes to the group and to adopted members. The children of a killed
//! process become the guardian's, which kills those, and so on. If that goes on for more than two rounds,
//! a process forks faster than it is killed: then everyone is stopped before anyone is killed.

use std::collections::HashMap;
use std::time::Duration;

use snakepit_core::Signal;
use snakepit_core::wire::{KillMode, Scope, StopPolicy};
use tracing::{debug, warn};

use crate::event::{Action, Actions, Member, Purpose, Target, Time};
use crate::phase::{ASK_REST_AFTER, Asked, FIRST_RETRY, Killing, LONGEST_PAUSE, Phase};

/// A process that became the guardian's child.
#[derive(Debug)]
pub struct Adopted {
    /// Its tree.
    pub owner: u64,
    /// Who it is.
    pub member: Member,
    /// Whether it has received the stop signal, or is not to receive it.
    pub asked: bool,
    /// Whether it was sent SIGKILL.
    pub killed: bool,
}

/// All adopted processes, by pid.
pub type Adoptions = HashMap<i32, Adopted>;

/// A request to end.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// What asks.
    pub signal: Signal,
    /// How long it has until SIGKILL.
    pub grace: Duration,
    /// Whether the abort signal of its policy comes before that, with a time of its own.
    pub aborts: bool,
}

/// What descends from one child.
#[derive(Debug)]
pub struct Tree {
    /// The pid of the leader, which is also its group and session.
    pub leader: i32,
    /// Whether the leader has not been reaped yet.
    pub leader_is_there: bool,
    /// The worker.
    pub worker_id: Box<str>,
    /// How it is ended.
    pub policy: StopPolicy,
    /// Adopted processes that descend from the leader.
    pub members: Vec<i32>,
    /// How many adopted processes died of SIGKILL.
    pub killed: u64,
    /// Processor time of adopted processes that have ended, in user mode and in the kernel.
    pub ended_us: (u64, u64),
    /// How far its end is.
    pub phase: Phase,
    /// When something is to be done.
    pub timer: Option<Time>,
    /// When the timer that runs for it ends.
    pub armed: Option<Time>,
    /// Whether something has changed since the list of children was last read.
    pub touched: bool,
    /// Whether the BEAM is to be told of its end.
    pub announced: bool,
}

impl Tree {
    /// Returns the tree of a child that is released.
    pub fn new(leader: i32, worker_id: Box<str>, policy: StopPolicy) -> Self {
        Self {
            leader,
            leader_is_there: true,
            worker_id,
            policy,
            members: Vec::new(),
            killed: 0,
            ended_us: (0, 0),
            phase: Phase::Running,
            timer: None,
            armed: None,
            touched: false,
            announced: true,
        }
    }

    /// Returns a tree of adopted processes whose leader is not known.
    pub fn without_leader() -> Self {
        let tree = Self::new(0, Box::default(), StopPolicy::default());
        Self { leader_is_there: false, announced: false, ..tree }
    }

    /// Returns whether no process is left, as of the last reading of the list of children.
    pub fn is_gone(&self) -> bool {
        !self.leader_is_there && self.members.is_empty()
    }

    /// Returns the unreaped children of the guardian that everything else is below of.
    pub fn roots(&self) -> Vec<i32> {
        let leader = self.leader_is_there.then_some(self.leader);
        leader.into_iter().chain(self.members.iter().copied()).collect()
    }

    /// Kills again, if the tree had been given up, because one of its processes has ended: what kept the others
    /// may have passed. The BEAM has had its answer.
    pub fn resume_killing(&mut self, now: Time) {
        if matches!(self.phase, Phase::Survived) {
            self.phase = Phase::Killing(Box::new(Killing::new(now)));
            self.announced = false;
        }
    }

    /// Returns the grace period of its policy.
    pub fn grace(&self, default: Duration) -> Duration {
        self.policy.grace_ms.map_or(default, Duration::from_millis)
    }

    /// Returns the signal of its policy.
    pub fn signal(&self) -> Signal {
        Signal::from_number(self.policy.signal.into()).unwrap_or(Signal::TERM)
    }

    /// Returns the abort signal that its policy has for one that was asked with another signal, with its time.
    fn abort(&self, ask: Ask) -> Option<(Signal, Duration)> {
        let abort = self.policy.abort.filter(|_| ask.aborts && ask.signal != Signal::KILL)?;
        let signal = Signal::from_number(abort.signal.into()).ok()?;
        (signal != ask.signal).then_some((signal, Duration::from_millis(abort.grace_ms)))
    }

    /// Ends it: the signal now, SIGKILL when its time is over.
    pub fn stop(&mut self, now: Time, ask: Ask, adopted: &mut Adoptions, out: &mut Actions) {
        let signal = ask.signal;
        let grace = if signal == Signal::KILL { Duration::ZERO } else { ask.grace };
        let mut kill_at = now.saturating_add(grace);
        match &mut self.phase {
            Phase::Running => {}
            Phase::Asked(asked) => {
                kill_at = kill_at.min(asked.kill_at);
                asked.kill_at = kill_at;
                if !ask.aborts || signal == Signal::KILL {
                    asked.abort = None;
                }
                // To ask again with the same signal means to shorten the grace period.
                if asked.signal == signal || signal == Signal::KILL || asked.leader_ended {
                    return;
                }
            }
            Phase::Killing(_) | Phase::Survived => return,
        }
        let left = kill_at.saturating_sub(now);
        let asked = Asked::new(now, signal, left, !self.leader_is_there);
        self.phase = Phase::Asked(Box::new(Asked { abort: self.abort(ask), ..asked }));
        for pid in &self.members {
            if let Some(one) = adopted.get_mut(pid) {
                one.asked = false;
            }
        }
        if signal != Signal::KILL {
            self.ask_first(now, adopted, out);
        }
    }

    /// Asks the leader or its group, by the mode; the others are asked when the leader is gone.
    fn ask_first(&mut self, now: Time, adopted: &mut Adoptions, out: &mut Actions) {
        let (mode, leader) = (self.policy.mode, self.leader);
        let Phase::Asked(asked) = &mut self.phase else { return };
        if !self.leader_is_there {
            return;
        }
        let target = first_asked(leader, mode);
        asked.group = target == Target::Group(leader);
        request(target, asked.signal, out);
        if mode == KillMode::Tree {
            asked.everyone = true;
            asked.walk_at = Some(now + ASK_REST_AFTER);
        }
        for pid in &self.members {
            if let Some(one) = adopted.get_mut(pid) {
                one.asked = asked.group && one.member.group == leader;
            }
        }
    }

    /// Has it not killed before this moment, if it was asked to end.
    pub fn extend(&mut self, until: Time) {
        if let Phase::Asked(asked) = &mut self.phase {
            asked.kill_at = asked.kill_at.max(until);
            self.timer = Some(asked.walk_at.unwrap_or(asked.kill_at).min(asked.kill_at));
        }
    }

    /// Sends the abort signal if the grace period of the leader is over, and there is one for it.
    fn try_abort(&mut self, now: Time, out: &mut Actions) {
        let (mode, leader) = (self.policy.mode, self.leader);
        let Phase::Asked(asked) = &mut self.phase else { return };
        if asked.kill_at <= now && self.leader_is_there {
            if let Some((signal, grace)) = asked.abort.take() {
                asked.kill_at = now.saturating_add(grace);
                request(first_asked(leader, mode), signal, out);
            }
        }
    }

    /// Does what is due, and sets the timer for the next time.
    pub fn advance(&mut self, id: u64, now: Time, adopted: &mut Adoptions, out: &mut Actions) {
        self.try_abort(now, out);
        if matches!(&self.phase, Phase::Asked(asked) if asked.kill_at <= now) {
            if self.leader_is_there {
                out.signal(Target::Group(self.leader), Signal::KILL);
            }
            self.phase = Phase::Killing(Box::new(Killing::new(now)));
        }
        match &self.phase {
            Phase::Running => {}
            Phase::Asked(_) => self.ask_rest(id, now, adopted, out),
            Phase::Killing(_) => self.kill_rest(id, now, adopted, out),
            // Whatever kept them may have passed.
            Phase::Survived => {
                self.kill_roots(out);
                self.timer = Some(now + LONGEST_PAUSE);
            }
        }
    }

    /// Asks those that have not been asked, if it is their turn.
    fn ask_rest(&mut self, id: u64, now: Time, adopted: &mut Adoptions, out: &mut Actions) {
        let roots = self.roots();
        let Phase::Asked(asked) = &mut self.phase else { return };
        if asked.everyone {
            let mut fresh = false;
            for pid in &self.members {
                let Some(one) = adopted.get_mut(pid).filter(|one| !one.asked) else { continue };
                one.asked = true;
                fresh = true;
                asked.reached.insert(one.member.pid, one.member.start);
                request(Target::Child(*pid), asked.signal, out);
            }
            let due = asked.walk_at.is_some_and(|at| at <= now);
            if due || (fresh && asked.walk_at.is_none()) {
                asked.walk_at = None;
                out.push(Action::Walk { tree: id, purpose: Purpose::Ask, roots });
            }
        }
        self.timer = Some(asked.walk_at.unwrap_or(asked.kill_at).min(asked.kill_at));
    }

    /// Kills those that were adopted since, or stops everyone if that goes on for too long.
    fn kill_rest(&mut self, id: u64, now: Time, adopted: &mut Adoptions, out: &mut Actions) {
        let is_new = |pid: &i32| adopted.get(pid).is_some_and(|one| !one.killed);
        let new = self.members.iter().any(is_new);
        let roots = self.roots();
        let Phase::Killing(killing) = &mut self.phase else { return };
        let endless = new && killing.freeze.is_none() && killing.another_round();
        if killing.freeze.is_some() || endless {
            killing.freeze.get_or_insert_default();
            out.push(Action::Walk { tree: id, purpose: Purpose::Freeze, roots });
        } else {
            for pid in &self.members {
                if let Some(one) = adopted.get_mut(pid).filter(|one| !one.killed) {
                    one.killed = true;
                    out.signal(Target::Child(*pid), Signal::KILL);
                }
            }
            if now >= killing.next || (new && killing.rounds > 1) {
                killing.wait(now);
                out.push(Action::Walk { tree: id, purpose: Purpose::Kill, roots });
            }
        }
        self.timer = Some(killing.next.max(now));
    }

    fn kill_roots(&self, out: &mut Actions) {
        for pid in self.roots() {
            out.signal(Target::Child(pid), Signal::KILL);
        }
    }

    /// Signals what a walk has found.
    pub fn walked(
        &mut self,
        now: Time,
        purpose: Purpose,
        members: &[Member],
        adopted: &mut Adoptions,
        out: &mut Actions,
    ) {
        let leader = self.leader;
        match (purpose, &mut self.phase) {
            (Purpose::Ask, Phase::Asked(asked)) => {
                for member in members {
                    // An adopted one may have been in the leader's group when it was adopted, and have
                    // left it before the group was asked: this is where its group is known as it is.
                    if member.pid != leader && asked.should_ask(leader, member) {
                        asked.reached.insert(member.pid, member.start);
                        request(Target::Member(member.pid), asked.signal, out);
                    }
                }
            }
            (Purpose::Send(signal), _) => signal_all(members, signal, out),
            (Purpose::Kill, Phase::Killing(_)) => signal_all(members, Signal::KILL, out),
            (Purpose::Freeze, Phase::Killing(killing)) => {
                let mut freeze = killing.freeze.take().unwrap_or_default();
                if let Some(stop) = freeze.pass(members) {
                    for pid in stop {
                        out.signal(Target::Member(pid), Signal::STOP);
                    }
                    killing.freeze = Some(freeze);
                    killing.next = now;
                } else {
                    debug!(members = members.len(), "SIGKILL to a tree that was stopped first");
                    signal_all(members, Signal::KILL, out);
                    for member in members {
                        if let Some(one) = adopted.get_mut(&member.pid) {
                            one.killed = true;
                        }
                    }
                    // One that escapes is looked for again, with a walk.
                    killing.rounds = 1;
                    killing.wait(now);
                }
                self.timer = Some(killing.next);
            }
            _ => {}
        }
    }

    /// Sends a signal to the leader, its group or everyone.
    pub fn signal_scope(&self, id: u64, signal: Signal, scope: Scope, out: &mut Actions) {
        if !self.leader_is_there {
            return;
        }
        match scope {
            Scope::Process => out.signal(Target::Child(self.leader), signal),
            Scope::Group => out.signal(Target::Group(self.leader), signal),
            Scope::Tree => {
                let (purpose, roots) = (Purpose::Send(signal), self.roots());
                out.push(Action::Walk { tree: id, purpose, roots });
            }
        }
    }

    /// Records that the kernel does not let the guardian signal this process.
    pub fn refused(&mut self, now: Time, pid: i32, errno: i32) {
        let roots = self.roots();
        let Phase::Killing(killing) = &mut self.phase else { return };
        if killing.refused.insert(pid) {
            let why = std::io::Error::from_raw_os_error(errno);
            let worker = &self.worker_id;
            warn!(pid, %worker, "SIGKILL is refused: {why}; a user who may signal it has to kill it");
        }
        self.timer = Some(killing.give_up_at(&roots).min(killing.next).max(now));
    }

    /// Gives up if it is time to, and returns whether it did: from then on the tree is killed once a second.
    pub fn try_giving_up(&mut self, now: Time, out: &mut Actions) -> bool {
        let roots = self.roots();
        let Phase::Killing(killing) = &mut self.phase else { return false };
        if now < killing.give_up_at(&roots) {
            return false;
        }
        if !std::mem::replace(&mut killing.last_try, true) {
            self.kill_roots(out);
            self.timer = Some(now + FIRST_RETRY);
            return false;
        }
        let worker = &self.worker_id;
        warn!(%worker, pids = ?roots, "these do not end after SIGKILL, which is sent again each second");
        self.phase = Phase::Survived;
        self.timer = Some(now + LONGEST_PAUSE);
        true
    }
}

/// Who is asked at once.
fn first_asked(leader: i32, mode: KillMode) -> Target {
    match mode {
        KillMode::Leader | KillMode::Mixed => Target::Child(leader),
        KillMode::Tree | KillMode::Group => Target::Group(leader),
    }
}

/// Sends the signal, and SIGCONT: a stopped process acts on nothing but SIGKILL until it is continued.
fn request(target: Target, signal: Signal, out: &mut Actions) {
    out.signal(target, signal);
    if signal != Signal::KILL && signal != Signal::STOP {
        out.signal(target, Signal::CONT);
    }
}

fn signal_all(members: &[Member], signal: Signal, out: &mut Actions) {
    for member in members {
        out.signal(Target::Member(member.pid), signal);
    }
}
