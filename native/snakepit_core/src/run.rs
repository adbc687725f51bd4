//! The processes of a run, found by what they carry.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use crate::lineage::Lineage;
use crate::marker::Owner;
use crate::process::Found;
use crate::run_id::RunId;
use crate::settle::Settling;
use crate::stop::{self, Outcome, Plan};
use crate::table::{self, Columns, Entry, Environment};
use crate::tree::{self, Roots};
use crate::{Error, Identity, Pid, Process};

/// Which users' processes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// Only those whose real user is this process's.
    Own,
    /// Everyone's. For a privileged BEAM that starts workers as other users.
    Any,
}

/// What stopping a run's processes came to.
#[derive(Debug)]
pub struct StopReport {
    /// How many processes ended when asked. Descendants of those that carry the run id count too.
    pub stopped: usize,
    /// How many had to be killed.
    pub killed: usize,
    /// Those that are still there.
    pub survivors: Vec<Identity>,
}

const COLUMNS: Columns = Columns { uid: false, arguments: true, markers: true };
/// For those who do not ask for arguments.
const MARKS: Columns = Columns { arguments: false, ..COLUMNS };

/// Returns the live processes that carry this run id, in their environment or their arguments.
///
/// # Errors
///
/// [`Error::Os`] if the process table cannot be read.
pub fn find(run_id: RunId, users: Users) -> Result<Vec<Identity>, Error> {
    let mut found = Settling::new();
    for entry in table::read(COLUMNS)? {
        if !(entry.is_alive() && belongs(&entry, run_id, users)) {
            continue;
        }
        let is_it = |_: &Process, now: &Entry| belongs(now, run_id, users);
        if let Some(process) = Process::open_if(entry.pid, COLUMNS, is_it)? {
            found.add(process, ());
        }
    }
    Ok(found.identities())
}

/// A process of a run, and whose it is.
#[derive(Debug)]
pub struct RunMember {
    /// Who it is.
    pub identity: Identity,
    /// The worker that it says it belongs to.
    pub worker_id: Option<Vec<u8>>,
}

/// Returns the live processes that carry the marker or lineage of a run of this very BEAM.
///
/// # Errors
///
/// [`Error::Os`] if the process table cannot be read.
pub fn members(run_id: RunId) -> Result<Vec<RunMember>, Error> {
    let own = Owner::current()?;
    let mut members = Settling::new();
    for entry in table::read(MARKS)? {
        if !(entry.is_alive() && is_marked(&entry, run_id, &own)) {
            continue;
        }
        let is_it = |_: &Process, now: &Entry| now.start == entry.start;
        let opened = Process::open_if(entry.pid, Columns::default(), is_it)?;
        let Some(process) = opened else { continue };
        let worker_id = match entry.environment {
            Environment::Read(markers) => markers.worker_id,
            _ => None,
        };
        members.add(process, worker_id);
    }
    let member = |(identity, worker_id)| RunMember { identity, worker_id };
    Ok(members.finish().into_iter().map(member).collect())
}

/// Returns the processes that carry the marker or lineage of a run of this very BEAM and are not below the
/// process `root`. Of those that are, no more is read than who their parents are.
///
/// # Errors
///
/// [`Error::Os`] if the process table cannot be read.
pub fn strays(run_id: RunId, root: Pid) -> Result<Vec<Identity>, Error> {
    let own = Owner::current()?;
    let table = table::read(Columns::default())?;
    let parents = parents(&table);
    let mut strays = Settling::new();
    for entry in &table {
        if !entry.is_alive() || ancestors(entry, &parents).any(|pid| pid == root.as_raw()) {
            continue;
        }
        let marked = |now: &Entry| {
            now.start == entry.start && now.is_alive() && is_marked(now, run_id, &own)
        };
        if !table::read_one(entry.pid, MARKS)?.is_some_and(|now| marked(&now)) {
            continue;
        }
        if let Some(process) = Process::open_if(entry.pid, MARKS, |_, now| marked(now))? {
            strays.add(process, ());
        }
    }
    Ok(strays.identities())
}

fn parents(table: &[Entry]) -> HashMap<i32, i32> {
    table.iter().map(|entry| (entry.pid.as_raw(), entry.parent)).collect()
}

/// Returns its parent, that one's parent, and so on.
fn ancestors(entry: &Entry, parents: &HashMap<i32, i32>) -> impl Iterator<Item = i32> {
    // A table that was read while processes came and went may have a circle in it.
    let mut seen = HashSet::from([entry.pid.as_raw()]);
    let next = move |pid: &i32| parents.get(pid).copied().filter(|parent| seen.insert(*parent));
    std::iter::successors(Some(entry.parent), next)
}

