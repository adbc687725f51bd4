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
    pub state: ChildState,
    /// Whether the BEAM waits for its end.
    pub stopping: bool,
}

/// How far a child is.
#[derive(Debug)]
pub enum ChildState {
    /// It waits at the gate. From the given moment on no other process can have its pid and start time; only
    /// then does the BEAM hear of it.
    Unsettled(Box<Identity>, Time),
    /// It waits at the gate; the BEAM knows of it, and has not assigned it yet.
    Ready,
    /// It waits at the gate; what it will run is packed.
    Assigned(Box<Assignment>),
    /// The gate is open; whether the program runs is not known yet.
    Released,
    /// The program runs.
    Running,
    /// It has ended before it ran anything, or is about to: the gate is closed.
    Discarded,
}

/// What is known of a child before it has a tree.
#[derive(Debug)]
pub struct Assignment {
    /// The worker.
    pub worker_id: Box<str>,
    /// How it is ended.
    pub policy: StopPolicy,
}

/// How many children are in which state: kept up to date, because the loop asks at every turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those that wait at the gate and are not assigned, unsettled ones included.
    pub waiting: usize,
    /// Those on their way from the gate to their program.
    pub released: usize,
    /// Those that run their program, or may.
    pub started: usize,
}

impl Counts {
    fn of(child: &Child) -> Self {
        Self {
            waiting: usize::from(matches!(
                child.state,
                ChildState::Unsettled(..) | ChildState::Ready
            )),
            released: usize::from(matches!(child.state, ChildState::Released)),
            started: usize::from(child.may_run()),
        }
    }

    fn replace(&mut self, before: Self, after: Self) {
        self.waiting = self.waiting + after.waiting - before.waiting;
        self.released = self.released + after.released - before.released;
        self.started = self.started + after.started - before.started;
    }
}

impl Child {
    /// Returns whether it may have executed its program.
    pub fn may_run(&self) -> bool {
        matches!(self.state, ChildState::Released | ChildState::Running)
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
    /// Unsettled children, of which the BEAM does not know yet, in the order of their forks.
    unsettled: Vec<u64>,
}

impl Children {
    /// Returns no children yet, whose ids count up from here.
    pub fn counted_from(last_id: u64) -> Self {
        Self { first_id: last_id, last_id, ..Self::default() }
    }

    /// Returns the ids before this one that have its lineage.
    pub fn same_lineage(&self, id: u64) -> impl Iterator<Item = u64> + use<> {
        let rounds = (id - self.first_id) / lineage::CHILDREN;
        (1..=rounds).map(move |round| id - round * lineage::CHILDREN)
    }

    /// Counts as if so many had been forked.
    #[cfg(test)]
    pub fn skip(&mut self, count: u64) {
        self.last_id += count;
    }

    /// Returns an id that no child has had.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Adds a child that was just forked, with its identity.
    pub fn insert(&mut self, id: u64, pid: i32, identity: Identity, settled_at: Time) {
        let state = ChildState::Unsettled(Box::new(identity), settled_at);
        let child = Child { pid, state, stopping: false };
        self.counts.replace(Counts::default(), Counts::of(&child));
        self.by_pid.insert(pid, id);
        self.by_id.insert(id, child);
        self.unsettled.push(id);
    }

    /// Returns the children that are settled by now, of which the BEAM may hear, with their identities.
    pub fn settle(&mut self, now: Time) -> Vec<(u64, i32, Identity)> {
        let mut settled = Vec::new();
        let unsettled = std::mem::take(&mut self.unsettled);
        for id in unsettled {
            match self.get(id).map(|child| (&child.state, child.pid)) {
                Some((ChildState::Unsettled(_, at), _)) if *at > now => self.unsettled.push(id),
                Some((ChildState::Unsettled(identity, _), pid)) => {
                    // It waits at its gate, unreaped, and its tick is over: no other process had or will have
                    // its pid and start time.
                    settled.push((id, pid, Identity { settled: true, ..(**identity).clone() }));
                    self.set(id, ChildState::Ready);
                }
                _ => {}
            }
        }
        settled
    }

    /// Returns when the next unsettled child is settled.
    pub fn deadline(&self) -> Option<Time> {
        let at = |id: &u64| match self.get(*id)?.state {
            ChildState::Unsettled(_, at) => Some(at),
            _ => None,
        };
        self.unsettled.iter().filter_map(at).min()
    }

    /// Returns a child by its id.
    pub fn get(&self, id: u64) -> Option<&Child> {
        self.by_id.get(&id)
    }

    /// Returns the id of the child with this pid.
    pub fn id_of(&self, pid: i32) -> Option<u64> {
        self.by_pid.get(&pid).copied()
    }

    /// Changes the state of a child. Returns the state before.
    pub fn set(&mut self, id: u64, state: ChildState) -> Option<ChildState> {
        let child = self.by_id.get_mut(&id)?;
        let before = Counts::of(child);
        let last = std::mem::replace(&mut child.state, state);
        self.counts.replace(before, Counts::of(child));
        Some(last)
    }

    /// Notes that the BEAM waits for the end of a child.
    pub fn set_stopping(&mut self, id: u64) {
        if let Some(child) = self.by_id.get_mut(&id) {
            child.stopping = true;
        }
    }

    /// Removes a child that has been reaped.
    pub fn remove(&mut self, id: u64) -> Option<Child> {
        let child = self.by_id.remove(&id)?;
        self.counts.replace(Counts::of(&child), Counts::default());
        self.by_pid.remove(&child.pid);
        Some(child)
    }

    /// Returns the ids of the children of which `condition` is true.
    pub fn ids(&self, condition: impl Fn(&Child) -> bool) -> Vec<u64> {
        self.by_id.iter().filter(|(_, child)| condition(child)).map(|(id, _)| *id).collect()
    }

    /// Returns the ids of so many children that wait for the BEAM.
    pub fn waiting(&self, count: usize) -> Vec<u64> {
        let mut ids = self.ids(|child| matches!(child.state, ChildState::Ready));
        ids.truncate(count);
        ids
    }

    /// Returns the pids of all children.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.by_pid.keys().copied()
    }

    /// Returns how many children are in which state.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}
