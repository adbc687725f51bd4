//! Carries out what was decided.

use std::os::fd::AsFd;

use nix::errno::Errno;
use serde_bytes::ByteBuf;
use snakepit_core::obituary::{self, Obituary};
use snakepit_core::wire::{self, Exit, Step};
use snakepit_core::{Error, Identity, Pid, Signal, adopted, descendants, forked};
use snakepit_guardian::event::{ForkedChild, Target};
use snakepit_guardian::{Action, Event};
use tracing::{error, info, warn};

use super::fork_batch::{self, PendingChild};
use super::resources::ChildResources;
use super::shell::{GATE, Shell, add};
use super::tail::Tail;

/// How long the file of adopted processes may get before it is compacted: some hundred entries.
const ADOPTED_LIMIT: u64 = 16 * 1024;

impl Shell {
    /// Carries out everything that was decided, and what follows from that.
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
                    self.dispatch(Event::PackFailed { id: spawn.id, step, errno: errno as i32 });
                }
            }
            Action::Release { id } => self.release(id),
            Action::Drop { id } => self.forget(id),
            Action::Fork(ids) => self.fork(&ids),
            Action::Signal { target, signal } => self.signal(target, signal),
            Action::List => self.list(),
            Action::Walk { tree, purpose, roots } => self.walk(tree, purpose, &roots),
            Action::RecordAdopted(identity) => self.record_adopted(&identity),
            Action::Conclude(record) => self.conclude(&record),
        }
    }

    fn take_tail(&mut self, id: u64) -> ByteBuf {
        let tail = self.resources.get_mut(&id).and_then(|resources| resources.tail.as_mut());
        ByteBuf::from(tail.map(Tail::snapshot).unwrap_or_default())
    }

    fn send_exited(&mut self, id: u64, exit: Exit) {
        // With the BEAM gone there is nobody to read it.
        if !self.machine.beam_is_gone() {
            let tail = self.take_tail(id);
            self.frames.send(&wire::Event::Exited { id, exit, tail });
        }
        self.forget(id);
    }

    fn forget(&mut self, id: u64) {
        if let Some(resources) = self.resources.remove(&id) {
            self.packed -= usize::from(resources.payload.is_some());
        }
    }

    fn release(&mut self, id: u64) {
        let Some(resources) = self.resources.get_mut(&id) else { return };
        // What it was to run could not be packed, and that has been said.
        if resources.payload.is_none() {
            return;
        }
        // Order: the gate is watched before the child may report. Unwatched, it would run, and
        // the BEAM would never hear of it.
        let watched = match &resources.gate {
            Some(gate) => add(&self.epoll, gate.as_fd(), GATE | id),
            None => Ok(()),
        };
        self.packed -= 1;
        if let Err(errno) = watched.and_then(|()| resources.release()) {
            self.dispatch(Event::PackFailed { id, step: Step::Descriptors, errno: errno as i32 });
        }
    }

    /// Closes the gate of a child that has reported.
    pub(super) fn close_gate(&mut self, id: u64) {
        if let Some(resources) = self.resources.get_mut(&id) {
            resources.gate = None;
        }
    }

    fn signal(&mut self, target: Target, signal: Signal) {
        let (Target::Child(number) | Target::Group(number) | Target::Member(number)) = target;
        let Some(pid) = Pid::new(number.into()) else { return };
        let result = match target {
            Target::Group(_) => descendants::signal_group(pid, signal),
            Target::Member(_) => match self.held.get(&number) {
                Some(descendant) => descendant.signal(signal),
                // A root of the walk.
                None => descendants::signal_child(pid, signal),
            },
            Target::Child(_) => descendants::signal_child(pid, signal),
        };
        match result {
            Ok(_) => {}
            Err(Error::Signal { errno, .. } | Error::Os { errno, .. }) => {
                self.dispatch(Event::Refused { pid: number, errno: errno as i32 });
            }
            Err(refusal) => warn!("{signal} to {number} was not sent: {refusal}"),
        }
    }

    fn fork(&mut self, ids: &[(u64, bool)]) {
        // Order: answers first. Forking takes longer than a caller should wait for one.
        self.flush();
        let mut batch: Vec<PendingChild> = Vec::with_capacity(ids.len());
        for (id, asked) in ids {
            match PendingChild::new(*id, *asked) {
                Ok(child) => batch.push(child),
                Err(errno) => self.not_forked(*id, *asked, errno),
            }
        }
        fork_batch::fork_all(&mut batch, self.run_id, self.settings);
        for child in batch {
            let (id, asked) = (child.id, child.asked);
            let Some(forked) = child.pid() else {
                self.dispatch(Event::ForkNotTried { asked });
                continue;
            };
            match forked.and_then(|pid| self.identify(&child, pid)) {
                Ok(forked) => {
                    self.resources.insert(id, ChildResources::new(child.gate));
                    self.dispatch(Event::Forked { id, asked, outcome: Ok(forked) });
                }
                Err(errno) => self.not_forked(id, asked, errno),
            }
        }
    }

    fn not_forked(&mut self, id: u64, asked: bool, errno: Errno) {
        self.dispatch(Event::Forked { id, asked, outcome: Err(errno as i32) });
    }

    /// Returns who a child is. Without an identity it must not run, since nothing could find it again: its
    /// gate closes, and it ends.
    fn identify(&self, child: &PendingChild, pid: Pid) -> Result<ForkedChild, Errno> {
        let identity = match forked::identify(pid, child.before, child.after) {
            Ok(Some(identity)) => identity,
            Err(Error::Os { errno, .. }) => return Err(errno),
            Ok(None) | Err(_) => return Err(Errno::ESRCH),
        };
        let known = identity.handle.is_some() || identity.settled;
        let wait =
            if known { std::time::Duration::ZERO } else { forked::settles_in(identity.start) };
        Ok(ForkedChild { pid: pid.as_raw(), identity, settled_at: self.now() + wait })
    }

    /// Appends to the file of adopted processes, within a second of the adoption, so that the next start can
    /// end it if this guardian and its BEAM should die together.
    fn record_adopted(&mut self, identity: &Identity) {
        match adopted::append(&self.run_directory, identity) {
            Ok(length) if length > 2 * self.adopted_bytes + ADOPTED_LIMIT => {
                // Tried again when it is twice as long, whatever comes of it: a file that is too long is
                // better than a guardian that does nothing else.
                self.adopted_bytes = adopted::compact(&self.run_directory).unwrap_or(length);
            }
            Ok(_) => {}
            Err(error) => {
                let (pid, directory) = (identity.pid, &self.run_directory);
                warn!(
                    "cannot record adopted process {pid} in {directory:?}: {error}; \
                     if BEAM and guardian are killed together, the next start may not find it"
                );
            }
        }
    }

    fn conclude(&mut self, record: &Obituary) {
        if !record.survivors.is_empty() {
            let survivors = &record.survivors;
            error!(?survivors, "these processes survive SIGKILL; the next start tries again");
        }
        if let Err(error) = obituary::write(&self.run_directory, record) {
            let directory = &self.run_directory;
            error!(
                "cannot write the obituary to {directory:?}: {error}; the next start searches /proc"
            );
        }
        let count = record.processes.len();
        if record.survivors.is_empty() {
            info!(count, duration_ms = record.duration_ms, "all processes have ended");
        }
        self.listener = None;
    }
}
