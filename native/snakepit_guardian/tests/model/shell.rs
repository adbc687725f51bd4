//! What the real shell does, on the model of a kernel, with checks at every step.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use serde_bytes::ByteBuf;
use snakepit_core::identity::Identity;
use snakepit_core::lineage::Lineage;
use snakepit_core::run_id::RunId;
use snakepit_core::wire::{self, Abort, Exit, Hello, KillMode, Request, Spawn, StopPolicy};
use snakepit_core::{Pid, Signal};
use snakepit_guardian::event::{Adoptee, ExecResult, ForkedChild, Member, Purpose, Target};
use snakepit_guardian::{Action, Event, Machine};

use super::kernel::{GUARDIAN, Kernel, Nature, Process, Serial, State};

/// What every case has as its grace period.
pub const GRACE: Duration = Duration::from_millis(200);

pub struct Shell {
    pub kernel: Kernel,
    pub machine: Machine,
    run_id: RunId,
    /// Children that the BEAM knows of and that wait.
    pub ready: Vec<u64>,
    /// Children that were released, by pid.
    pub out: BTreeMap<u64, i32>,
    released: HashMap<i32, u64>,
    /// What released children become when their program runs.
    plans: HashMap<i32, Nature>,
    held: HashMap<i32, Serial>,
    reaped_since_list: bool,
    list_position: usize,
    /// Trees whose end was reported.
    pub gone: HashSet<u64>,
    /// Trees that a `StopAll` is for.
    pub scope: Option<HashSet<u64>>,
    pub concluded: Option<Vec<i64>>,
    /// How long the machine was suspended: the clock of leases goes on then, and no other.
    pub suspended: Duration,
    /// When what runs under a lease is killed, by its number.
    pub leases: HashMap<u64, Duration>,
    /// The leases of children.
    pub under: HashMap<u64, u64>,
    /// Whether the list of children cannot be read now.
    pub list_fails: bool,
    /// Whether walks leave some out.
    pub forgetful: bool,
}

impl Shell {
    pub fn new(seed: u64) -> Self {
        let run_id = RunId::from_bytes(b"k3x9a2p").unwrap();
        let hello = Hello {
            version: wire::VERSION,
            beam_pid: 1,
            run_id: "k3x9a2p".into(),
            run_directory: ByteBuf::new(),
            grace_ms: GRACE.as_millis().try_into().unwrap(),
            log_level: "none".into(),
            tail_bytes: 0,
            ahead: 2,
            first_id: 0,
        };
        Self {
            kernel: Kernel::new(seed),
            machine: Machine::new(hello, run_id),
            run_id,
            ready: Vec::new(),
            out: BTreeMap::new(),
            released: HashMap::new(),
            plans: HashMap::new(),
            held: HashMap::new(),
            reaped_since_list: true,
            list_position: 0,
            gone: HashSet::new(),
            scope: None,
            concluded: None,
            suspended: Duration::ZERO,
            leases: HashMap::new(),
            under: HashMap::new(),
            list_fails: false,
            forgetful: false,
        }
    }

    pub fn dispatch(&mut self, event: Event) {
        self.machine.handle(self.kernel.now, event);
    }

    pub fn request(&mut self, request: Request) {
        if matches!(request, Request::Spawn(_) | Request::Release { .. }) {
            self.pass_lease_time();
        }
        self.dispatch(Event::Request(request));
        self.perform_all();
    }

    /// One turn of the loop.
    pub fn turn(&mut self) {
        self.report_exec_results();
        self.reap();
        self.pass_lease_time();
        self.check_leases();
        self.machine.pass_time(self.kernel.now);
        self.perform_all();
    }