/// Ends every process that carries this run id, and everything that descends from one.
///
/// # Errors
///
/// [`Error::Os`] if the process table cannot be read.
pub fn stop(run_id: RunId, users: Users, plan: &Plan) -> Result<StopReport, Error> {
    stop_selected(run_id, Vec::new(), &|entry| belongs(entry, run_id, users), COLUMNS, plan)
}

/// Ends every process that carries the marker or lineage of a run of this very BEAM, of any user, those that
/// the run has `recorded`, also where they are hidden, and everything that descends from one. No caller
/// has named the run, so arguments do not count.
///
/// # Errors
///
/// [`Error::Os`] if the process table cannot be read.
pub fn sweep(run_id: RunId, recorded: Vec<Identity>, plan: &Plan) -> Result<StopReport, Error> {
    let own = Owner::current()?;
    stop_selected(run_id, recorded, &|entry| is_marked(entry, run_id, &own), MARKS, plan)
}

fn stop_selected(
    run_id: RunId,
    identities: Vec<Identity>,
    select: &dyn Fn(&Entry) -> bool,
    columns: Columns,
    plan: &Plan,
) -> Result<StopReport, Error> {
    let mut roots = Roots { identities, select, columns, freeze: true };
    // Order: the whole tree is listed before anyone is asked to end. A parent that ends takes with it the
    // trace to descendants that carry no marker.
    let members = roots.list()?;
    let hidden = confirmed_by_marker(&roots.identities)?;
    let apart = stop::stop(&hidden, Some(run_id), plan)?;
    let outcomes = stop::ask(&members, Some(run_id), plan)?;
    let asked = outcomes.iter().filter(|one| matches!(one, Outcome::Stopped | Outcome::Gone));
    let stopped = asked.count();
    roots.identities.extend(members);
    let rest = tree::kill(&roots, Instant::now() + plan.kill_wait)?;
    let mut report = StopReport { stopped, killed: rest.killed, survivors: rest.survivors };
    for (identity, outcome) in hidden.into_iter().zip(apart) {
        match outcome {
            Outcome::Stopped => report.stopped += 1,
            Outcome::Killed => report.killed += 1,
            Outcome::Gone => {}
            _ => report.survivors.push(identity),
        }
    }
    Ok(report)
}

/// Returns those that only their run's marker confirms, each time anew: hidden ones, where there are no
/// handles.
fn confirmed_by_marker(identities: &[Identity]) -> Result<Vec<Identity>, Error> {
    let mut hidden = Vec::new();
    for identity in identities {
        if matches!(Process::reopen(identity, None)?, Found::Ambiguous) {
            hidden.push(identity.clone());
        }
    }
    Ok(hidden)
}

/// Returns whether a process says that it is of this run. What the environment says counts for more than
/// the arguments: those of a process that belongs to another run do not matter.
fn belongs(entry: &Entry, run_id: RunId, users: Users) -> bool {
    let carries = match &entry.environment {
        Environment::Read(markers) if markers.run_id.is_some() => markers.is_of_run(run_id),
        _ => RunId::from_arguments(entry.arguments.iter()) == Some(run_id),
    };
    let carries = carries || has_lineage(entry, run_id);
    carries && (users == Users::Any || is_own(entry))
}

/// As [`belongs`], but arguments do not count: anybody may have typed them. And the run id alone does
/// not either: it is unique among the runs of one instance, and another one may have drawn the same.
fn is_marked(entry: &Entry, run_id: RunId, own: &Owner) -> bool {
    let marked = match &entry.environment {
        Environment::Read(markers) => {
            markers.is_of_run(run_id) && markers.owner.as_ref() == Some(own)
        }
        _ => false,
    };
    marked || has_lineage(entry, run_id)
}

/// Scrubbed of everything else it may still show where it comes from.
fn has_lineage(entry: &Entry, run_id: RunId) -> bool {
    let lineage = Lineage::of(entry.pid).ok().flatten();
    lineage.is_some_and(|lineage| lineage.run_id == run_id)
}

/// Reads the user only of those that carry the id: for all of them it would cost a third file each.
fn is_own(entry: &Entry) -> bool {
    let columns = Columns { uid: true, ..Columns::default() };
    let uid = table::read_one(entry.pid, columns).ok().flatten().and_then(|entry| entry.uid);
    uid == Some(nix::unistd::getuid().as_raw())
}
