//! Which component an event is for, and in which order they act.

use std::time::Duration;

use serde_bytes::ByteBuf;
use snakepit_core::Signal;
use snakepit_core::run_id::RunId;
use snakepit_core::wire::{self, Exit, Hello, Request, Step};
use tracing::{info, warn};

use crate::ahead::Ahead;
use crate::children::{Children, Plan, State};
use crate::ending::{Mourning, StopAll};
use crate::event::{Action, Actions, Event, Purpose, Target, Time, Verdict};
use crate::phase::{GIVE_UP, PERIOD};
use crate::trees::{Death, Finished, Trees};

/// How long after the list of children could not be read it is tried again.
const BLIND_PAUSE: Duration = Duration::from_millis(50);
/// What a grace period of any length is at the most: it is added to moments.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// Everything that the guardian decides.
#[derive(Debug)]
pub struct Machine {
    hello: Hello,
    children: Children,
    trees: Trees,
    ahead: Ahead,
    stop_all: Option<StopAll>,
    mourning: Option<Mourning>,
    /// When the list of children is read although nothing has happened.
    look_at: Option<Time>,
    blind: bool,
    done: bool,
    out: Actions,
}

impl Machine {
    /// With nobody to look after.
    pub fn new(hello: Hello, run_id: RunId) -> Self {
        let grace = Duration::from_millis(hello.grace_ms).min(LONGEST);
        Self {
            children: Children::counted_from(hello.first_id),
            trees: Trees::new(run_id, grace),
            ahead: Ahead::new(hello.ahead),
            stop_all: None,
            mourning: None,
            look_at: None,
            blind: false,
            done: false,
            out: Actions::default(),
            hello,
        }
    }

    /// What is to be done next. Its answer, if it has one, comes before the next one is asked for; and
    /// there is none left when a child is reaped, whose pid may be another's from then on.
    pub fn next_action(&mut self) -> Option<Action> {
        self.out.pop()
    }

    /// Whether there is nothing left to guard.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether the BEAM is gone.
    pub fn mourns(&self) -> bool {
        self.mourning.is_some()
    }

    /// Whether this pid is a child's that was forked or is known to be adopted.
    pub fn knows(&self, pid: i32) -> bool {
        self.children.id_of(pid).is_some() || self.trees.knows(pid)
    }

    /// The child with this pid, if it has been released and has not said what came of that.
    pub fn released(&self, pid: i32) -> Option<u64> {
        let id = self.children.id_of(pid)?;
        self.children.get(id).filter(|child| matches!(child.state, State::Released)).map(|_| id)
    }

    /// Whether a child that was asked for has to be forked at once.
    pub fn is_hurried(&self) -> bool {
        self.ahead.is_wanted() && !self.mourns()
    }

    /// When to call [`Machine::pass_time`] at the latest.
    pub fn deadline(&self) -> Option<Time> {
        let own = [self.look_at, self.trees.deadline(), self.children.deadline()];
        let fork = self.ahead.deadline().filter(|_| !self.mourns());
        own.into_iter().chain([fork]).flatten().min()
    }

    /// To be called at every turn, after all events of it.
    pub fn pass_time(&mut self, now: Time) {
        for (id, pid, identity) in self.children.settle(now) {
            let identity = ByteBuf::from(identity.encode());
            self.out.send(wire::Event::Ready { id, pid: pid.into(), identity });
        }
        let due = self.look_at.is_some_and(|at| at <= now)
            || self.stop_all.as_ref().is_some_and(StopAll::is_over);
        if self.trees.wants_list(now) || due {
            self.look_at = None;
            self.out.push(Action::List);
        }
        self.look_again_by(now + PERIOD);
        self.fork_ahead(now);
    }

    fn look_again_by(&mut self, at: Time) {
        if self.trees.is_empty() && !self.mourns() {
            self.look_at = None;
        } else {
            self.look_at.get_or_insert(at);
        }
    }

    fn fork_ahead(&mut self, now: Time) {
        if self.mourns() {
            return;
        }
        let counts = self.children.counts();
        if self.ahead.recovered(counts.waiting) {
            warn!("can fork again");
        }
        let batch = self.ahead.batch(now, counts.waiting, counts.released);
        if !batch.is_empty() {
            let ids = batch.into_iter().map(|asked| (self.next_id(), asked)).collect();
            self.out.push(Action::Fork(ids));
        }
    }

    /// The number of the next child: one whose lineage nobody has. That is shorter than the number, and
    /// after many starts it comes to those that long-lived trees have.
    fn next_id(&mut self) -> u64 {
        loop {
            let id = self.children.next_id();
            let mut namesakes = self.children.namesakes(id);
            if !namesakes.any(|id| self.children.get(id).is_some() || self.trees.contains(id)) {
                return id;
            }
        }
    }

