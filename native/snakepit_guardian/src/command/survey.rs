//! What is there: the runs of a data directory that were not closed, and the processes that are theirs.
//!
//! A ledger names processes by identities, and processes say themselves whose they are. What descends from one
//! of those counts too. Nothing is signalled here and no lock is taken.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use snakepit_core::descendants;
use snakepit_core::ledger::{self, Ledger};
use snakepit_core::lineage::Lineage;
use snakepit_core::marker::Markers;
use snakepit_core::place::{self, Whereabouts};
use snakepit_core::run_id::RunId;
use snakepit_core::table::{self, Columns, Entry, Environment};
use snakepit_core::usage::{self, Details, Root};
use snakepit_core::{Identity, guardian};

use super::Failure;
use super::data_dir::{self, Instance};

/// How a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its BEAM runs.
    Running,
    /// Its BEAM is gone, and its guardian is ending its processes.
    Ending,
    /// Nobody looks after it any more: the next start, or `reap`, does.
    Dead,
    /// It is in another container, or on another machine.
    Elsewhere,
    /// It is from before the last boot: nothing is left.
    OtherBoot,
}

impl Standing {
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ending => "ending",
            Self::Dead => "dead",
            Self::Elsewhere => "elsewhere",
            Self::OtherBoot => "other boot",
        }
    }
}

/// A process of a run.
#[derive(Clone, Debug)]
pub struct Member {
    pub entry: Entry,
    /// Its worker; empty if that is not known.
    pub worker: String,
    /// Whether its parent is of the same worker too.
    pub below: bool,
}

/// What one worker, or what belongs to none, uses.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The process that was recorded.
    pub os_pid: Option<i64>,
    /// Its command, as it was recorded.
    pub command: Vec<Vec<u8>>,
    pub processes: u64,
    pub cpu_us: u64,
    pub rss_bytes: u64,
    /// Of the oldest process.
    pub uptime_ms: Option<u64>,
}

/// A run that was not closed.
#[derive(Debug)]
pub struct RunSurvey {
    pub id: RunId,
    pub standing: Standing,
    pub ledger: Ledger,
    pub guardian: Option<Identity>,
    pub members: Vec<Member>,
    /// By worker; the empty name has what belongs to none.
    pub trees: BTreeMap<String, Tree>,
}

/// A data directory.
#[derive(Debug)]
pub struct Survey {
    pub data_dir: PathBuf,
    pub instance: Option<String>,
    pub runs: Vec<RunSurvey>,
    /// Processes of this instance whose run has no directory any more.
    pub strays: Vec<Member>,
    /// Runs that may not be read, because others can have written there.
    pub foreign: Vec<RunId>,
}

const COLUMNS: Columns = Columns { uid: false, arguments: true, markers: true };

/// Looks at a data directory and at the process table.
pub fn of(data_dir: &Path) -> Result<Survey, Failure> {
    let instance = match data_dir::instance(data_dir) {
        Ok(Instance::Known(instance)) => Some(instance),
        Ok(Instance::Newer(layout)) => return Err(Failure::newer(data_dir, layout)),
        Ok(Instance::Unknown) | Err(_) => None,
    };
    let (own, foreign) = data_dir::runs(data_dir)?;
    let mut known = HashSet::new();
    let mut runs = Vec::new();
    for (id, files) in own {
        known.insert(id);
        if !data_dir::is_closed(&files) {
            runs.push(read(id, &data_dir.join(id.to_string()))?);
        }
    }
    let table = table::read(COLUMNS).map_err(|error| Failure::of("the process table", &error))?;
    let processes = Processes::new(&table);
    for run in &mut runs {
        run.members = processes.of_run(run);
        run.trees = trees(run);
    }
    let strays = instance.as_deref().map(|instance| processes.strays(instance, &known));
    Ok(Survey {
        data_dir: data_dir.to_owned(),
        instance,
        runs,
        strays: strays.unwrap_or_default(),
        foreign,
    })
}

fn read(id: RunId, directory: &Path) -> Result<RunSurvey, Failure> {
    let failed = |error| Failure::at(directory, &error);
    let ledger = Ledger::read(directory, id).map_err(failed)?;
    let guardian = match &ledger.guardian {
        Some(recorded) => guardian::find(recorded, id).map_err(failed)?,
        None => None,
    };
    let standing = match place::whereabouts(ledger.run.as_ref()).map_err(failed)? {
        Whereabouts::Running => Standing::Running,
        Whereabouts::Here if guardian.is_some() => Standing::Ending,
        Whereabouts::Here => Standing::Dead,
        Whereabouts::OtherBoot => Standing::OtherBoot,
        Whereabouts::OtherContainer | Whereabouts::Elsewhere => Standing::Elsewhere,
    };
    let (members, trees) = (Vec::new(), BTreeMap::new());
    Ok(RunSurvey { id, standing, ledger, guardian, members, trees })
}

/// The process table, by parents.
struct Processes<'t> {
    table: &'t [Entry],
    children: HashMap<i32, Vec<usize>>,
}

impl<'t> Processes<'t> {
    fn new(table: &'t [Entry]) -> Self {
        let mut children: HashMap<i32, Vec<usize>> = HashMap::new();
        for (index, entry) in table.iter().enumerate() {
            children.entry(entry.parent).or_default().push(index);
        }
        Self { table, children }
    }

