//! What can happen, and what can be done about it.

use std::collections::VecDeque;
use std::time::Duration;

use snakepit_core::lineage::Lineage;
use snakepit_core::obituary::Obituary;
use snakepit_core::wire::{self, Exit, Request, Spawn, Step};
use snakepit_core::{Identity, Signal};

/// A moment: how long the guardian has run.
pub type Time = Duration;

/// What has happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// The BEAM asks for something.
    Request(Request),
    /// The BEAM is gone.
    BeamGone {
        /// How it was noticed.
        by: &'static str,
        /// Milliseconds since the epoch, for people.
        at_ms: i64,
    },
    /// A fork has succeeded or failed.
    Forked {
        /// The child.
        id: u64,
        /// Whether the BEAM asked for one more than are kept ahead.
        asked: bool,
        /// Who it is, or the errno.
        outcome: Result<ForkedChild, i32>,
    },
    /// A fork was not tried, because one before it in the batch failed.
    ForkNotTried {
        /// As for [`Event::Forked`].
        asked: bool,
    },
    /// What a child is to run could not be prepared.
    PackFailed {
        /// The child.
        id: u64,
        /// What failed.
        step: Step,
        /// Why.
        errno: i32,
    },
    /// A released child has reported through its gate.
    Gate {
        /// The child.
        id: u64,
        /// Whether its program runs.
        result: ExecResult,
    },
    /// This process has become the guardian's child by the death of its parent.
    Adopted(Adoptee),
    /// A child has been reaped.
    Reaped {
        /// Its pid, which may be another's from now on.
        pid: i32,
        /// How it ended.
        exit: Exit,
    },
    /// The guardian's own list of children was read to its end, after everything that was reaped. Each in it
    /// that was not known came as [`Event::Adopted`].
    Listed,
    /// The list could not be read: who is there is not known.
    ListFailed,
    /// The list was read, and it cannot be told yet whose some of them are.
    ListUnsettled,
    /// What is below the roots of a tree, as far as it could be seen. Answers [`Action::Walk`].
    Walked {
        /// The tree.
        tree: u64,
        /// What the walk was for.
        purpose: Purpose,
        /// The processes, roots included.
        members: Vec<Member>,
    },
    /// The kernel refused a signal.
    Refused {
        /// For this process, or the group that it leads.
        pid: i32,
        /// Why.
        errno: i32,
    },
    /// The kernel says that there is no child at all, and so no descendant.
    NoChildren,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send a frame to the BEAM.
    Send(wire::Event),
    /// Send `Exited` with the end of the child's output, and forget the child.
    SendExited {
        /// The child.
        id: u64,
        /// How it ended.
        exit: Exit,
    },
    /// Send `Tail` with the end of the child's output.
    SendTail {
        /// The child.
        id: u64,
    },
    /// Prepare what a waiting child is to run. Answered by [`Event::PackFailed`] if it fails.
    Pack(Box<Spawn>),
    /// Open the gate, with what was packed.
    Release {
        /// The child.
        id: u64,
    },
    /// Free everything that is held for a child, its gate included.
    Drop {
        /// The child.
        id: u64,
    },
    /// Fork these. Each is answered by [`Event::Forked`].
    Fork(Vec<(u64, bool)>),
    /// Send a signal.
    Signal {
        /// The process or group.
        target: Target,
        /// The signal.
        signal: Signal,
    },
    /// Read the list of children. Answered by [`Event::Adopted`]s and [`Event::Listed`].
    List,
    /// Find what is below these children. Answered by [`Event::Walked`].
    Walk {
        /// The tree.
        tree: u64,
        /// What for.
        purpose: Purpose,
        /// Unreaped children of the guardian.
        roots: Vec<i32>,
    },
    /// Record an adopted process, for the next start.
    RecordAdopted(Identity),
    /// Everything has ended: write the obituary and end.
    Conclude(Box<Obituary>),
}

/// The process or group that a signal is for: a child of the guardian that it has not reaped, whose pid
/// cannot change hands, or a process of the walk just before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A child of the guardian, forked or adopted.
    Child(i32),
    /// The group that a forked child leads.
    Group(i32),
    /// A member of the last walk.
    Member(i32),
}

/// What a walk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The stop signal, for those that have not had it.
    Ask,
    /// SIGKILL.
    Kill,
    /// SIGSTOP, until no new process is found; then SIGKILL.
    Freeze,
    /// This signal, for which the BEAM has asked.
    Send(Signal),
    /// No signal: which processes there are when the BEAM is gone, for the obituary.
    Count,
}

/// A child that was just forked.
#[derive(Clone, Debug)]
pub struct ForkedChild {
    /// Its pid.
    pub pid: i32,
    /// Who it is.
    pub identity: Identity,
    /// From when on no other process can have its pid and start time.
    pub settled_at: Time,
}

/// What a released child has reported through its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecResult {
    /// Its program runs, or it was killed on its way there.
    Executed,
    /// It could not execute its program: this step failed, with this errno.
    Failed(Step, i32),
}

/// A process that is below the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its pid.
    pub pid: i32,
    /// When it started, in the kernel's unit; 0 if that is hidden.
    pub start: u64,
    /// Its process group.
    pub group: i32,
    /// When it started, at the earliest, if that is not hidden: start times are rounded down to ticks.
    pub started: Option<Time>,
    /// Whether it does nothing until it is continued, or ever again.
    pub at_rest: bool,
}

/// A process that has become the guardian's child, and what tells which tree it is of.
#[derive(Clone, Debug)]
pub struct Adoptee {
    /// Who it is.
    pub member: Member,
    /// Its session.
    pub session: i32,
    /// The lineage that it has inherited.
    pub lineage: Option<Lineage>,
    /// The child that its environment names, if it names this run.
    pub child: Option<u64>,
    /// By what the next start can know it; `None` for one that has ended.
    pub identity: Option<Identity>,
}

/// Actions that have not been carried out yet.
#[derive(Debug, Default)]
pub struct Actions(VecDeque<Action>);

impl Actions {
    /// Adds one.
    pub fn push(&mut self, action: Action) {
        self.0.push_back(action);
    }

    /// Returns the next one.
    pub fn pop(&mut self) -> Option<Action> {
        self.0.pop_front()
    }

    /// Adds a frame.
    pub fn send(&mut self, event: wire::Event) {
        self.push(Action::Send(event));
    }

    /// Adds a signal.
    pub fn signal(&mut self, target: Target, signal: Signal) {
        self.push(Action::Signal { target, signal });
    }
}
