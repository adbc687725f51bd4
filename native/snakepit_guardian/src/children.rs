//! The children that the guardian forked, from the fork to the reaping.

use std::collections::HashMap;

use snakepit_core::wire::StopPolicy;
use snakepit_core::{Identity, lineage};

use crate::event::Time;

/// A child of the guardian's own making.
#[derive(Debug)]
pub struct Child {
    /// Its pid.
    pub pid: i32,
    /// How far it is.
    pub state: State,
    /// Whether somebody waits to hear that it is gone.
    pub stopping: bool,
}

/// How far a child is.
#[derive(Debug)]
pub enum State {
    /// Waits at the gate. From the given moment on nobody else can have its pid and start time; only
    /// then is the BEAM told of it.
    Newborn(Box<Identity>, Time),
    /// Waits at the gate; the BEAM knows of it, and nobody has asked for it yet.
    Ready,
    /// Waits at the gate; what it will run is packed.
    Assigned(Box<Plan>),
    /// The gate is open; whether the program runs is not known yet.
    Released,
    /// The program runs.
    Running,
    /// Ended before it ran anything, or told to: the gate is closed.
    Discarded,
}

/// What is known of a child before it has a tree.
#[derive(Debug)]
pub struct Plan {
    /// The worker.
    pub worker_id: Box<str>,
    /// How it is ended.
    pub policy: StopPolicy,
}

/// How many children are in what state. The loop asks at every turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Wait at the gate for someone to ask for them, newborn ones included.
    pub waiting: usize,
    /// Are on their way from the gate to their program.
    pub released: usize,
    /// Run their program, or may.
    pub out: usize,
}

impl Counts {
    fn of(child: &Child) -> Self {
        Self {
            waiting: usize::from(matches!(child.state, State::Newborn(..) | State::Ready)),
            released: usize::from(matches!(child.state, State::Released)),
            out: usize::from(child.is_out()),
        }
    }

    fn replace(&mut self, before: Self, after: Self) {
        self.waiting = self.waiting + after.waiting - before.waiting;
        self.released = self.released + after.released - before.released;
        self.out = self.out + after.out - before.out;
    }
}

impl Child {
    /// Whether it may have executed its program.
    pub fn is_out(&self) -> bool {
        matches!(self.state, State::Released | State::Running)
    }
}

/// All children, by the number that the BEAM knows them by and by pid.
#[derive(Debug, Default)]
pub struct Children {
    by_id: HashMap<u64, Child>,
    by_pid: HashMap<i32, u64>,
    first_id: u64,
    last_id: u64,
    counts: Counts,
    /// Newborns that the BEAM has not been told of, in the order of their forks.
    newborn: Vec<u64>,
}

impl Children {
    /// Ids count up from here.
    pub fn counted_from(last_id: u64) -> Self {
        Self { first_id: last_id, last_id, ..Self::default() }
    }

    /// The numbers before this one that have its lineage.
    pub fn namesakes(&self, id: u64) -> impl Iterator<Item = u64> + use<> {
        let rounds = (id - self.first_id) / lineage::CHILDREN;
        (1..=rounds).map(move |round| id - round * lineage::CHILDREN)
    }

    /// As if so many had been forked.
    #[cfg(test)]
    pub fn skip(&mut self, count: u64) {
        self.last_id += count;
    }

    /// A number that no child has had.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// One that was just forked, and who it is.
    pub fn insert(&mut self, id: u64, pid: i32, identity: Identity, settled_at: Time) {
        let state = State::Newborn(Box::new(identity), settled_at);
        let child = Child { pid, state, stopping: false };
        self.counts.replace(Counts::default(), Counts::of(&child));
        self.by_pid.insert(pid, id);
        self.by_id.insert(id, child);
        self.newborn.push(id);
    }

    /// Those that the BEAM may be told of by now, and who they are.
    pub fn settle(&mut self, now: Time) -> Vec<(u64, i32, Identity)> {
        let mut settled = Vec::new();
        let newborn = std::mem::take(&mut self.newborn);
        for id in newborn {
            match self.get(id).map(|child| (&child.state, child.pid)) {
                Some((State::Newborn(_, at), _)) if *at > now => self.newborn.push(id),
                Some((State::Newborn(identity, _), pid)) => {
                    // It waits at its gate, unreaped, although its tick is over: nobody else was or will
                    // be it.
                    settled.push((id, pid, Identity { settled: true, ..(**identity).clone() }));
                    self.set(id, State::Ready);
                }
                _ => {}
            }
        }
        settled
    }

    /// When the next newborn is settled.
    pub fn deadline(&self) -> Option<Time> {
        let at = |id: &u64| match self.get(*id)?.state {
            State::Newborn(_, at) => Some(at),
            _ => None,
        };
        self.newborn.iter().filter_map(at).min()
    }

    /// A child by its number.
    pub fn get(&self, id: u64) -> Option<&Child> {
        self.by_id.get(&id)
    }

    /// The number of the child with this pid.
    pub fn id_of(&self, pid: i32) -> Option<u64> {
        self.by_pid.get(&pid).copied()
    }

    /// It is in another state from now on. Returns the one before.
    pub fn set(&mut self, id: u64, state: State) -> Option<State> {
        let child = self.by_id.get_mut(&id)?;
        let before = Counts::of(child);
        let last = std::mem::replace(&mut child.state, state);
        self.counts.replace(before, Counts::of(child));
        Some(last)
    }

    /// Somebody waits to hear that it is gone.
    pub fn set_stopping(&mut self, id: u64) {
        if let Some(child) = self.by_id.get_mut(&id) {
            child.stopping = true;
        }
    }

    /// It has been reaped.
    pub fn remove(&mut self, id: u64) -> Option<Child> {
        let child = self.by_id.remove(&id)?;
        self.counts.replace(Counts::of(&child), Counts::default());
        self.by_pid.remove(&child.pid);
        Some(child)
    }

    /// Numbers of those of which `condition` is true.
    pub fn ids(&self, condition: impl Fn(&Child) -> bool) -> Vec<u64> {
        self.by_id.iter().filter(|(_, child)| condition(child)).map(|(id, _)| *id).collect()
    }

    /// The pids of all of them.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.by_pid.keys().copied()
    }

    /// How many are how far.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
