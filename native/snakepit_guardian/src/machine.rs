//! Which component an event is for, and in which order they act.

use std::time::Duration;

use serde_bytes::ByteBuf;
use snakepit_core::Signal;
use snakepit_core::obituary::Used;
use snakepit_core::run_id::RunId;
use snakepit_core::wire::{self, Exit, Hello, Request, Step};
use tracing::{info, warn};

use crate::ahead::Ahead;
use crate::children::{Assignment, ChildState, Children};
use crate::event::{Action, Actions, Event, ExecResult, Purpose, Target, Time};
use crate::leases::{Due, Leases};
use crate::phase::{GIVE_UP, LONGEST_PAUSE};
use crate::shutdown::{Shutdown, StopAll};
use crate::tree::Ask;
use crate::trees::{Death, Finished, Trees};

/// How long after the list of children could not be read it is tried again.
const LIST_RETRY: Duration = Duration::from_millis(50);
/// How long after a child was in the midst of `execve(2)` the list is read again.
const UNSETTLED_RETRY: Duration = Duration::from_millis(2);
/// The longest grace period: it is added to moments.
const MAX_GRACE: Duration = Duration::from_secs(u32::MAX as u64);

/// Everything that the guardian decides.
#[derive(Debug)]
pub struct Machine {
    hello: Hello,
    children: Children,
    trees: Trees,
    ahead: Ahead,
    leases: Leases,
    /// What the clock of leases has shown last.
    lease_time: Time,
    stop_all: Option<StopAll>,
    shutdown: Option<Shutdown>,
    /// Trees that somebody wants to look at.
    asked_for_roots: Vec<u64>,
    /// What all have used that were reaped.
    used: Used,
    /// When the list of children is read although nothing has happened.
    list_at: Option<Time>,
    list_failing: bool,
    done: bool,
    out: Actions,
}

impl Machine {
    /// Returns a machine without children.
    pub fn new(hello: Hello, run_id: RunId) -> Self {
        let grace = Duration::from_millis(hello.grace_ms).min(MAX_GRACE);
        Self {
            children: Children::counted_from(hello.first_id),
            trees: Trees::new(run_id, grace),
            ahead: Ahead::new(hello.ahead),
            leases: Leases::default(),
            lease_time: Time::ZERO,
            stop_all: None,
            shutdown: None,
            asked_for_roots: Vec::new(),
            used: Used::default(),
            list_at: None,
            list_failing: false,
            done: false,
            out: Actions::default(),
            hello,
        }
    }

    /// Returns what is to be done next.
    ///
    /// Order: the event that answers an action comes before the next action is asked for; and no action is
    /// left when a child is reaped, whose pid may be another's from then on.
    pub fn next_action(&mut self) -> Option<Action> {
        self.out.pop()
    }

    /// Returns whether there is nothing left to guard.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Returns whether the BEAM is gone.
    pub fn beam_is_gone(&self) -> bool {
        self.shutdown.is_some()
    }

    /// Returns whether this pid is a child's that was forked or is known to be adopted.
    pub fn knows(&self, pid: i32) -> bool {
        self.children.id_of(pid).is_some() || self.trees.knows(pid)
    }

    /// Returns the child with this pid, if it has been released and has not reported since.
    pub fn released(&self, pid: i32) -> Option<u64> {
        let id = self.children.id_of(pid)?;
        self.children
            .get(id)
            .filter(|child| matches!(child.state, ChildState::Released))
            .map(|_| id)
    }

    /// Returns whether a child that was asked for has to be forked at once.
    pub fn must_fork_now(&self) -> bool {
        self.ahead.is_wanted() && !self.beam_is_gone()
    }

    /// Returns when to call [`Machine::pass_time`] at the latest.
    pub fn deadline(&self) -> Option<Time> {
        let own = [self.list_at, self.trees.deadline(), self.children.deadline()];
        let fork = self.ahead.deadline().filter(|_| !self.beam_is_gone());
        own.into_iter().chain([fork]).flatten().min()
    }

