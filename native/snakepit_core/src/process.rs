//! A process that was opened and verified.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::identity::Origin;
use crate::lineage::Lineage;
use crate::run_id::RunId;
use crate::table::{Columns, Entry, Environment};
use crate::{Error, Identity, Pid, Signal, os, protect, settle};

/// How often to ask for one of which the kernel cannot notify: its pid may be another process's.
const POLL: Duration = Duration::from_millis(10);

/// A hold on one process: what is sent through it reaches that process or none.
#[derive(Debug)]
pub struct Process {
    reference: os::Reference,
    identity: Identity,
}

/// What became of a process that was known earlier.
#[derive(Debug)]
pub enum Found {
    /// It is this one.
    Same(Process),
    /// It is gone. Its pid may be someone else's by now.
    Gone,
    /// There is a process that may or may not be the one. Leave it alone.
    Ambiguous,
}

/// What a signal met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The process, or at least one member of the group.
    Sent,
    /// None: all were gone before.
    Gone,
}

impl Process {
    /// `pidfd_open(2)` of the process that has this pid now. `None` if nothing has; a zombie still opens.
    ///
    /// Never waits: before Linux 6.14 the identity of a process in its first clock tick is not settled,
    /// and good for nothing but this very hold.
    ///
    /// # Errors
    ///
    /// [`Error::Ambiguous`] where neither the kernel nor the process table says enough to know the
    /// process again; [`Error::Os`].
    pub fn open(pid: Pid) -> Result<Option<Self>, Error> {
        os::load_host_ids().map_err(Error::os("boot and namespace"))?;
        let Some(reference) = os::Reference::open(pid).map_err(Error::os("process open"))? else {
            return Ok(None);
        };
        let handle = reference.handle();
        let columns = Columns { uid: handle.is_none(), ..Columns::default() };
        let entry = os::inspect(pid, columns).map_err(Error::os("process table"))?;
        // Order: the reference came first, so if it still holds the pid now, what was read in
        // between was read from this very process.
        if !reference.holds_its_pid() {
            return Ok(None);
        }
        let (start, uid) = match (&entry, &handle) {
            (Some(entry), _) => (entry.start, entry.uid),
            (None, Some(_)) => (0, None),
            (None, None) => return Err(Error::Ambiguous(pid)),
        };
        let identity = Identity {
            pid,
            start,
            settled: os::start_is_past(start),
            uid,
            boot: os::boot_id(),
            namespace: os::pid_namespace(),
            handle,
        };
        Ok(Some(Self { reference, identity }))
    }

    /// As [`Process::open`], with an identity that names this process for good. Where the kernel has no
    /// handles it waits for the end of the first clock tick, at most 10 ms.
    ///
    /// # Errors
    ///
    /// As for [`Process::open`], and [`Error::Ambiguous`] if the end of a tick cannot be seen.
    pub fn open_settled(pid: Pid) -> Result<Option<Self>, Error> {
        let Some(mut process) = Self::open(pid)? else { return Ok(None) };
        if process.identity.is_exact() {
            return Ok(Some(process));
        }
        settle::wait_for_tick(process.identity.start);
        match process.settled_identity() {
            Some(identity) => process.identity = identity,
            None if process.reference.holds_its_pid() => return Err(Error::Ambiguous(pid)),
            None => return Ok(None),
        }
        Ok(Some(process))
    }

    /// Opens a process that the table has listed, if it is alive and `is_it` says so of the process and of
    /// its line of the table now.
    ///
    /// Order: the line is read again when the process is held. Between the listing and the opening the pid
    /// may have changed hands.
    pub(crate) fn open_if(
        pid: Pid,
        columns: Columns,
        is_it: impl FnOnce(&Self, &Entry) -> bool,
    ) -> Result<Option<Self>, Error> {
        let Some(process) = Self::open(pid)? else { return Ok(None) };
        let now = process.inspect(columns)?.filter(Entry::is_alive);
        Ok(now.is_some_and(|now| is_it(&process, &now)).then_some(process))
    }

