//! Process groups.
//!
//! A group has no handle of its own, only the pid of the process that founded it. That pid stays
//! reserved while the group has a member, so a group is signalled through its leader, or, when the
//! leader is gone, member by member.

use std::time::Instant;

use crate::process::{Delivery, Found};
use crate::stop::{self, Outcome, Plan};
use crate::table::{self, Columns};
use crate::{Error, Identity, Pid, Process, Signal, os, protect};

/// Sends `signal` to every member of the group that has this number now.
///
/// # Errors
///
/// [`Error::Protected`] for this process's own groups; [`Error::Signal`] if the kernel refuses for
/// every member.
pub fn signal(pgid: Pid, signal: Signal) -> Result<Delivery, Error> {
    protect::group(pgid)?;
    if let Some(leader) = Process::open(pgid)? {
        if let Some(delivery) = leader.signal_led_group(signal)? {
            return Ok(delivery);
        }
    }
    signal_members(pgid, signal)
}

/// Ends every member of the group, and what joins it meanwhile.
///
/// # Errors
///
/// As for [`signal`].
pub fn stop(pgid: Pid, plan: &Plan) -> Result<Outcome, Error> {
    protect::group(pgid)?;
    if members(pgid)?.is_empty() {
        return Ok(Outcome::Gone);
    }
    if let Some(outcome) = refused(signal(pgid, plan.signal))? {
        return Ok(outcome);
    }
    if plan.signal != Signal::KILL {
        signal(pgid, Signal::CONT)?;
    }
    if wait_until_empty(pgid, Instant::now() + plan.grace)? {
        return Ok(Outcome::Stopped);
    }
    let deadline = Instant::now() + plan.kill_wait;
    loop {
        if let Some(outcome) = refused(signal(pgid, Signal::KILL))? {
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

/// The number of the group that the process known by `identity` leads, if that can still be told.
///
/// # Errors
///
/// [`Error::Ambiguous`] if the leader is gone and a group with its number exists: it may be another
/// group by now. [`Error::NoSuchProcess`] if nothing is left of it.
pub fn led_by(identity: &Identity) -> Result<Pid, Error> {
    match Process::reopen(identity, None)? {
        Found::Same(leader) => Ok(leader.pid()),
        Found::Gone if members(identity.pid)?.is_empty() => {
            Err(Error::NoSuchProcess(identity.pid.as_raw().into()))
        }
        Found::Gone | Found::Ambiguous => Err(Error::Ambiguous(identity.pid)),
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
    for member in members(pgid)? {
        match member.signal(signal) {
            Ok(Delivery::Sent) => delivery = Delivery::Sent,
            Ok(Delivery::Gone) => {}
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if delivery == Delivery::Gone => Err(error),
        _ => Ok(delivery),
    }
}

/// The live members, as many as there may be descriptors for.
fn members(pgid: Pid) -> Result<Vec<Process>, Error> {
    let in_group = |entry: &table::Entry| entry.group == pgid.as_raw() && entry.is_alive();
    let mut members = Vec::new();
    for entry in table::read(Columns::default())?.into_iter().filter(in_group) {
        let Some(process) = Process::open(entry.pid)? else { continue };
        // Asked again now that the process is held: the pid may have changed hands in between.
        if process.inspect(Columns::default())?.is_some_and(|entry| in_group(&entry)) {
            members.push(process);
        }
        if members.len() >= stop::descriptor_budget() {
            break;
        }
    }
    Ok(members)
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
        os::wait_for_exits(&references, deadline).map_err(Error::os("wait"))?;
    }
}