    /// Returns when to call [`Machine::pass_lease_time`] at the latest, by the clock of leases.
    pub fn lease_deadline(&self) -> Option<Time> {
        self.leases.deadline()
    }

    /// Ends what runs under leases that are over. To be called at every turn, and before each request that starts
    /// something, with the clock of leases.
    pub fn pass_lease_time(&mut self, now: Time, lease_time: Time) {
        self.lease_time = lease_time;
        for (id, due) in self.leases.due(lease_time) {
            match due {
                Due::Kill if self.trees.contains(id) => {
                    warn!(worker = %self.trees.worker_id(id), "SIGKILL: its lease is over");
                    let ask = Ask { signal: Signal::KILL, grace: Duration::ZERO, aborts: false };
                    self.trees.stop(now, id, ask, &mut self.out);
                }
                Due::Ask(grace) if self.trees.contains(id) => {
                    warn!(worker = %self.trees.worker_id(id), "asked to end: its lease was not renewed");
                    self.trees.stop_by_policy(now, id, grace, true, &mut self.out);
                }
                _ => self.refuse_without_lease(id),
            }
        }
    }

    /// One that waits at the gate never runs.
    fn refuse_without_lease(&mut self, id: u64) {
        let state = self.children.get(id).map(|child| &child.state);
        if matches!(state, Some(ChildState::Ready | ChildState::Assigned(_))) {
            self.fail(id, Step::Lease, libc::ETIMEDOUT);
        }
    }

    /// Does what is due. To be called at every turn, after all events of it.
    pub fn pass_time(&mut self, now: Time) {
        for (id, pid, identity) in self.children.settle(now) {
            let identity = ByteBuf::from(identity.encode());
            self.out.send(wire::Event::Ready { id, pid: pid.into(), identity });
        }
        let due = self.list_at.is_some_and(|at| at <= now)
            || !self.asked_for_roots.is_empty()
            || self.stop_all.as_ref().is_some_and(StopAll::is_over);
        if self.trees.wants_list(now) || due {
            self.list_at = None;
            self.out.push(Action::List);
        }
        self.list_again_by(now + LONGEST_PAUSE);
        self.fork_ahead(now);
    }

    fn list_again_by(&mut self, at: Time) {
        if self.trees.is_empty() && !self.beam_is_gone() {
            self.list_at = None;
        } else {
            self.list_at.get_or_insert(at);
        }
    }