    /// `pidfd_open(2)` of the process that `identity` was taken from, and of no other.
    ///
    /// Boot, kernel handle and start time have to agree, as far as there are any. `run_id` settles what
    /// they leave open: an identity without a handle that was taken within the first clock tick of the
    /// process, one of an unknown boot, one without a handle whose process is hidden. Then only a process
    /// that carries this run's marker or lineage is the same. One that cannot run again is gone,
    /// whichever it is.
    ///
    /// # Errors
    ///
    /// [`Error::Os`].
    pub fn reopen(identity: &Identity, run_id: Option<RunId>) -> Result<Found, Error> {
        let certain = match identity.origin()? {
            Origin::Here => true,
            Origin::Unknown => false,
            Origin::OtherBoot => return Ok(Found::Gone),
            Origin::OtherNamespace | Origin::Elsewhere => return Ok(Found::Ambiguous),
        };
        let process = match Self::open(identity.pid) {
            Ok(Some(process)) => process,
            Ok(None) => return Ok(Found::Gone),
            Err(Error::Ambiguous(_)) => return Self::reopen_hidden(identity, run_id),
            Err(error) => return Err(error),
        };
        process.compare(identity, certain, run_id)
    }

    /// Returns whether this is the process that `earlier` was taken from. `certain`: both are of one boot.
    fn compare(
        mut self,
        earlier: &Identity,
        certain: bool,
        run_id: Option<RunId>,
    ) -> Result<Found, Error> {
        let is_hidden = self.identity.start == 0 || earlier.start == 0;
        let same_start = self.identity.start == earlier.start;
        let same_handle = match (&earlier.handle, &self.identity.handle) {
            (Some(then), Some(now)) if then != now => return Ok(Found::Gone),
            (Some(_), Some(_)) => true,
            // One side has no handle: a ledger from another kernel, or a sandbox in between.
            _ => false,
        };
        if !is_hidden && !same_start {
            // No handle comes twice in one boot. So one that has it and another start time is not what was
            // recorded, or it was seen from another time namespace.
            let doubtful = certain && same_handle;
            return if doubtful { self.in_doubt() } else { Ok(Found::Gone) };
        }
        let exact = same_handle || (!is_hidden && earlier.settled);
        let known = certain && exact;
        if !known && !self.is_confirmed(earlier, run_id)? {
            return self.in_doubt();
        }
        if self.identity.start == 0 {
            self.identity.start = earlier.start;
        }
        Ok(Found::Same(self))
    }

    /// Reopens a process of which the process table shows nothing, where there are no handles.
    fn reopen_hidden(identity: &Identity, run_id: Option<RunId>) -> Result<Found, Error> {
        let reference = os::Reference::open(identity.pid).map_err(Error::os("process open"))?;
        let Some(reference) = reference else { return Ok(Found::Gone) };
        let (boot, namespace) = (os::boot_id(), os::pid_namespace());
        let process =
            Self { reference, identity: Identity { boot, namespace, ..identity.clone() } };
        let confirmed = process.is_confirmed(identity, run_id)?;
        if confirmed { Ok(Found::Same(process)) } else { process.in_doubt() }
    }

    /// Returns whether its marker or its lineage says that it is of this run.
    fn is_confirmed(&self, earlier: &Identity, run_id: Option<RunId>) -> Result<bool, Error> {
        let Some(run_id) = run_id else { return Ok(false) };
        let columns = Columns { uid: true, markers: true, ..Columns::default() };
        let marked = self.inspect(columns)?.is_some_and(|entry| {
            let same_user = earlier.uid.is_none() || earlier.uid == entry.uid;
            let marked = match &entry.environment {
                Environment::Read(markers) => markers.is_of_run(run_id),
                _ => false,
            };
            same_user && marked
        });
        let of_lineage =
            || Lineage::of(self.pid()).ok().flatten().map(|one| one.run_id) == Some(run_id);
        Ok((marked || of_lineage()) && self.reference.holds_its_pid())
    }

    /// Whether the process that `identity` was taken from can still run.
    ///
    /// Where the kernel has handles nothing of the process table is read, so that it costs little to ask
    /// this of thousands.
    ///
    /// # Errors
    ///
    /// [`Error::Ambiguous`] if it cannot be told whether what has its pid now is this process;
    /// [`Error::Os`].
    pub fn still_runs(identity: &Identity) -> Result<bool, Error> {
        if let (Origin::Here, Some(then)) = (identity.origin()?, &identity.handle) {
            let reference = os::Reference::open(identity.pid).map_err(Error::os("process open"))?;
            let Some(reference) = reference else { return Ok(false) };
            if let Some(now) = reference.handle() {
                let exited = reference.has_exited().map_err(Error::os("process state"))?;
                return Ok(now == *then && !exited);
            }
        }
        match Self::reopen(identity, None)? {
            Found::Same(process) => process.is_alive(),
            Found::Gone => Ok(false),
            Found::Ambiguous => Err(Error::Ambiguous(identity.pid)),
        }
    }

    /// Returns what a process is that has the pid and may be another than the one that is meant. Once it has
    /// exited, the one that is meant has ended: as this one, or before it.
    fn in_doubt(&self) -> Result<Found, Error> {
        Ok(if self.is_alive()? { Found::Ambiguous } else { Found::Gone })
    }