    /// Something has happened.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Request(request) => self.obey(now, request),
            Event::BeamGone { by, at_ms } => self.mourn(now, by, at_ms),
            Event::Forked { id, outcome: Ok(newborn), .. } => {
                self.children.insert(id, newborn.pid, newborn.identity, newborn.settled_at);
                if self.mourns() {
                    self.discard(id);
                }
            }
            Event::Forked { asked, outcome: Err(errno), .. } => {
                if asked {
                    self.out.send(wire::Event::ForkFailed { errno });
                }
                if self.ahead.failed(now, errno) {
                    let why = std::io::Error::from_raw_os_error(errno);
                    warn!("cannot fork: {why}; tried again, without a word, until it succeeds");
                }
            }
            // The next turn tries again.
            Event::NotTried { asked } => self.ahead.want(asked.into()),
            Event::NotPacked { id, step, errno } => self.fail(id, step, errno),
            Event::Gate { id, verdict } => self.hear_gate(id, verdict),
            Event::Adopted(seen) => {
                if !self.knows(seen.member.pid) {
                    let owner = self.trees.adopt(seen, &mut self.out);
                    // One that nobody claims may be the first of its kind.
                    if self.mourns() && self.trees.is_running(owner) {
                        self.end_by_policy(now, owner);
                    }
                }
            }
            Event::Reaped { pid, exit } => self.reaped(now, pid, exit),
            Event::Listed => {
                self.blind = false;
                let finished = self.trees.listed(now, &mut self.out);
                for one in &finished {
                    self.finish(one);
                }
                self.answer_stop_all();
                self.conclude(now);
            }
            Event::NotListed => {
                if !std::mem::replace(&mut self.blind, true) {
                    warn!("cannot read the list of children");
                }
                self.trees.not_listed(now, BLIND_PAUSE);
            }
            Event::Below { tree, purpose: Purpose::Count, members } => {
                if let Some(mourning) = &mut self.mourning {
                    let below = members.iter().map(|member| member.pid);
                    let (roots, worker_id) = (self.trees.left(tree), self.trees.worker_id(tree));
                    mourning.count(worker_id, below.filter(|pid| !roots.contains(pid)));
                }
            }
            Event::Below { tree, purpose, members } => {
                self.trees.below(now, tree, purpose, &members, &mut self.out);
            }
            Event::Refused { pid, errno } => self.trees.refused(now, pid, errno),
            Event::Alone => self.conclude_with(now, Vec::new()),
        }
    }

    fn obey(&mut self, now: Time, request: Request) {
        match request {
            Request::Hello(_) => warn!("greeted twice"),
            Request::Fork { count } => self.ahead.want(count),
            Request::Spawn(spawn) => {
                self.ahead.put_off();
                let id = spawn.id;
                if !matches!(self.children.get(id).map(|child| &child.state), Some(State::Ready)) {
                    warn!(id, "asked to run something in a child that does not wait for it");
                    return;
                }
                let (worker_id, policy) = (spawn.worker_id.as_str().into(), spawn.stop);
                self.children.set(id, State::Assigned(Box::new(Plan { worker_id, policy })));
                self.out.push(Action::Pack(spawn));
            }
            Request::Release { id } => self.release(id),
            Request::Stop { id, signal, grace_ms } => {
                let signal = Signal::from_number(signal.into()).unwrap_or(Signal::TERM);
                self.stop(now, id, signal, Duration::from_millis(grace_ms).min(LONGEST));
            }
            Request::Signal { id, signal, scope } => {
                if let Ok(signal) = Signal::from_number(signal.into()) {
                    self.trees.signal(id, signal, scope, &mut self.out);
                }
            }
            Request::StopAll { grace_ms, strict } => {
                let grace = Duration::from_millis(grace_ms).min(LONGEST);
                let ids = self.trees.ids();
                self.stop_all.get_or_insert_default().add(ids.iter().copied());
                for id in ids {
                    self.trees.stop_by_policy(now, id, grace, strict, &mut self.out);
                    if let Some(survivors) = self.trees.survivors(id) {
                        self.finish(&Finished { announced: false, ..survivors });
                    }
                }
            }
            Request::Ping => self.out.send(wire::Event::Pong),
            Request::Tail { id } => self.out.push(Action::SendTail { id }),
            Request::Info => {
                let counts = self.children.counts();
                self.out.send(wire::Event::Info {
                    children: counts.out as u64,
                    ahead: counts.waiting as u64,
                    adopted: self.trees.adopted() as u64,
                });
            }
        }
    }

    fn release(&mut self, id: u64) {
        let Some(child) = self.children.get(id) else { return };
        let pid = child.pid;
        match child.state {
            State::Assigned(_) => {}
            // Being ended, and whoever asks has not heard of it yet.
            State::Discarded => {
                let (step, errno) = (Step::Fork, libc::ESRCH);
                self.out.send(wire::Event::Failed { id, step, errno });
                return;
            }
            _ => {
                warn!(id, "asked to release a child that does not wait for it");
                return;
            }
        }
        if let Some(State::Assigned(plan)) = self.children.set(id, State::Released) {
            self.trees.plant(id, pid, plan.worker_id, plan.policy);
        }
        self.out.push(Action::Release { id });
    }

    fn hear_gate(&mut self, id: u64, verdict: Verdict) {
        if !matches!(self.children.get(id).map(|child| &child.state), Some(State::Released)) {
            return;
        }
        match verdict {
            Verdict::Executed => {
                self.children.set(id, State::Running);
                self.out.send(wire::Event::Started { id });
            }
            Verdict::Failed(step, errno) => self.fail(id, step, errno),
        }
    }

    /// The child is told to go and the BEAM that it did not run.
    fn fail(&mut self, id: u64, step: Step, errno: i32) {
        if self.trees.contains(id) && !self.trees.is_running(id) {
            self.children.set_stopping(id);
        }
        self.trees.uproot(id);
        self.discard(id);
        self.out.send(wire::Event::Failed { id, step, errno });
    }

    /// Ends a child that has not run anything. Its gate closes; the signal is for one that is stopped.
    fn discard(&mut self, id: u64) {
        let Some(pid) = self.children.get(id).map(|child| child.pid) else { return };
        self.children.set(id, State::Discarded);
        self.out.push(Action::Drop { id });
        self.out.signal(Target::Child(pid), Signal::KILL);
    }

    fn stop(&mut self, now: Time, id: u64, signal: Signal, grace: Duration) {
        if self.trees.contains(id) {
            self.trees.stop(now, id, signal, grace, &mut self.out);
        } else if self.children.get(id).is_some() {
            self.children.set_stopping(id);
            self.discard(id);
        } else {
            self.out.send(wire::Event::TreeGone { id, killed: 0, survivors: Vec::new() });
        }
    }

    fn mourn(&mut self, now: Time, by: &'static str, at_ms: i64) {
        if self.mourns() {
            return;
        }
        info!(by, beam = self.hello.beam_pid, "the BEAM is gone");
        self.mourning = Some(Mourning::new(now, by, at_ms));
        for id in self.children.ids(|child| !child.is_out()) {
            self.discard(id);
        }
        // Order: counted before they are asked, each tree by itself so that the first does not wait for the
        // last to be counted.
        for id in self.trees.ids() {
            let (tree, purpose, roots) = (id, Purpose::Count, self.trees.left(id));
            self.out.push(Action::Walk { tree, purpose, roots });
            if self.trees.is_running(id) {
                self.end_by_policy(now, id);
            }
        }
    }

    fn end_by_policy(&mut self, now: Time, id: u64) {
        let grace = Duration::from_millis(self.hello.grace_ms).min(LONGEST);
        self.trees.stop_by_policy(now, id, grace, false, &mut self.out);
    }

    fn reaped(&mut self, now: Time, pid: i32, exit: Exit) {
        let Some(id) = self.children.id_of(pid) else {
            let death = self.trees.member_reaped(now, pid, &exit);
            self.note(now, pid, death);
            return;
        };
        let Some(child) = self.children.remove(id) else { return };
        let death = self.trees.leader_reaped(now, id, &exit);
        self.note(now, pid, death);
        match child.state {
            State::Running | State::Released => {
                self.out.push(Action::SendExited { id, exit });
                return;
            }
            // It never ran. If it was asked to stop, that is done.
            State::Discarded => {
                let announced = child.stopping;
                self.finish(&Finished { id, killed: 0, survivors: Vec::new(), announced });
            }
            // Ended at the gate by someone else.
            _ => {
                let (step, errno) = (Step::Fork, libc::ECHILD);
                self.out.send(wire::Event::Failed { id, step, errno });
            }
        }
        self.out.push(Action::Drop { id });
    }

    fn note(&mut self, now: Time, pid: i32, death: Option<Death>) {
        let Some(death) = death else { return };
        if let Some(stop_all) = &mut self.stop_all {
            stop_all.note(&death);
        }
        if let Some(mourning) = &mut self.mourning {
            mourning.note(now, pid, &death);
        }
    }

    fn finish(&mut self, finished: &Finished) {
        if finished.announced {
            let survivors = finished.survivors.iter().map(|pid| i64::from(*pid)).collect();
            let (id, killed) = (finished.id, finished.killed);
            self.out.send(wire::Event::TreeGone { id, killed, survivors });
        }
        if let Some(stop_all) = &mut self.stop_all {
            stop_all.finish(finished);
        }
    }

    /// Order: after the list was read, so that those who will not go are named as they are now.
    fn answer_stop_all(&mut self) {
        let Some(stop_all) = self.stop_all.take_if(|stop_all| stop_all.is_over()) else { return };
        let answer = stop_all.answer(|id| self.trees.left(id));
        self.out.send(answer);
    }

    /// Whether everything has been tried to end all, and time has come to say who is left: those that are
    /// in the list now, all of whom are known.
    fn conclude(&mut self, now: Time) {
        let Some(mourning) = &self.mourning else { return };
        let waited = now >= mourning.since + GIVE_UP;
        if waited && self.trees.only_survivors_left() {
            let mut left: Vec<i64> = self.children.pids().map(i64::from).collect();
            left.extend(self.trees.roots().into_iter().map(i64::from));
            left.sort_unstable();
            left.dedup();
            self.conclude_with(now, left);
        }
    }

    fn conclude_with(&mut self, now: Time, survivors: Vec<i64>) {
        let Some(mourning) = self.mourning.take() else { return };
        let (run_id, beam_pid) = (self.hello.run_id.clone(), self.hello.beam_pid);
        let obituary = mourning.obituary(now, run_id, beam_pid, survivors);
        self.done = true;
        self.out.push(Action::Conclude(Box::new(obituary)));
    }
}

