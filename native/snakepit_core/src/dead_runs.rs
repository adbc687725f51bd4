//! What dead runs have left behind: found in one pass over the process table, ended together.
//!
//! What a ledger says is a hint. What is ended is a process that *is* one of those that the run recorded,
//! by its identity; or says so itself, by markers of this instance whose BEAM is gone or by a
//! lineage; or descends from one of those. Arguments alone do not count: anybody may have typed them.

use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::time::Instant;

use nix::errno::Errno;

use crate::lineage::Lineage;
use crate::marker::{Markers, Owner};
use crate::process::Found;
use crate::run_id::RunId;
use crate::stop::{self, Outcome, Plan};
use crate::table::{self, Columns, Entry, Environment};
use crate::tree::{self, Roots};
use crate::{Error, Identity, Pid, Process, guardian, os};

/// A run whose BEAM is gone.
#[derive(Clone, Debug)]
pub struct DeadRun {
    /// Its id.
    pub run_id: RunId,
    /// The processes that it recorded: workers, and daemons that its guardian adopted.
    pub identities: Vec<Identity>,
}

/// Which processes to look for.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The dead runs.
    pub runs: &'a [DeadRun],
    /// This instance. Others' processes are left alone.
    pub instance: &'a [u8],
    /// Runs of this instance that are someone else's business: alive, or being cleaned up by another.
    pub spared: &'a HashSet<RunId>,
}

/// A process that is a dead run's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Whose it is, by the place of the run in the search; one behind the last for a run that has no directory any more.
    pub run: usize,
    /// The process.
    pub identity: Identity,
    /// Why that is sure.
    pub proof: Proof,
}

/// What says that a process is a run's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// It is the very process that the run has recorded.
    Recorded,
    /// Its environment has the markers of this instance and of a BEAM that is gone.
    Marked,
    /// It has inherited the lineage of the run.
    Lineage,
    /// It descends from another one that was found.
    Descends,
}

/// What dead runs have left behind.
#[derive(Debug, Default)]
pub struct Findings {
    /// The processes that [`stop`] would end.
    pub processes: Vec<Finding>,
    /// Those that may or may not be ones that were recorded, and the place of their run. They are left alone.
    pub ambiguous: Vec<(usize, Identity)>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The process.
    pub identity: Identity,
    /// Whether it had to be killed.
    pub killed: bool,
}

/// What became of one run's processes.
#[derive(Debug, Default)]
pub struct RunCleanup {
    /// How many were found, descendants included.
    pub found: usize,
    /// How many of them ended when asked.
    pub stopped: usize,
    /// How many had to be killed.
    pub killed: usize,
    /// Each of both.
    pub ended: Vec<Ended>,
    /// Those that may or may not be the ones that were recorded, and were left alone.
    pub ambiguous: Vec<Identity>,
    /// Those that are still there.
    pub survivors: Vec<Identity>,
}

impl RunCleanup {
    fn add(&mut self, identities: &[Identity], outcomes: &[Outcome]) {
        self.found += identities.len();
        for (identity, outcome) in identities.iter().zip(outcomes) {
            match outcome {
                Outcome::Stopped | Outcome::Gone => self.end(identity, false),
                Outcome::Killed => self.end(identity, true),
                _ => self.survivors.push(identity.clone()),
            }
        }
    }

    fn end(&mut self, identity: &Identity, killed: bool) {
        if killed {
            self.killed += 1;
        } else {
            self.stopped += 1;
        }
        self.ended.push(Ended { identity: identity.clone(), killed });
    }
}

/// What became of the processes of all runs.
#[derive(Debug)]
pub struct CleanupReport {
    /// For each run that was given, in that order.
    pub runs: Vec<RunCleanup>,
    /// Processes of this instance whose run has no directory any more, and whose BEAM is gone.
    pub strays: RunCleanup,
}

const COLUMNS: Columns = Columns { uid: false, arguments: false, markers: true };

/// What a search has turned up in the ledgers, before the process table is read.
struct Recorded<'a> {
    search: Search<'a>,
    claims: Claims<'a>,
    /// Those that are there, and the place of their run.
    there: Vec<(Identity, usize)>,
    /// Of each run, those that only its marker confirms, each time anew.
    hidden: Vec<Vec<Identity>>,
    ambiguous: Vec<(usize, Identity)>,
}

impl<'a> Recorded<'a> {
    fn find(search: Search<'a>) -> Result<Self, Error> {
        let claims = Claims::new(search);
        let mut there = Vec::new();
        let mut ambiguous = Vec::new();
        let mut hidden: Vec<Vec<Identity>> = search.runs.iter().map(|_| Vec::new()).collect();
        for (index, run) in search.runs.iter().enumerate() {
            for identity in &run.identities {
                match Process::reopen(identity, Some(run.run_id))? {
                    Found::Same(process) => match confirmed(&process)? {
                        Some(identity) => there.push((identity, index)),
                        None => hidden[index].push(identity.clone()),
                    },
                    Found::Gone => {}
                    Found::Ambiguous => ambiguous.push((index, identity.clone())),
                }
            }
        }
        Ok(Self { search, claims, there, hidden, ambiguous })
    }