    /// Its pid.
    pub fn pid(&self) -> Pid {
        self.reference.pid()
    }

    /// What to store to find it again.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What to store to find it again, if that names this process for good. `None` in its first clock
    /// tick where the kernel has no handles, and once it is gone.
    pub fn settled_identity(&self) -> Option<Identity> {
        let identity = self.identity.clone();
        if identity.is_exact() {
            return Some(identity);
        }
        // Order: the tick is over first, so that a process that holds the pid afterwards has no successor in
        // it.
        let settled = os::start_is_past(identity.start) && self.reference.holds_its_pid();
        settled.then_some(Identity { settled, ..identity })
    }

    /// Whether it can still run. A zombie cannot.
    ///
    /// # Errors
    ///
    /// [`Error::Os`].
    pub fn is_alive(&self) -> Result<bool, Error> {
        self.reference.has_exited().map(|exited| !exited).map_err(Error::os("process state"))
    }

    /// Its line of the process table; `None` once it has been reaped.
    ///
    /// # Errors
    ///
    /// [`Error::Os`].
    pub fn inspect(&self, columns: Columns) -> Result<Option<Entry>, Error> {
        let entry = os::inspect(self.pid(), columns).map_err(Error::os("process table"))?;
        Ok(entry.filter(|_| self.reference.holds_its_pid()))
    }

    /// `pidfd_send_signal(2)` to this very process, never to a successor of its pid.
    ///
    /// A process that is already gone is not an error: that is what the caller wanted.
    ///
    /// # Errors
    ///
    /// [`Error::Protected`], or [`Error::Signal`] when the kernel refuses, for example with `EPERM`
    /// after the process changed its user.
    pub fn signal(&self, signal: Signal) -> Result<Delivery, Error> {
        protect::process(self.pid())?;
        self.delivery(signal, self.reference.send(signal))
    }

    /// Sends `signal` to the group that this process leads. `None` where the kernel has no such
    /// call; [`crate::group`] then signals the members.
    pub(crate) fn signal_led_group(&self, signal: Signal) -> Result<Option<Delivery>, Error> {
        protect::group(self.pid())?;
        match self.reference.send_group(signal) {
            Err(Errno::EINVAL | Errno::ENOSYS) => Ok(None),
            result => self.delivery(signal, result).map(Some),
        }
    }

    fn delivery(&self, signal: Signal, result: Result<(), Errno>) -> Result<Delivery, Error> {
        match result {
            Ok(()) => Ok(Delivery::Sent),
            Err(Errno::ESRCH) => Ok(Delivery::Gone),
            Err(errno) => Err(Error::Signal { pid: self.pid(), signal, errno }),
        }
    }

    pub(crate) fn reference(&self) -> &os::Reference {
        &self.reference
    }
}

/// Waits until all of these have ended, at most until `deadline`. Returns those that have not, and those
/// of which it cannot be told.
///
/// # Errors
///
/// [`Error::Os`].
pub fn await_ends(identities: &[Identity], deadline: Instant) -> Result<Vec<Identity>, Error> {
    let mut held = Vec::new();
    let mut doubtful = Vec::new();
    for identity in identities {
        match Process::reopen(identity, None)? {
            Found::Same(process) => held.push(process),
            Found::Gone => {}
            Found::Ambiguous => doubtful.push(identity.clone()),
        }
    }
    let references: Vec<_> = held.iter().map(Process::reference).collect();
    os::wait_for_exits(&references, deadline).map_err(Error::os("wait"))?;
    let mut left = Vec::new();
    for process in held {
        if process.is_alive()? {
            left.push(process.identity);
        }
    }
    left.extend(await_doubtful(doubtful, deadline)?);
    Ok(left)
}

fn await_doubtful(mut doubtful: Vec<Identity>, deadline: Instant) -> Result<Vec<Identity>, Error> {
    loop {
        let mut left = Vec::new();
        for identity in doubtful {
            match Process::still_runs(&identity) {
                Ok(false) => {}
                Ok(true) | Err(Error::Ambiguous(_)) => left.push(identity),
                Err(error) => return Err(error),
            }
        }
        let time = deadline.saturating_duration_since(Instant::now());
        if left.is_empty() || time.is_zero() {
            return Ok(left);
        }
        std::thread::sleep(time.min(POLL));
        doubtful = left;
    }
}

/// The pidfd: readable once the process has exited, for an event loop.
#[cfg(target_os = "linux")]
impl std::os::fd::AsFd for Process {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.reference.as_fd()
    }
}
