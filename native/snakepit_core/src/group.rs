//! Process groups.
//!
//! A group has no handle of its own, only the pid of the process that founded it. That pid stays
//! reserved while the group has a member, so a group is signalled through its leader, or, when the
//! leader is gone, member by member.

use std::time::Instant;

use crate::process::{Delivery, Found};
use crate::stop::{self, Outcome, Plan};
use crate::table::{self, Columns, Entry};
use crate::{Error, Identity, Pid, Process, Signal, protect};

/// A group, by what is known of it.
#[derive(Clone, Debug)]
pub enum Group {
    /// Whichever group has this number now.
    Number(Pid),
    /// The group that this very process leads.
    LedBy(Identity),
}

impl Group {
    fn pgid(&self) -> Pid {
        match self {
            Self::Number(pgid) => *pgid,
            Self::LedBy(leader) => leader.pid,
        }
    }

    /// The leader, opened; `None` if a group that is meant by number has lost it.
    fn leader(&self) -> Result<Option<Process>, Error> {
        let Self::LedBy(identity) = self else { return Process::open(self.pgid()) };
        match Process::reopen(identity, None)? {
            Found::Same(leader) => Ok(Some(leader)),
            Found::Gone if members(identity.pid)?.is_empty() => {
                Err(Error::NoSuchProcess(identity.pid.as_raw().into()))
            }
            // There is a group with that number, and nothing tells whether it is the one.
            Found::Gone | Found::Ambiguous => Err(Error::Ambiguous(identity.pid)),
        }
    }
}

/// Sends `signal` to every member.
///
/// # Errors
///
/// [`Error::Protected`] for this process's own groups; [`Error::Ambiguous`] if the leader by which
/// the group is known is gone and a group with its number is there; [`Error::Signal`] if the kernel
/// refuses for every member.
pub fn signal(group: &Group, signal: Signal) -> Result<Delivery, Error> {
    protect::group(group.pgid())?;
    match group.leader() {
        Ok(leader) => signal_through(leader.as_ref(), group.pgid(), signal),
        Err(Error::NoSuchProcess(_)) => Ok(Delivery::Gone),
        Err(error) => Err(error),
    }
}

/// Ends every member, and what joins meanwhile.
///
/// # Errors
///
/// As for [`signal`].
pub fn stop(group: &Group, plan: &Plan) -> Result<Outcome, Error> {
    let pgid = group.pgid();
    protect::group(pgid)?;
    // Held to the end: the leader may well be the first to go, and a group is still reached through
    // the handle of a leader that is gone.
    let leader = match group.leader() {
        Err(Error::NoSuchProcess(_)) => return Ok(Outcome::Gone),
        leader => leader?,
    };
    if members(pgid)?.is_empty() {
        return Ok(Outcome::Gone);
    }
    let send = |signal| refused(signal_through(leader.as_ref(), pgid, signal));
    if let Some(outcome) = send(plan.signal)? {
        return Ok(outcome);
    }
    if plan.signal != Signal::KILL {
        send(Signal::CONT)?;
    }
    if wait_until_empty(pgid, Instant::now() + plan.grace)? {
        return Ok(Outcome::Stopped);
    }
    let deadline = Instant::now() + plan.kill_wait;
    loop {
        if let Some(outcome) = send(Signal::KILL)? {
            return Ok(outcome);
        }
        // A member that was forking while the signal went out may have left one behind.
        let pause = Instant::now() + plan.kill_wait / 8;
        if wait_until_empty(pgid, pause.min(deadline))? {
            return Ok(Outcome::Killed);
        }
        if Instant::now() >= deadline {
            return Ok(Outcome::Survived);
        }
    }
}

fn signal_through(leader: Option<&Process>, pgid: Pid, signal: Signal) -> Result<Delivery, Error> {
    match leader.map(|leader| leader.signal_led_group(signal)).transpose()?.flatten() {
        Some(delivery) => Ok(delivery),
        None => signal_members(pgid, signal),
    }
}

fn refused(result: Result<Delivery, Error>) -> Result<Option<Outcome>, Error> {
    match result {
        Ok(_) => Ok(None),
        Err(error) => stop::refusal(&error).map(Some).ok_or(error),
    }
}

/// Before Linux 6.9, elsewhere, and for a group without a leader: each member by its own handle.
fn signal_members(pgid: Pid, signal: Signal) -> Result<Delivery, Error> {
    let mut delivery = Delivery::Gone;
    let mut refused = None;
    visit_members(pgid, |member| {
        match member.signal(signal) {
            Ok(Delivery::Sent) => delivery = Delivery::Sent,
            Ok(Delivery::Gone) => {}
            Err(error) => refused = Some(error),
        }
        true
    })?;
    match refused {
        Some(error) if delivery == Delivery::Gone => Err(error),
        _ => Ok(delivery),
    }
}

/// The live members, as many as there may be descriptors for.
fn members(pgid: Pid) -> Result<Vec<Process>, Error> {
    let mut members = Vec::new();
    visit_members(pgid, |member| {
        members.push(member);
        members.len() < stop::descriptor_budget()
    })?;
    Ok(members)
}

/// Each live member, opened only while `visit` has it, for as long as `visit` wants more.
fn visit_members(pgid: Pid, mut visit: impl FnMut(Process) -> bool) -> Result<(), Error> {
    let in_group = |entry: &Entry| entry.group == pgid.as_raw();
    let columns = Columns::default();
    for entry in table::read(columns)?.iter().filter(|entry| entry.is_alive() && in_group(entry)) {
        let member = Process::open_if(entry.pid, columns, |_, now| in_group(now))?;
        if member.is_some_and(|member| !visit(member)) {
            break;
        }
    }
    Ok(())
}

fn wait_until_empty(pgid: Pid, deadline: Instant) -> Result<bool, Error> {
    loop {
        let members = members(pgid)?;
        if members.is_empty() {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        let references: Vec<_> = members.iter().map(Process::reference).collect();
        stop::wait_for_exits(&references, deadline)?;
    }
}