    fn fork_ahead(&mut self, now: Time) {
        if self.beam_is_gone() {
            return;
        }
        let surplus = self.ahead.surplus(now, self.children.counts().waiting);
        for id in self.children.waiting(surplus) {
            self.fail(id, Step::Fork, libc::ESRCH);
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

    /// Returns the id of the next child: one whose lineage no other has. A lineage has fewer bits than an id,
    /// so after many starts it comes round to those of long-lived trees.
    fn next_id(&mut self) -> u64 {
        loop {
            let id = self.children.next_id();
            let mut same_lineage = self.children.same_lineage(id);
            if !same_lineage.any(|id| self.children.get(id).is_some() || self.trees.contains(id)) {
                return id;
            }
        }
    }

    /// Decides what follows from an event.
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Request(request) => self.handle_request(now, request),
            Event::BeamGone { by, at_ms } => self.beam_gone(now, by, at_ms),
            Event::Forked { id, outcome: Ok(child), .. } => {
                self.children.insert(id, child.pid, child.identity, child.settled_at);
                if self.beam_is_gone() {
                    self.discard(id);
                }
            }
            Event::Forked { asked, outcome: Err(errno), .. } => {
                if asked {
                    self.out.send(wire::Event::ForkFailed { errno });
                }
                if self.ahead.failed(now, errno) {
                    let why = std::io::Error::from_raw_os_error(errno);
                    warn!(
                        "cannot fork: {why}; it is tried again each second, without further lines"
                    );
                }
            }
            // The next turn tries again.
            Event::ForkNotTried { asked } => self.ahead.want(asked.into()),
            Event::PackFailed { id, step, errno } => self.fail(id, step, errno),
            Event::Gate { id, result } => self.child_reported(id, result),
            Event::Adopted(seen) => {
                if !self.knows(seen.member.pid) {
                    let owner = self.trees.adopt(seen, &mut self.out);
                    // An unclaimed process may be the first of its tree.
                    if self.beam_is_gone() && self.trees.is_running(owner) {
                        self.end_by_policy(now, owner);
                    }
                }
            }
            Event::Reaped { pid, exit } => self.reaped(now, pid, exit),
            Event::Listed => {
                self.list_failing = false;
                let finished = self.trees.listed(now, &mut self.out);
                for one in &finished {
                    self.finish(one);
                }
                self.answer_stop_all();
                self.describe_roots();
                self.conclude(now);
            }
            Event::ListFailed => {
                if !std::mem::replace(&mut self.list_failing, true) {
                    warn!(
                        "cannot read the list of children in /proc; it is tried again until it succeeds"
                    );
                }
                self.trees.not_listed(now, LIST_RETRY);
                self.describe_roots();
            }
            Event::ListUnsettled => {
                self.trees.not_listed(now, UNSETTLED_RETRY);
                self.describe_roots();
            }
            Event::Walked { tree, purpose: Purpose::Count, members } => {
                if let Some(shutdown) = &mut self.shutdown {
                    let below = members.iter().map(|member| member.pid);
                    let (roots, worker_id) =
                        (self.trees.roots_of(tree), self.trees.worker_id(tree));
                    shutdown.add_descendants(worker_id, below.filter(|pid| !roots.contains(pid)));
                }
            }
            Event::Walked { tree, purpose, members } => {
                self.trees.walked(now, tree, purpose, &members, &mut self.out);
            }
            Event::Refused { pid, errno } => self.trees.refused(now, pid, errno),
            Event::NoChildren => self.conclude_with(now, Vec::new()),
        }
    }

