//! The children that the guardian forked, from the gate to the reaping.

use std::collections::HashMap;
use std::io::IoSlice;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, recv, sendmsg};
use snakepit_core::Pid;
use snakepit_core::wire::Step;

use super::child::Opening;
use super::image::Image;
use super::tail::Tail;

/// A child of the guardian's own making.
pub struct Child {
    pub pid: Pid,
    pub state: State,
    /// Our end of the gate, until the program runs.
    pub gate: Option<OwnedFd>,
    pub tail: Option<Tail>,
    pub worker_id: Box<str>,
    /// When its grace period ends, once it has been asked to stop.
    pub kill_at: Option<Instant>,
    /// How many times it has been killed.
    pub kills: u32,
}

/// How far a child is.
pub enum State {
    /// Waits at the gate; nobody has asked for it yet.
    Ready,
    /// Waits at the gate; this is what it will run.
    Assigned(Luggage),
    /// The gate is open; whether the program runs is not known yet.
    Released,
    /// The program runs.
    Running,
    /// Ended before it ran anything, or told to: the gate is closed.
    Discarded,
}

/// What goes through the gate: the image, and the descriptors that the child keeps.
pub struct Luggage {
    pub image: Image,
    /// One may stand for several streams, or be every child's.
    pub streams: Vec<Rc<OwnedFd>>,
}

/// What a released child said through its gate.
pub enum Verdict {
    /// Nothing yet.
    Pending,
    /// The gate closed: the program runs, or the child was killed on its way to it.
    Executed,
    /// It could not.
    Failed(Step, i32),
}

impl Child {
    /// One that waits at its gate, of which this is our end.
    pub fn waiting(pid: Pid, gate: OwnedFd) -> Self {
        Self {
            pid,
            state: State::Ready,
            gate: Some(gate),
            tail: None,
            worker_id: Box::default(),
            kill_at: None,
            kills: 0,
        }
    }

    /// Opens the gate. The luggage is the child's from here on.
    pub fn release(&mut self) -> Result<(), Errno> {
        let State::Assigned(luggage) = std::mem::replace(&mut self.state, State::Released) else {
            return Err(Errno::EINVAL);
        };
        let gate = self.gate.as_ref().ok_or(Errno::EPIPE)?;
        let mut fds: Vec<RawFd> = luggage.streams.iter().map(AsRawFd::as_raw_fd).collect();
        let content: &[u8] = match &luggage.image {
            Image::Small(bytes) => bytes,
            Image::Large(file, _) => {
                fds.push(file.as_raw_fd());
                &[]
            }
        };
        let head = Opening { length: luggage.image.length(), sent: content.len() }.to_bytes();
        let sent = sendmsg::<UnixAddr>(
            gate.as_raw_fd(),
            &[IoSlice::new(&head), IoSlice::new(content)],
            &[ControlMessage::ScmRights(&fds)],
            // A child that is stopped does not read; the guardian must not wait for it.
            MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
            None,
        )?;
        if sent == head.len() + content.len() { Ok(()) } else { Err(Errno::EMSGSIZE) }
    }

    /// Whether the released child executed its program.
    pub fn verdict(&self) -> Verdict {
        let Some(gate) = &self.gate else { return Verdict::Executed };
        let mut report = [0; 8];
        match recv(gate.as_raw_fd(), &mut report, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN | Errno::EINTR) => Verdict::Pending,
            Ok(8) => {
                let (step, errno) = (word(&report[..4]), word(&report[4..]));
                let step = usize::try_from(step).ok().and_then(|step| Step::ALL.get(step).copied());
                Verdict::Failed(step.unwrap_or(Step::Execute), errno)
            }
            _ => Verdict::Executed,
        }
    }

    /// Closes the gate: whoever waits there ends without having run anything.
    pub fn discard(&mut self) {
        self.state = State::Discarded;
        self.gate = None;
    }

    /// Whether its grace period is over.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.is_out() && self.kill_at.is_some_and(|at| at <= now)
    }

    /// Whether it may have executed its program.
    pub fn is_out(&self) -> bool {
        matches!(self.state, State::Released | State::Running)
    }
}

fn word(bytes: &[u8]) -> i32 {
    bytes.try_into().map_or(0, i32::from_ne_bytes)
}

/// All children, by the number that the BEAM knows them by and by pid.
#[derive(Default)]
pub struct Children {
    by_id: HashMap<u64, Child>,
    by_pid: HashMap<i32, u64>,
    last_id: u64,
    counts: Counts,
}

/// How many children are in what state. Kept up to date: the loop asks at every turn.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    /// Wait at the gate for someone to ask for them.
    pub ready: usize,
    /// Wait at the gate with what they will run.
    pub assigned: usize,
    /// Are on their way from the gate to their program.
    pub released: usize,
    /// May have executed their program.
    pub out: usize,
    /// Have been asked to stop.
    pub stopping: usize,
}

impl Counts {
    fn of(child: &Child) -> Self {
        Self {
            ready: usize::from(matches!(child.state, State::Ready)),
            assigned: usize::from(matches!(child.state, State::Assigned(_))),
            released: usize::from(matches!(child.state, State::Released)),
            out: usize::from(child.is_out()),
            stopping: usize::from(child.kill_at.is_some()),
        }
    }

    fn replace(&mut self, before: Self, after: Self) {
        self.ready = self.ready + after.ready - before.ready;
        self.assigned = self.assigned + after.assigned - before.assigned;
        self.released = self.released + after.released - before.released;
        self.out = self.out + after.out - before.out;
        self.stopping = self.stopping + after.stopping - before.stopping;
    }
}

/// A child that may be changed. What changed is counted when this is dropped.
pub struct Change<'a> {
    child: &'a mut Child,
    counts: &'a mut Counts,
    before: Counts,
}

impl Deref for Change<'_> {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.child
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut Child {
        self.child
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.counts.replace(self.before, Counts::of(self.child));
    }
}

impl Children {
    /// Ids count up from here.
    pub fn counted_from(last_id: u64) -> Self {
        Self { last_id, ..Self::default() }
    }

    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub fn insert(&mut self, id: u64, child: Child) {
        self.counts.replace(Counts::default(), Counts::of(&child));
        self.by_pid.insert(child.pid.as_raw(), id);
        self.by_id.insert(id, child);
    }

    pub fn get(&self, id: u64) -> Option<&Child> {
        self.by_id.get(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<Change<'_>> {
        let child = self.by_id.get_mut(&id)?;
        let before = Counts::of(child);
        Some(Change { child, counts: &mut self.counts, before })
    }

    pub fn id_of(&self, pid: i32) -> Option<u64> {
        self.by_pid.get(&pid).copied()
    }

    pub fn remove(&mut self, id: u64) -> Option<Child> {
        let child = self.by_id.remove(&id)?;
        self.counts.replace(Counts::of(&child), Counts::default());
        self.by_pid.remove(&child.pid.as_raw());
        Some(child)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Child)> {
        self.by_id.iter().map(|(id, child)| (*id, child))
    }

    /// Those of which `condition` is true.
    pub fn ids(&self, condition: impl Fn(&Child) -> bool) -> Vec<u64> {
        self.iter().filter(|(_, child)| condition(child)).map(|(id, _)| id).collect()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }
}
