//! A kernel with processes, parents, groups, sessions, signals and few pids, so that pids come back soon.

use std::collections::BTreeMap;
use std::time::Duration;

use snakepit_core::Signal;

/// The guardian's own pid.
pub const GUARDIAN: i32 = 2;
/// Pids start over behind this one.
const LAST_PID: i32 = 120;
/// No more processes than this.
const ROOM: usize = 70;

/// A number that no two processes share, unlike a pid.
pub type Serial = u64;

#[derive(Clone, Debug)]
pub struct Process {
    pub serial: Serial,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    pub born: Duration,
    /// The limit that marks descendants.
    pub lineage: Option<u64>,
    /// Whether its environment names the worker.
    pub marked: Option<u64>,
    /// The child of the guardian that it descends from, in truth. None for bystanders.
    pub tree: Option<u64>,
    pub state: State,
    pub nature: Nature,
    /// How many times it was asked to end.
    pub asked: u32,
    /// Whether it has left its group after it was asked.
    pub moved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Alive,
    Stopped,
    /// With the signal that ended it, 0 for none.
    Zombie(i32),
}

/// What a process does about signals, and by itself.
#[expect(clippy::struct_excessive_bools, reason = "each is a habit of its own")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Nature {
    pub ignores_term: bool,
    /// In a system call that does not end: SIGKILL waits.
    pub stuck: bool,
    pub kill_pending: bool,
    /// The kernel refuses signals to it, with this errno.
    pub refuses: Option<i32>,
    /// `/proc` does not show it.
    pub hidden: bool,
    /// Forks whenever it can.
    pub bomb: bool,
    /// Reaps its children at once.
    pub reaps: bool,
}

pub struct Kernel {
    pub now: Duration,
    pub processes: BTreeMap<i32, Process>,
    /// The guardian's list of children, in its order.
    pub children: Vec<i32>,
    /// When those that hang or refuse were last let go.
    pub let_go_at: Duration,
    /// Those that were killed without having been asked before, and their trees.
    pub killed_unasked: Vec<(i32, Option<u64>)>,
    last_pid: i32,
    last_serial: Serial,
    random: u64,
}

impl Kernel {
    pub fn new(seed: u64) -> Self {
        Self {
            now: Duration::from_secs(1),
            processes: BTreeMap::new(),
            children: Vec::new(),
            let_go_at: Duration::ZERO,
            killed_unasked: Vec::new(),
            last_pid: 10,
            last_serial: 0,
            random: seed | 1,
        }
    }