    pub fn perform_all(&mut self) {
        while let Some(action) = self.machine.next_action() {
            self.kernel.jiffy();
            self.perform(action);
        }
        self.held.clear();
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Send(event) => self.receive(event),
            Action::SendExited { id, .. } => {
                self.out.remove(&id);
            }
            Action::SendTail { .. } | Action::RecordAdopted(_) => {}
            Action::Release { id } => {
                assert!(!self.is_over(id), "{id} is released without a lease that lasts");
            }
            Action::Pack(spawn) => {
                if self.kernel.random(20) == 0 {
                    let (step, errno) = (wire::Step::Stdio, libc::EMFILE);
                    self.dispatch(Event::PackFailed { id: spawn.id, step, errno });
                }
            }
            Action::Drop { id } => {
                self.out.remove(&id);
                self.ready.retain(|one| *one != id);
            }
            Action::Fork(ids) => ids.into_iter().for_each(|(id, asked)| self.fork(id, asked)),
            Action::Signal { target, signal } => self.signal(target, signal),
            Action::List => self.list(),
            Action::Walk { tree, purpose, roots } => self.walk(tree, purpose, &roots),
            Action::Conclude(obituary) => {
                let left: Vec<_> = self.kernel.living().collect();
                let named = !obituary.survivors.is_empty();
                assert!(left.is_empty() || named, "the guardian ends and leaves {left:?}");
                self.concluded = Some(obituary.survivors);
            }
        }
    }

    fn fork(&mut self, id: u64, asked: bool) {
        let process = Process {
            serial: 0,
            parent: GUARDIAN,
            group: 0,
            session: 0,
            born: Duration::ZERO,
            lineage: Some(Lineage::new(self.run_id, id).to_limit()),
            marked: Some(id),
            tree: Some(id),
            state: State::Alive,
            nature: Nature::default(),
            asked: 0,
            moved: false,
        };
        let pid = if self.kernel.random(30) == 0 { None } else { self.kernel.spawn(process) };
        let outcome = pid.ok_or(libc::EAGAIN).map(|pid| {
            self.kernel.lead(pid);
            let wait = Duration::from_millis(10 * self.kernel.random(2) as u64);
            ForkedChild { pid, identity: identity(pid), settled_at: self.kernel.now + wait }
        });
        if let Ok(child) = &outcome {
            self.released.insert(child.pid, id);
        }
        self.dispatch(Event::Forked { id, asked, outcome });
    }

    /// Assigns and releases a waiting child, in one request or in two.
    pub fn start(&mut self, mode: KillMode, nature: Nature) {
        let Some(id) = self.ready.pop() else { return };
        // One in two has an abort signal, with a time of its own.
        let abort =
            (self.kernel.random(2) == 0).then_some(Abort { signal: libc::SIGABRT, grace_ms: 50 });
        let stop = StopPolicy { mode, abort, ..StopPolicy::default() };
        let release = self.kernel.random(2) == 0;
        let lease = (self.kernel.random(3) == 0).then(|| self.kernel.random(4) as u64);
        self.under.extend(lease.map(|lease| (id, lease)));
        let worker_id = format!("w{id}");
        let spawn = Spawn { id, worker_id, stop, lease, release, ..Spawn::default() };
        self.request(Request::Spawn(Box::new(spawn)));
        let pid = self.released.iter().find(|(_, one)| **one == id).map(|(pid, _)| *pid);
        let Some(pid) = pid.filter(|pid| self.kernel.processes.contains_key(pid)) else { return };
        if !release {
            self.request(Request::Release { id });
        }
        if self.machine.released(pid) == Some(id) {
            self.out.insert(id, pid);
            self.plans.insert(pid, nature);
        }
    }

    /// A released child reports whether its program runs, in its own time.
    fn report_exec_results(&mut self) {
        let waiting: Vec<(u64, i32)> = self.out.iter().map(|(id, pid)| (*id, *pid)).collect();
        for (id, pid) in waiting {
            if self.machine.released(pid) == Some(id) && self.kernel.random(2) == 0 {
                let result = if self.kernel.random(10) == 0 {
                    self.kernel.exit(pid, 0);
                    ExecResult::Failed(wire::Step::Execute, libc::ENOENT)
                } else {
                    let nature = self.plans.remove(&pid).unwrap_or_default();
                    if let Some(process) = self.kernel.processes.get_mut(&pid) {
                        process.nature = nature;
                    }
                    ExecResult::Executed
                };
                self.dispatch(Event::Gate { id, result });
                self.perform_all();
            }
        }
    }

    fn reap(&mut self) {
        loop {
            let dead = self.kernel.children.iter().copied().find(|pid| {
                matches!(
                    self.kernel.processes.get(pid).map(|one| one.state),
                    Some(State::Zombie(_))
                )
            });
            let Some(pid) = dead else { break };
            if !self.machine.knows(pid) {
                let adoptee = self.observe(pid);
                self.dispatch(Event::Adopted(adoptee));
            }
            if let Some(id) = self.machine.released(pid) {
                self.dispatch(Event::Gate { id, result: ExecResult::Executed });
            }
            self.perform_all();
            let Some(signal) = self.kernel.reap(pid) else { break };
            self.released.remove(&pid);
            self.reaped_since_list = true;
            let signal = (signal != 0).then_some(signal);
            self.dispatch(Event::Reaped { pid, exit: Exit { signal, ..Exit::default() } });
            if self.kernel.random(2) == 0 {
                self.kernel.jiffy();
            }
        }
        if self.kernel.children.is_empty() {
            self.dispatch(Event::NoChildren);
        }
        self.perform_all();
    }

    /// The list grows while it is read.
    fn list(&mut self) {
        if self.list_fails {
            self.reaped_since_list = true;
            self.dispatch(Event::ListFailed);
            return;
        }
        if std::mem::take(&mut self.reaped_since_list) {
            self.list_position = 0;
        }
        while let Some(pid) = self.kernel.children.get(self.list_position).copied() {
            self.list_position += 1;
            if !self.machine.knows(pid) {
                let adoptee = self.observe(pid);
                self.dispatch(Event::Adopted(adoptee));
            }
            self.kernel.jiffy();
        }
        self.dispatch(Event::Listed);
    }

    fn walk(&mut self, tree: u64, purpose: Purpose, roots: &[i32]) {
        let mut members: Vec<Member> = roots.iter().map(|pid| self.member(*pid)).collect();
        let mut next = 0;
        while let Some(parent) = members.get(next).map(|member| member.pid) {
            next += 1;
            let hidden = self.kernel.processes.get(&parent).is_none_or(|one| one.nature.hidden);
            // Lists are exact where nothing moves.
            let moves =
                self.kernel.processes.get(&parent).is_some_and(|one| one.state == State::Alive);
            for pid in if hidden { Vec::new() } else { self.kernel.of_parent(parent) } {
                let forgotten = self.forgetful && moves && self.kernel.random(4) == 0;
                let visible = self.kernel.processes.get(&pid).is_some_and(|one| !one.nature.hidden);
                if visible && !forgotten {
                    let member = self.member(pid);
                    members.push(member);
                    self.held.insert(pid, self.kernel.processes[&pid].serial);
                }
                self.kernel.jiffy();
            }
        }
        self.dispatch(Event::Walked { tree, purpose, members });
    }

    fn member(&self, pid: i32) -> Member {
        let process = self.kernel.processes.get(&pid);
        let shown = process.filter(|one| !one.nature.hidden);
        // In ticks, as the kernel has them.
        let tick = shown.map(|one| u64::try_from(one.born.as_millis() / 10).unwrap());
        Member {
            pid,
            start: tick.unwrap_or(0),
            group: process.map_or(0, |one| one.group),
            started: tick.map(|tick| Duration::from_millis(10 * tick)),
            at_rest: shown.is_none_or(|one| one.state != State::Alive || one.nature.stuck),
        }
    }

    fn observe(&self, pid: i32) -> Adoptee {
        let process = &self.kernel.processes[&pid];
        Adoptee {
            member: self.member(pid),
            session: process.session,
            lineage: process.lineage.and_then(Lineage::from_limit),
            child: process.marked.filter(|_| !process.nature.hidden),
            identity: None,
        }
    }

    /// A signal may only go to a child that has not been reaped, or to one that a walk holds.
    fn signal(&mut self, target: Target, signal: Signal) {
        let (Target::Child(pid) | Target::Group(pid) | Target::Member(pid)) = target;
        let is_child = self.kernel.children.contains(&pid);
        let result = match target {
            Target::Group(_) => {
                assert!(is_child, "{signal} to the group of {pid}, which is no child");
                self.kernel.signal_group(pid, signal)
            }
            Target::Member(_) if self.held.contains_key(&pid) => {
                let serial = self.kernel.processes.get(&pid).map(|one| one.serial);
                if serial == self.held.get(&pid).copied() {
                    self.kernel.signal(pid, signal)
                } else {
                    Ok(())
                }
            }
            Target::Child(_) | Target::Member(_) => {
                assert!(is_child, "{signal} to {pid}, which is no child");
                self.kernel.signal(pid, signal)
            }
        };
        if let Err(errno) = result {
            if errno != libc::ESRCH {
                self.dispatch(Event::Refused { pid, errno });
            }
        }
    }

    fn receive(&mut self, event: wire::Event) {
        match event {
            wire::Event::Ready { id, .. } => self.ready.push(id),
            wire::Event::TreeGone { id, survivors, .. } => {
                self.check_gone(id, &survivors);
                self.check_survivors(&survivors);
                assert!(self.gone.insert(id), "the end of {id} is reported twice");
            }
            wire::Event::AllGone { survivors, .. } => {
                for id in self.scope.take().unwrap_or_default() {
                    self.check_gone(id, &survivors);
                }
            }
            _ => {}
        }
    }

    /// No process of this tree is left, unless survivors are named.
    fn check_gone(&self, id: u64, survivors: &[i64]) {
        let left = |one: &Process| one.tree == Some(id) && one.lineage.is_some();
        for (pid, process) in self.kernel.living().filter(|(_, one)| left(one)) {
            // A survivor may have died since, and left a process behind that is not named.
            let named = !survivors.is_empty();
            assert!(named, "{id} is said to be gone, but {pid} is there: {process:?}");
        }
    }

    /// No process is given up that could be ended.
    fn check_survivors(&self, survivors: &[i64]) {
        // A moment ago it could not, and that was the last try for a second.
        if self.kernel.now < self.kernel.let_go_at + Duration::from_secs(1) {
            return;
        }
        for pid in survivors {
            let process = self.kernel.processes.get(&i32::try_from(*pid).unwrap());
            let nature = process.map(|one| one.nature).unwrap_or_default();
            assert!(
                nature.stuck || nature.refuses.is_some() || nature.bomb,
                "{pid} could be ended"
            );
        }
    }
}

fn identity(pid: i32) -> Identity {
    Identity {
        pid: Pid::new(pid.into()).unwrap(),
        start: 0,
        settled: false,
        uid: None,
        boot: [0; 16],
        namespace: 0,
        handle: None,
    }
}