#[cfg(test)]
mod tests {
    use snakepit_core::lineage::{CHILDREN, Lineage};
    use snakepit_core::wire::Spawn;
    use snakepit_core::{Identity, Pid};

    use super::*;
    use crate::event::Newborn;

    fn forked(machine: &mut Machine) -> Vec<u64> {
        let mut ids = Vec::new();
        while let Some(action) = machine.next_action() {
            if let Action::Fork(batch) = action {
                ids.extend(batch.into_iter().map(|(id, _)| id));
            }
        }
        ids
    }

    /// Has a child forked and, if it is to run, released.
    fn start(machine: &mut Machine, now: Time, pid: i32, runs: bool) -> u64 {
        machine.handle(now, Event::Request(Request::Fork { count: 1 }));
        machine.pass_time(now);
        let [id] = forked(machine)[..] else { panic!("one was asked for") };
        let identity = Identity {
            pid: Pid::new(pid.into()).unwrap(),
            start: 1,
            settled: true,
            boot: [0; 16],
            namespace: 1,
            handle: None,
            uid: None,
        };
        let newborn = Newborn { pid, identity, settled_at: now };
        machine.handle(now, Event::Forked { id, asked: true, outcome: Ok(newborn) });
        machine.pass_time(now);
        machine.handle(
            now,
            Event::Request(Request::Spawn(Box::new(Spawn { id, ..Spawn::default() }))),
        );
        if runs {
            machine.handle(now, Event::Request(Request::Release { id }));
        }
        forked(machine);
        id
    }