    fn of_run(&self, run: &RunSurvey) -> Vec<Member> {
        // Of another place the pids mean nothing here.
        if matches!(run.standing, Standing::Elsewhere | Standing::OtherBoot) {
            return Vec::new();
        }
        let key = |identity: &Identity| (identity.pid.as_raw(), identity.start);
        let mut recorded: HashMap<(i32, u64), &str> = HashMap::new();
        // Of a daemon that has emptied its environment, what it has inherited says which worker's it is.
        let mut inherited: HashMap<Lineage, &str> = HashMap::new();
        recorded.extend(run.ledger.adopted.iter().map(|adopted| (key(adopted), "")));
        for (worker, record) in &run.ledger.workers {
            if let Some(identity) = ledger::identity_of(record) {
                recorded.insert(key(&identity), worker);
                if let Some(lineage) = self.lineage_of(&identity, run.id) {
                    inherited.insert(lineage, worker);
                }
            }
        }
        let instance = run.ledger.run.as_ref().map(|record| record.instance.as_bytes());
        self.members(|entry| {
            // It waits at its gate, and has run nothing yet.
            if guardian::run_of(entry) == Some(run.id) {
                return None;
            }
            let noted = recorded.get(&(entry.pid.as_raw(), entry.start)).copied();
            let lineage = Lineage::of(entry.pid).ok().flatten();
            let lineage = lineage.filter(|lineage| lineage.run_id == run.id);
            let known = noted.filter(|worker| !worker.is_empty()).map(str::to_owned);
            let marked = marked_worker(entry, |markers| {
                markers.is_of_run(run.id) && markers.instance.as_deref() == instance
            });
            let worker = lineage.and_then(|lineage| inherited.get(&lineage).copied());
            known
                .or(marked)
                .or_else(|| worker.map(str::to_owned))
                .or_else(|| noted.or(lineage.map(|_| "")).map(str::to_owned))
        })
    }

    /// Returns the lineage of a process that is still there.
    fn lineage_of(&self, identity: &Identity, run_id: RunId) -> Option<Lineage> {
        let is_it = |entry: &&Entry| (entry.pid, entry.start) == (identity.pid, identity.start);
        let entry = self.table.iter().find(is_it)?;
        Lineage::of(entry.pid).ok().flatten().filter(|lineage| lineage.run_id == run_id)
    }

    fn strays(&self, instance: &str, known: &HashSet<RunId>) -> Vec<Member> {
        self.members(|entry| {
            marked_worker(entry, |markers| {
                markers.instance.as_deref() == Some(instance.as_bytes())
                    && markers.run_id.is_some_and(|id| !known.contains(&id))
            })
        })
    }

    /// Those of which `worker_of` knows the worker, and what descends from them; parents before their children.
    fn members(&self, worker_of: impl Fn(&Entry) -> Option<String>) -> Vec<Member> {
        let worker_of = |entry: &Entry| if entry.is_alive() { worker_of(entry) } else { None };
        let own: Vec<Option<String>> = self.table.iter().map(worker_of).collect();
        let claimed: HashMap<i32, usize> = (0..own.len())
            .filter(|index| own[*index].is_some())
            .map(|index| (self.table[index].pid.as_raw(), index))
            .collect();
        let mut seen = HashSet::new();
        let mut members = Vec::new();
        for (index, worker) in own.iter().enumerate() {
            let Some(worker) = worker else { continue };
            let has_claimed_parent = claimed.contains_key(&self.table[index].parent);
            if !has_claimed_parent {
                self.descend(index, worker, false, &own, &mut seen, &mut members);
            }
        }
        members
    }

    fn descend(
        &self,
        first: usize,
        worker: &str,
        below: bool,
        own: &[Option<String>],
        seen: &mut HashSet<usize>,
        members: &mut Vec<Member>,
    ) {
        let mut next = vec![(first, worker.to_owned(), below)];
        while let Some((index, inherited, below)) = next.pop() {
            if !seen.insert(index) {
                continue;
            }
            let entry = &self.table[index];
            let worker = own[index].clone().filter(|one| !one.is_empty()).unwrap_or(inherited);
            for child in self.children.get(&entry.pid.as_raw()).into_iter().flatten().rev() {
                if self.table[*child].is_alive() {
                    let same =
                        own[*child].as_ref().is_none_or(|one| one.is_empty() || *one == worker);
                    next.push((*child, worker.clone(), same));
                }
            }
            members.push(Member { entry: entry.clone(), worker, below });
        }
    }
}

/// Returns the worker that a process names itself, if its markers are those that are meant.
fn marked_worker(entry: &Entry, are_meant: impl Fn(&Markers) -> bool) -> Option<String> {
    let Environment::Read(markers) = &entry.environment else { return None };
    let worker = || markers.worker_id.as_deref().unwrap_or_default();
    are_meant(markers).then(|| String::from_utf8_lossy(worker()).into_owned())
}

/// Sums up what each worker of a run uses. Those that were recorded and have no process are there too.
fn trees(run: &RunSurvey) -> BTreeMap<String, Tree> {
    let mut trees: BTreeMap<String, Tree> = BTreeMap::new();
    for (worker, record) in &run.ledger.workers {
        let command = record.command.clone();
        trees.insert(worker.clone(), Tree { os_pid: record.os_pid, command, ..Tree::default() });
    }
    let mut roots: BTreeMap<&str, Vec<Root>> = BTreeMap::new();
    for member in &run.members {
        if !member.below {
            let root = Root { pid: member.entry.pid, start: member.entry.start };
            roots.entry(&member.worker).or_default().push(root);
        }
        let age = descendants::age(&member.entry);
        let age = age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let tree = trees.entry(member.worker.clone()).or_default();
        tree.uptime_ms = tree.uptime_ms.max(age);
    }
    for (worker, roots) in roots {
        let tree = trees.entry(worker.to_owned()).or_default();
        for row in usage::of_tree(&roots, Details::default()).iter().filter(|row| row.alive) {
            tree.processes += 1;
            tree.cpu_us += row.user_us + row.system_us;
            tree.rss_bytes += row.rss_bytes;
        }
    }
    trees
}