    fn handle_request(&mut self, now: Time, request: Request) {
        match request {
            Request::Hello(_) => warn!("the BEAM sent a second Hello; it is ignored"),
            Request::Fork { count } => self.ahead.want(count),
            Request::Spawn(spawn) => {
                self.ahead.taken(now);
                let id = spawn.id;
                match self.children.get(id).map(|child| &child.state) {
                    Some(ChildState::Ready) => {}
                    // It has ended at the gate, and the BEAM has not heard of that yet.
                    None | Some(ChildState::Discarded) => return,
                    Some(_) => {
                        warn!(id, "Spawn for a child that does not wait for it; it is ignored");
                        return;
                    }
                }
                if let Some(lease) = spawn.lease {
                    let is_there = |id| self.children.get(id).is_some() || self.trees.contains(id);
                    if !self.leases.add(self.lease_time, lease, id, is_there) {
                        self.refuse_without_lease(id);
                        return;
                    }
                }
                let (worker_id, policy) = (spawn.worker_id.as_str().into(), spawn.stop);
                let release = spawn.release;
                self.children
                    .set(id, ChildState::Assigned(Box::new(Assignment { worker_id, policy })));
                self.out.push(Action::Pack(spawn));
                if release {
                    self.release(id);
                }
            }
            Request::Release { id } => self.release(id),
            Request::Stop { id, signal, grace_ms } => {
                let signal = Signal::from_number(signal.into()).unwrap_or(Signal::TERM);
                self.stop(now, id, signal, Duration::from_millis(grace_ms).min(MAX_GRACE));
            }
            Request::Extend { id, grace_ms } => {
                self.trees.extend(id, now + Duration::from_millis(grace_ms).min(MAX_GRACE));
            }
            Request::Signal { id, signal, scope } => {
                if let Ok(signal) = Signal::from_number(signal.into()) {
                    self.trees.signal(id, signal, scope, &mut self.out);
                }
            }
            Request::StopAll { grace_ms, strict } => {
                let grace = Duration::from_millis(grace_ms).min(MAX_GRACE);
                let ids = self.trees.ids();
                self.stop_all.get_or_insert_default().add(ids.iter().copied());
                for id in ids {
                    self.trees.stop_by_policy(now, id, grace, strict, &mut self.out);
                    if let Some(survivors) = self.trees.survivors(id) {
                        self.finish(&Finished { announced: false, ..survivors });
                    }
                }
            }
            Request::Lease { lease, ask_at_ms, kill_at_ms } => {
                let moment = Duration::from_millis;
                self.leases.renew(lease, moment(ask_at_ms), moment(kill_at_ms));
            }
            Request::Ping => self.out.send(wire::Event::Pong),
            Request::Tail { id } => self.out.push(Action::SendTail { id }),
            // What was adopted a moment ago is known when the list was read.
            Request::Roots { id } => self.asked_for_roots.push(id),
            Request::Info => {
                let counts = self.children.counts();
                self.out.send(wire::Event::Info {
                    children: counts.started as u64,
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
            ChildState::Assigned(_) => {}
            // It is being ended, and the BEAM has not heard of that yet.
            ChildState::Discarded => {
                let (step, errno) = (Step::Fork, libc::ESRCH);
                self.out.send(wire::Event::Failed { id, step, errno });
                return;
            }
            _ => {
                warn!(id, "Release of a child that is not assigned; it is ignored");
                return;
            }
        }
        if let Some(ChildState::Assigned(assignment)) = self.children.set(id, ChildState::Released)
        {
            self.trees.insert(id, pid, assignment.worker_id, assignment.policy);
        }
        self.out.push(Action::Release { id });
    }

    fn child_reported(&mut self, id: u64, result: ExecResult) {
        if !matches!(self.children.get(id).map(|child| &child.state), Some(ChildState::Released)) {
            return;
        }
        match result {
            ExecResult::Executed => {
                self.children.set(id, ChildState::Running);
                self.out.send(wire::Event::Started { id });
            }
            ExecResult::Failed(step, errno) => self.fail(id, step, errno),
        }
    }

    /// Ends a child that did not run, and reports that.
    fn fail(&mut self, id: u64, step: Step, errno: i32) {
        if self.trees.contains(id) && !self.trees.is_running(id) {
            self.children.set_stopping(id);
        }
        self.trees.discard(id);
        self.discard(id);
        self.out.send(wire::Event::Failed { id, step, errno });
    }

    /// Ends a child that has not run anything. Its gate closes; the signal is for one that is stopped.
    fn discard(&mut self, id: u64) {
        let Some(pid) = self.children.get(id).map(|child| child.pid) else { return };
        self.children.set(id, ChildState::Discarded);
        self.out.push(Action::Drop { id });
        self.out.signal(Target::Child(pid), Signal::KILL);
    }

    fn stop(&mut self, now: Time, id: u64, signal: Signal, grace: Duration) {
        if self.trees.contains(id) {
            self.trees.stop(now, id, Ask { signal, grace, aborts: true }, &mut self.out);
        } else if self.children.get(id).is_some() {
            self.children.set_stopping(id);
            self.discard(id);
        } else {
            self.out.send(wire::Event::TreeGone { id, killed: 0, survivors: Vec::new() });
        }
    }

    fn beam_gone(&mut self, now: Time, by: &'static str, at_ms: i64) {
        if self.beam_is_gone() {
            return;
        }
        info!(by, beam = self.hello.beam_pid, "the BEAM is gone; all its processes are ended");
        self.shutdown = Some(Shutdown::new(now, by, at_ms));
        for id in self.children.ids(|child| !child.may_run()) {
            self.discard(id);
        }
        // Order: counted before they are asked, each tree by itself so that the first does not wait for the
        // last to be counted.
        for id in self.trees.ids() {
            let (tree, purpose, roots) = (id, Purpose::Count, self.trees.roots_of(id));
            self.out.push(Action::Walk { tree, purpose, roots });
            if self.trees.is_running(id) {
                self.end_by_policy(now, id);
            }
        }
    }

    fn end_by_policy(&mut self, now: Time, id: u64) {
        let grace = Duration::from_millis(self.hello.grace_ms).min(MAX_GRACE);
        self.trees.stop_by_policy(now, id, grace, false, &mut self.out);
    }

    fn reaped(&mut self, now: Time, pid: i32, exit: Exit) {
        self.used.add(&exit);
        let Some(id) = self.children.id_of(pid) else {
            let death = self.trees.member_reaped(now, pid, &exit);
            self.record_death(now, pid, death, &exit);
            return;
        };
        let Some(child) = self.children.remove(id) else { return };
        let death = self.trees.leader_reaped(now, id, &exit);
        self.record_death(now, pid, death, &exit);
        match child.state {
            ChildState::Running | ChildState::Released => {
                self.out.push(Action::SendExited { id, exit });
                return;
            }
            // It never ran. If it was asked to stop, that is done.
            ChildState::Discarded => {
                let announced = child.stopping;
                self.finish(&Finished { id, killed: 0, survivors: Vec::new(), announced });
            }
            // Another process has killed it at the gate.
            _ => {
                let (step, errno) = (Step::Fork, libc::ECHILD);
                self.out.send(wire::Event::Failed { id, step, errno });
            }
        }
        self.out.push(Action::Drop { id });
    }

    fn record_death(&mut self, now: Time, pid: i32, death: Option<Death>, exit: &Exit) {
        let Some(death) = death else { return };
        if let Some(stop_all) = &mut self.stop_all {
            stop_all.record_death(&death);
        }
        if let Some(shutdown) = &mut self.shutdown {
            let mut used = Used::default();
            used.add(exit);
            shutdown.record_death(now, pid, &death, used);
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

    /// Order: after the list was read, or could not be, so that nobody waits for it.
    fn describe_roots(&mut self) {
        for id in std::mem::take(&mut self.asked_for_roots) {
            self.out.send(self.trees.describe_roots(id));
        }
    }

    /// Order: after the list was read, so that survivors are named as they are now.
    fn answer_stop_all(&mut self) {
        let Some(stop_all) = self.stop_all.take_if(|stop_all| stop_all.is_over()) else { return };
        let answer = stop_all.answer(|id| self.trees.roots_of(id));
        self.out.send(answer);
    }

    /// Concludes, if everything has been tried to end all: survivors are those that are in the list now, all
    /// of which are known.
    fn conclude(&mut self, now: Time) {
        let Some(shutdown) = &self.shutdown else { return };
        let waited = now >= shutdown.since + GIVE_UP;
        if waited && self.trees.only_survivors_left() {
            let mut left: Vec<i64> = self.children.pids().map(i64::from).collect();
            left.extend(self.trees.roots().into_iter().map(i64::from));
            left.sort_unstable();
            left.dedup();
            self.conclude_with(now, left);
        }
    }

    fn conclude_with(&mut self, now: Time, survivors: Vec<i64>) {
        let Some(shutdown) = self.shutdown.take() else { return };
        let (run_id, beam_pid) = (self.hello.run_id.clone(), self.hello.beam_pid);
        let obituary = shutdown.obituary(now, run_id, beam_pid, survivors, self.used);
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
    use crate::event::ForkedChild;

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
        let child = ForkedChild { pid, identity, settled_at: now };
        machine.handle(now, Event::Forked { id, asked: true, outcome: Ok(child) });
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