    /// A number below `bound`.
    pub fn random(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random >> 33).unwrap() % bound.max(1)
    }

    fn free_pid(&mut self) -> Option<i32> {
        for _ in 0..LAST_PID {
            self.last_pid = if self.last_pid >= LAST_PID { 10 } else { self.last_pid + 1 };
            let pid = self.last_pid;
            let taken = self.processes.iter().any(|(number, process)| {
                *number == pid || process.group == pid || process.session == pid
            });
            if !taken {
                return Some(pid);
            }
        }
        None
    }

    /// A new process; `None` if there is no room.
    pub fn spawn(&mut self, mut process: Process) -> Option<i32> {
        if self.processes.len() >= ROOM {
            return None;
        }
        let pid = self.free_pid()?;
        self.last_serial += 1;
        process.serial = self.last_serial;
        process.born = self.now;
        if process.parent == GUARDIAN {
            self.children.push(pid);
        }
        self.processes.insert(pid, process);
        Some(pid)
    }

    /// `fork(2)`.
    pub fn fork(&mut self, pid: i32) -> Option<i32> {
        let parent = self.processes.get(&pid)?;
        if parent.state != State::Alive || parent.nature.stuck {
            return None;
        }
        let parent = parent.clone();
        let nature = Nature { stuck: false, kill_pending: false, ..parent.nature };
        self.spawn(Process { parent: pid, nature, asked: 0, moved: false, ..parent })
    }

    /// `setsid(2)`.
    pub fn setsid(&mut self, pid: i32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            if process.group != pid {
                process.group = pid;
                process.session = pid;
                process.moved = process.asked > 0;
            }
        }
    }

    /// A leader of a session, as each child of the guardian is.
    pub fn lead(&mut self, pid: i32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.group = pid;
            process.session = pid;
        }
    }

    /// The end of a process: first its children get another parent, then its own parent is notified.
    pub fn exit(&mut self, pid: i32, signal: i32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if matches!(process.state, State::Zombie(_)) {
            return;
        }
        process.state = State::Zombie(signal);
        let (parent, below_guardian) = (process.parent, process.tree.is_some());
        let orphans: Vec<i32> = self.of_parent(pid);
        for orphan in orphans {
            if below_guardian {
                self.children.push(orphan);
            }
            let heir = if below_guardian { GUARDIAN } else { 1 };
            if let Some(orphan) = self.processes.get_mut(&orphan) {
                orphan.parent = heir;
            }
            if heir == 1 {
                self.bury_if_dead(orphan);
            }
        }
        let reaped = match self.processes.get(&parent) {
            Some(parent) => parent.nature.reaps && parent.state == State::Alive,
            None => parent == 1,
        };
        if reaped {
            self.processes.remove(&pid);
        }
    }

    fn bury_if_dead(&mut self, pid: i32) {
        if matches!(self.processes.get(&pid).map(|one| one.state), Some(State::Zombie(_))) {
            self.processes.remove(&pid);
        }
    }

    pub fn of_parent(&self, pid: i32) -> Vec<i32> {
        self.processes.iter().filter(|(_, one)| one.parent == pid).map(|(pid, _)| *pid).collect()
    }

    /// `kill(2)` for one process. A bystander that is signalled ends the simulation.
    pub fn signal(&mut self, pid: i32, signal: Signal) -> Result<(), i32> {
        let Some(process) = self.processes.get_mut(&pid) else { return Err(libc::ESRCH) };
        assert!(process.tree.is_some(), "{signal} was sent to bystander {pid}");
        if let Some(errno) = process.nature.refuses {
            return Err(errno);
        }
        if matches!(process.state, State::Zombie(_)) {
            return Ok(());
        }
        if signal == Signal::KILL && process.asked == 0 {
            self.killed_unasked.push((pid, process.tree));
        }
        match signal {
            Signal::KILL if process.nature.stuck => process.nature.kill_pending = true,
            Signal::KILL => self.exit(pid, Signal::KILL.as_raw()),
            Signal::STOP => process.state = State::Stopped,
            Signal::CONT => process.state = State::Alive,
            // Whoever is deaf for the stop signal may hear this one.
            signal if signal.as_raw() == libc::SIGABRT => {
                if !process.nature.bomb && !process.nature.stuck {
                    self.exit(pid, libc::SIGABRT);
                }
            }
            _ => {
                process.asked += 1;
                if !process.nature.ignores_term && !process.nature.stuck {
                    self.exit(pid, signal.as_raw());
                }
            }
        }
        Ok(())
    }

    pub fn signal_group(&mut self, group: i32, signal: Signal) -> Result<(), i32> {
        let of_group = |one: &Process| one.group == group;
        let members: Vec<i32> =
            self.processes.iter().filter(|(_, one)| of_group(one)).map(|(pid, _)| *pid).collect();
        let mut result = Err(libc::ESRCH);
        for pid in members {
            let one = self.signal(pid, signal);
            result = if result.is_ok() { result } else { one };
        }
        result
    }

    /// What happens between two actions: bombs fork, parents reap.
    pub fn jiffy(&mut self) {
        // Time is short, most of the time.
        if self.random(3) > 0 {
            return;
        }
        let pids: Vec<i32> = self.processes.keys().copied().collect();
        for pid in pids {
            let Some(process) = self.processes.get(&pid) else { continue };
            let (nature, alive) = (process.nature, process.state == State::Alive);
            if nature.bomb && alive && self.random(3) == 0 {
                if let Some(child) = self.fork(pid) {
                    if self.random(2) == 0 {
                        self.setsid(child);
                    }
                }
            }
            let parent = self.processes.get(&pid).map_or(0, |one| one.parent);
            let attends = self.processes.get(&parent).is_some_and(|one| {
                one.state == State::Alive && (one.nature.reaps || one.tree.is_none())
            });
            if attends {
                self.bury_if_dead(pid);
            }
        }
    }

    /// The guardian waits for a child that has ended.
    pub fn reap(&mut self, pid: i32) -> Option<i32> {
        let State::Zombie(signal) = self.processes.get(&pid)?.state else { return None };
        self.children.retain(|child| *child != pid);
        self.processes.remove(&pid);
        Some(signal)
    }

    /// Those that can still run, below the guardian.
    pub fn living(&self) -> impl Iterator<Item = (i32, &Process)> {
        let lives = |one: &Process| one.tree.is_some() && !matches!(one.state, State::Zombie(_));
        self.processes.iter().filter(move |(_, one)| lives(one)).map(|(pid, one)| (*pid, one))
    }
}