    #[test]
    fn a_child_never_has_the_lineage_of_one_that_is_there() {
        let run_id = RunId::from_bytes(b"k3x9a2p").unwrap();
        let hello = Hello {
            version: wire::VERSION,
            beam_pid: 1,
            run_id: run_id.to_string(),
            run_directory: ByteBuf::new(),
            grace_ms: 0,
            log_level: "none".into(),
            tail_bytes: 0,
            ahead: 0,
            first_id: 7 * CHILDREN,
        };
        let mut machine = Machine::new(hello, run_id);
        let mut now = Duration::ZERO;
        let mut living = Vec::new();
        for (pid, runs) in [(10, true), (11, false), (12, true)] {
            living.push(start(&mut machine, now, pid, runs));
            now += Duration::from_secs(1);
        }
        // Twice around, to just before those that run and the one that waits at its gate.
        for (round, pid) in [20, 30].into_iter().enumerate() {
            machine.children.skip(CHILDREN - 4 - round as u64);
            for number in 0..6 {
                living.push(start(&mut machine, now, pid + number, true));
                now += Duration::from_secs(1);
            }
        }
        let lineages: std::collections::HashSet<_> =
            living.iter().map(|id| Lineage::new(run_id, *id)).collect();
        assert_eq!(lineages.len(), living.len(), "{living:?}");
    }
}
