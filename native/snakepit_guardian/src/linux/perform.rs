//! Carries out what was decided.

use std::os::fd::AsFd;

use nix::errno::Errno;
use serde_bytes::ByteBuf;
use snakepit_core::obituary::{self, Obituary};
use snakepit_core::wire::{self, Exit, Step};
use snakepit_core::{Error, Identity, Pid, Signal, adopted, newborn, offspring};
use snakepit_guardian::event::{Newborn, Target};
use snakepit_guardian::{Action, Event};
use tracing::{error, info, warn};

use super::gate::Kept;
use super::midwife::{self, Expected};
use super::shell::{GATE, Shell, add};
use super::tail::Tail;

/// How long the file of adopted processes may get before it is compacted: some hundred notes.
const NOTES_LIMIT: u64 = 16 * 1024;

impl Shell {
    /// Everything that was decided, and what follows from that.
    pub(super) fn perform_all(&mut self) {
        while let Some(action) = self.machine.next_action() {
            self.perform(action);
        }
        self.held.clear();
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Send(event) => self.frames.send(&event),
            Action::SendExited { id, exit } => self.send_exited(id, exit),
            Action::SendTail { id } => {
                let tail = self.take_tail(id);
                self.frames.send(&wire::Event::Tail { id, tail });
            }
            Action::Pack(spawn) => {
                if let Err((step, errno)) = self.pack(&spawn) {
                    self.tell(Event::NotPacked { id: spawn.id, step, errno: errno as i32 });
                }
            }
            Action::Release { id } => self.release(id),
            Action::Drop { id } => self.forget(id),
            Action::Fork(ids) => self.fork(&ids),
            Action::Signal { target, signal } => self.signal(target, signal),
            Action::List => self.list(),
            Action::Walk { tree, purpose, roots } => self.walk(tree, purpose, &roots),
            Action::Note(identity) => self.note(&identity),
            Action::Conclude(record) => self.conclude(&record),
        }
    }

    fn take_tail(&mut self, id: u64) -> ByteBuf {
        let tail = self.kept.get_mut(&id).and_then(|kept| kept.tail.as_mut());
        ByteBuf::from(tail.map(Tail::take_stock).unwrap_or_default())
    }

    fn send_exited(&mut self, id: u64, exit: Exit) {
        // Nobody is there to be told.
        if !self.machine.mourns() {
            let tail = self.take_tail(id);
            self.frames.send(&wire::Event::Exited { id, exit, tail });
        }
        self.forget(id);
    }

    fn forget(&mut self, id: u64) {
        if let Some(kept) = self.kept.remove(&id) {
            self.packed -= usize::from(kept.payload.is_some());
        }
    }

    fn release(&mut self, id: u64) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        // Order: watched before it may say something. Unwatched it would run, and nobody be told.
        let watched = match &kept.gate {
            Some(gate) => add(&self.epoll, gate.as_fd(), GATE | id),
            None => Ok(()),
        };
        self.packed -= usize::from(kept.payload.is_some());
        if let Err(errno) = watched.and_then(|()| kept.release()) {
            self.tell(Event::NotPacked { id, step: Step::Descriptors, errno: errno as i32 });
        }
    }

    /// What the child had to say has been heard.
    pub(super) fn close_gate(&mut self, id: u64) {
        if let Some(kept) = self.kept.get_mut(&id) {
            kept.gate = None;
        }
    }

    fn signal(&mut self, target: Target, signal: Signal) {
        let (Target::Child(number) | Target::Group(number) | Target::Member(number)) = target;
        let Some(pid) = Pid::new(number.into()) else { return };
        let result = match target {
            Target::Group(_) => offspring::signal_group(pid, signal),
            Target::Member(_) => match self.held.get(&number) {
                Some(relative) => relative.signal(signal),
                // A root of the walk.
                None => offspring::signal_child(pid, signal),
            },
            Target::Child(_) => offspring::signal_child(pid, signal),
        };
        match result {
            Ok(_) => {}
            Err(Error::Signal { errno, .. } | Error::Os { errno, .. }) => {
                self.tell(Event::Refused { pid: number, errno: errno as i32 });
            }
            Err(refusal) => warn!("{refusal}"),
        }
    }

    fn fork(&mut self, ids: &[(u64, bool)]) {
        // Forking takes longer than whoever waits for an answer should.
        self.flush();
        let mut batch: Vec<Expected> = Vec::with_capacity(ids.len());
        for (id, asked) in ids {
            match Expected::new(*id, *asked) {
                Ok(expected) => batch.push(expected),
                Err(errno) => self.not_forked(*id, *asked, errno),
            }
        }
        midwife::deliver(&mut batch, self.run_id, self.changes);
        for expected in batch {
            let (id, asked) = (expected.id, expected.asked);
            let Some(forked) = expected.pid() else {
                self.tell(Event::NotTried { asked });
                continue;
            };
            match forked.and_then(|pid| self.identify(&expected, pid)) {
                Ok(newborn) => {
                    self.kept.insert(id, Kept::new(expected.gate));
                    self.tell(Event::Forked { id, asked, outcome: Ok(newborn) });
                }
                Err(errno) => self.not_forked(id, asked, errno),
            }
        }
    }

    fn not_forked(&mut self, id: u64, asked: bool, errno: Errno) {
        self.tell(Event::Forked { id, asked, outcome: Err(errno as i32) });
    }

    /// Without an identity it must not run: nobody could find it again. Its gate closes, and it ends.
    fn identify(&self, expected: &Expected, pid: Pid) -> Result<Newborn, Errno> {
        let identity = match newborn::identify(pid, expected.before, expected.after) {
            Ok(Some(identity)) => identity,
            Err(Error::Os { errno, .. }) => return Err(errno),
            Ok(None) | Err(_) => return Err(Errno::ESRCH),
        };
        let known = identity.handle.is_some() || identity.settled;
        let wait =
            if known { std::time::Duration::ZERO } else { newborn::settles_in(identity.start) };
        Ok(Newborn { pid: pid.as_raw(), identity, settled_at: self.now() + wait })
    }

    /// Within a second of its adoption, so that the next start can end it if this guardian and its
    /// BEAM should die together.
    fn note(&mut self, identity: &Identity) {
        match adopted::append(&self.run_directory, identity) {
            Ok(length) if length > 2 * self.noted + NOTES_LIMIT => {
                // Tried again when it is twice as long, whatever comes of it: a file that is too long is
                // better than a guardian that does nothing else.
                self.noted = adopted::compact(&self.run_directory).unwrap_or(length);
            }
            Ok(_) => {}
            Err(error) => warn!("cannot note an adopted process: {error}"),
        }
    }

    fn conclude(&mut self, record: &Obituary) {
        if !record.survivors.is_empty() {
            error!(survivors = ?record.survivors, "processes survived");
        }
        if let Err(error) = obituary::write(&self.run_directory, record) {
            error!("cannot write the obituary: {error}");
        }
        let count = record.processes.len();
        if record.survivors.is_empty() {
            info!(count, duration_ms = record.duration_ms, "everything is gone");
        }
        self.listener = None;
    }
}