    /// Calls `with` with the roots of everything that is to be ended.
    fn with_roots<T>(&self, with: impl FnOnce(Roots) -> Result<T, Error>) -> Result<T, Error> {
        let identities = self.there.iter().map(|(identity, _)| identity.clone()).collect();
        let select = |entry: &Entry| self.claims.run_of(entry).is_some();
        with(Roots { identities, select: &select, columns: COLUMNS, freeze: true })
    }
}

/// Returns what [`stop`] would end now, and why. Signals nothing.
///
/// # Errors
///
/// As for [`stop`].
pub fn list(search: Search) -> Result<Findings, Error> {
    let recorded = Recorded::find(search)?;
    let members = recorded.with_roots(|roots| roots.list())?;
    let attribution = Attribution::new(&recorded.claims, &recorded.there, &members)?;
    let there: HashSet<_> =
        recorded.there.iter().map(|(one, _)| (one.pid.as_raw(), one.start)).collect();
    let mut processes = Vec::new();
    for identity in members {
        let run = attribution.index(&identity);
        let proof = if there.contains(&(identity.pid.as_raw(), identity.start)) {
            Proof::Recorded
        } else {
            recorded.claims.proof(&identity)?
        };
        processes.push(Finding { run, identity, proof });
    }
    for (run, hidden) in recorded.hidden.into_iter().enumerate() {
        let found = hidden.into_iter();
        processes.extend(found.map(|identity| Finding { run, identity, proof: Proof::Recorded }));
    }
    Ok(Findings { processes, ambiguous: recorded.ambiguous })
}

/// Ends what dead runs have left behind, in one grace period for all.
///
/// # Errors
///
/// [`Error::Os`] if the process table cannot be read.
pub fn stop(search: Search, plan: &Plan) -> Result<CleanupReport, Error> {
    let recorded = Recorded::find(search)?;
    recorded.with_roots(|roots| stop_all(&recorded, roots, plan))
}

fn stop_all(recorded: &Recorded, mut roots: Roots, plan: &Plan) -> Result<CleanupReport, Error> {
    let Recorded { search, claims, there, hidden, ambiguous } = recorded;
    let mut cleanups: Vec<RunCleanup> =
        (0..=search.runs.len()).map(|_| RunCleanup::default()).collect();
    for (index, identity) in ambiguous {
        cleanups[*index].ambiguous.push(identity.clone());
    }
    // Order: the whole tree is listed before anyone is asked to end. A parent that ends takes with it the
    // trace to descendants that carry no marker.
    let members = roots.list()?;
    let attribution = Attribution::new(claims, there, &members)?;
    for member in &members {
        cleanups[attribution.index(member)].found += 1;
    }

    for (index, identities) in hidden.iter().enumerate() {
        let outcomes = stop::stop(identities, Some(search.runs[index].run_id), plan)?;
        cleanups[index].add(identities, &outcomes);
    }
    let outcomes = stop::ask(&members, None, plan)?;
    for (member, outcome) in members.iter().zip(outcomes) {
        if matches!(outcome, Outcome::Stopped | Outcome::Gone) {
            cleanups[attribution.index(member)].end(member, false);
        }
    }

    roots.identities.extend(members);
    let rest = tree::kill(&roots, Instant::now() + plan.kill_wait)?;
    for identity in &rest.signalled {
        let survived = rest.survivors.iter().any(|survivor| is_same_process(identity, survivor));
        if !survived {
            cleanups[attribution.index(identity)].end(identity, true);
        }
    }
    for survivor in rest.survivors {
        cleanups[attribution.index(&survivor)].survivors.push(survivor);
    }
    let strays = cleanups.pop().unwrap_or_default();
    Ok(CleanupReport { runs: cleanups, strays })
}

/// Returns the identity that names the process from here on without its run's marker. `None` for one that
/// is hidden where there are no handles.
fn confirmed(process: &Process) -> Result<Option<Identity>, Error> {
    let identity = process.settled_identity().unwrap_or_else(|| process.identity().clone());
    let found = Process::reopen(&identity, None)?;
    Ok((!matches!(found, Found::Ambiguous)).then_some(identity))
}

fn is_running(pid: Pid) -> Result<bool, Errno> {
    os::Reference::open(pid)?
        .map_or(Ok(false), |reference| reference.has_exited().map(|exited| !exited))
}

fn is_same_process(one: &Identity, other: &Identity) -> bool {
    one.pid == other.pid && one.start == other.start
}

/// Decides which run a process says it is of.
struct Claims<'a> {
    search: Search<'a>,
    runs: HashMap<RunId, usize>,
    /// Who asks.
    own: Option<Owner>,
    /// Whether a BEAM that a marker names is gone.
    gone: RefCell<HashMap<(i32, u64), bool>>,
    /// The guardians that this process is below.
    outer: OnceCell<HashSet<Pid>>,
}

impl<'a> Claims<'a> {
    fn new(search: Search<'a>) -> Self {
        let runs = search.runs.iter().enumerate().map(|(index, run)| (run.run_id, index));
        let own = Owner::current().ok();
        Self { search, runs: runs.collect(), own, gone: RefCell::default(), outer: OnceCell::new() }
    }

    fn stray(&self) -> usize {
        self.search.runs.len()
    }

    /// Returns the run that an entry says it is of; one behind the last for a run that is not known.
    fn run_of(&self, entry: &Entry) -> Option<usize> {
        // Without its environment a process still has its lineage, which names the run alone.
        self.marked_run(entry).or_else(|| {
            let lineage = Lineage::of(entry.pid).ok().flatten()?;
            self.runs.get(&lineage.run_id).copied()
        })
    }

    fn marked_run(&self, entry: &Entry) -> Option<usize> {
        let Environment::Read(markers) = &entry.environment else { return None };
        self.marked(markers).filter(|run| !self.is_stray_of_another(entry, *run))
    }

    /// Returns what one that was not recorded says of itself.
    fn proof(&self, identity: &Identity) -> Result<Proof, Error> {
        let entry = table::read_one(identity.pid, COLUMNS)?;
        let entry = entry.filter(|entry| entry.start == identity.start);
        Ok(match entry {
            Some(entry) if self.marked_run(&entry).is_some() => Proof::Marked,
            Some(entry) if self.run_of(&entry).is_some() => Proof::Lineage,
            _ => Proof::Descends,
        })
    }

    fn marked(&self, markers: &Markers) -> Option<usize> {
        let run_id = markers.run_id?;
        let owner = markers.owner.as_ref()?;
        let ours = markers.instance.as_deref() == Some(self.search.instance);
        if !ours || self.search.spared.contains(&run_id) || !self.is_gone(owner) {
            return None;
        }
        Some(self.runs.get(&run_id).copied().unwrap_or_else(|| self.stray()))
    }

    fn is_stray_of_another(&self, entry: &Entry, run: usize) -> bool {
        run == self.stray() && self.has_living_guardian(entry)
    }

    /// Returns whether a BEAM is gone. In doubt it is there: another container's pids mean nothing here. An
    /// earlier run of this very BEAM, whose application was started again, is as dead as any; the present one
    /// is spared.
    fn is_gone(&self, owner: &Owner) -> bool {
        if !owner.is_from_here() {
            return false;
        }
        if self.own.as_ref() == Some(owner) {
            return true;
        }
        let key = (owner.pid.as_raw(), owner.start);
        *self.gone.borrow_mut().entry(key).or_insert_with(|| {
            match table::read_one(owner.pid, Columns::default()) {
                Ok(Some(entry)) => entry.start != owner.start || !entry.is_alive(),
                // A hidden process is there.
                Ok(None) => matches!(is_running(owner.pid), Ok(false)),
                Err(_) => false,
            }
        })
    }

    /// Returns whether it is below a guardian that lives, of any BEAM. One that this BEAM itself is below
    /// does not count: what earlier BEAMs in the same place have left is below it too.
    fn has_living_guardian(&self, entry: &Entry) -> bool {
        let outer = self.outer.get_or_init(|| guardian::above(Pid::current()).collect());
        guardian::above(entry.pid).any(|guardian| !outer.contains(&guardian))
    }
}

/// Which run each process counts for.
struct Attribution {
    runs: HashMap<(i32, u64), usize>,
    stray: usize,
}

impl Attribution {
    fn new(
        claims: &Claims,
        recorded: &[(Identity, usize)],
        members: &[Identity],
    ) -> Result<Self, Error> {
        let key = |one: &Identity| (one.pid.as_raw(), one.start);
        let mut runs: HashMap<_, _> =
            recorded.iter().map(|(one, index)| (key(one), *index)).collect();
        // Parents come last in the list and are looked at first: a child that says nothing itself
        // is its parent's.
        let mut of_pid: HashMap<i32, usize> = HashMap::new();
        for member in members.iter().rev() {
            let key = (member.pid.as_raw(), member.start);
            let entry = table::read_one(member.pid, COLUMNS)?;
            let run = runs
                .get(&key)
                .copied()
                .or_else(|| entry.as_ref().and_then(|entry| claims.run_of(entry)))
                .or_else(|| entry.as_ref().and_then(|entry| of_pid.get(&entry.parent).copied()))
                .unwrap_or_else(|| claims.stray());
            of_pid.insert(member.pid.as_raw(), run);
            runs.insert(key, run);
        }
        Ok(Self { runs, stray: claims.stray() })
    }

    fn index(&self, identity: &Identity) -> usize {
        let key = (identity.pid.as_raw(), identity.start);
        self.runs.get(&key).copied().unwrap_or(self.stray)
    }
}
