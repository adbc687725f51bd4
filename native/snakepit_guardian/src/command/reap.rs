//! `reap`: what dead runs have left behind. Shows it, and ends it if told to.
//!
//! The rules are those of a start of the library (`Snakepit.Cleanup.Reaper`), and so is the code that finds, proves
//! and ends processes: a run is dead when its lock can be taken, was in this place, and is of this instance. Its
//! ledger stays open and in place, for the next start, which closes it; how its processes ended is left for that
//! start in an obituary.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use snakepit_core::dead_runs::{self, CleanupReport, DeadRun, Proof, RunCleanup, Search};
use snakepit_core::ledger::{Ledger, identity_of};
use snakepit_core::lock::Lock;
use snakepit_core::obituary::{self, Reaped};
use snakepit_core::place::{self, Whereabouts};
use snakepit_core::run_id::RunId;
use snakepit_core::stop::{self, Outcome, Plan};
use snakepit_core::table::{self, Columns, Environment};
use snakepit_core::{Identity, Signal, directory, guardian, marker, process};

use super::data_dir::{self, Instance};
use super::options::{Options, Reap};
use super::{Failure, Status};

mod report;

/// What the kernel may take to carry out SIGKILL (`force_kill_timeout_ms`).
const KILL_WAIT: Duration = Duration::from_secs(5);
/// What a guardian gives processes by default, and what it may take on top of that to kill and to write.
const GUARDIAN_GRACE: Duration = Duration::from_secs(3);
const GUARDIAN_SLACK: Duration = Duration::from_secs(3);

/// A run whose lock this process holds.
struct Dead {
    id: RunId,
    directory: PathBuf,
    ledger: Ledger,
    guardian: Option<Identity>,
    /// When it last wrote a file, in milliseconds since the epoch.
    last_written: i64,
    _lock: Lock,
}

/// A run that is left alone, and why.
type Spared = (RunId, String);

/// A process that was found.
struct Row {
    os_pid: i32,
    start: u64,
    worker: String,
    command: Vec<Vec<u8>>,
    proof: Proof,
    ended: Option<&'static str>,
}

/// What there is to say of one run, or of those that have no directory any more.
#[derive(Default)]
struct Section {
    id: Option<RunId>,
    beam_pid: Option<i64>,
    guardian: Option<i32>,
    stuck: bool,
    rows: Vec<Row>,
    ambiguous: Vec<i32>,
    survivors: Vec<i32>,
}

pub fn run(options: &Options, reap: &Reap) -> Result<Status, Failure> {
    let data_dirs = super::data_dirs(options)?;
    let data_dir = match data_dirs.as_slice() {
        [] => return report::show(options, reap, None, &[], &[]),
        [one] => one,
        several => {
            let names: Vec<String> =
                several.iter().map(|path| format!("\n  --data-dir {}", path.display())).collect();
            return Err(Failure::new(format!("there are several, say which:{}", names.concat())));
        }
    };
    let (mut dead, spared) = take(data_dir, reap.instance.as_deref())?;
    let instance = instance(data_dir, reap)?;
    let here = spared_ids(data_dir, &dead)?;
    let stuck = if reap.yes { await_guardians(&mut dead)? } else { HashSet::new() };
    let runs: Vec<DeadRun> = dead
        .iter()
        .map(|one| DeadRun { run_id: one.id, identities: one.ledger.identities() })
        .collect();
    let search = Search { runs: &runs, instance: instance.as_bytes(), spared: &here };
    let mut sections = find(&dead, search)?;
    if reap.yes {
        let plan = Plan { signal: Signal::TERM, grace: reap.grace, kill_wait: KILL_WAIT };
        let begun = now_ms();
        let cleaned = dead_runs::stop(search, &plan)
            .map_err(|error| Failure::of("ending processes", &error))?;
        fill_in(&mut sections, &cleaned);
        for (one, (cleanup, section)) in dead.iter().zip(cleaned.runs.iter().zip(&mut sections)) {
            section.stuck = stuck.contains(&one.id);
            leave_word(one, cleanup, section, begun)?;
        }
    }
    report::show(options, reap, Some(data_dir), &sections, &spared)
}

/// Takes the locks of runs that are dead, in this place and of this instance. Returns the others with the reason.
fn take(data_dir: &Path, instance: Option<&str>) -> Result<(Vec<Dead>, Vec<Spared>), Failure> {
    let own = match (instance, data_dir::instance(data_dir)) {
        (_, Ok(Instance::Newer(layout))) => return Err(Failure::newer(data_dir, layout)),
        (Some(instance), _) => Some(instance.to_owned()),
        (None, Ok(Instance::Known(instance))) => Some(instance),
        (None, _) => None,
    };
    let (runs, foreign) = data_dir::runs(data_dir)?;
    let mut dead = Vec::new();
    let mut spared: Vec<Spared> = foreign
        .into_iter()
        .map(|id| (id, "others than this user can have written to it".into()))
        .collect();
    for (id, files) in runs {
        if data_dir::is_closed(&files) {
            continue;
        }
        match take_one(id, data_dir.join(id.to_string()), own.as_deref())? {
            Ok(Some(one)) => dead.push(one),
            Ok(None) => {}
            Err(reason) => spared.push((id, reason)),
        }
    }
    Ok((dead, spared))
}

type Taken = Result<Option<Dead>, String>;

fn take_one(id: RunId, directory: PathBuf, instance: Option<&str>) -> Result<Taken, Failure> {
    // To end the run that this very process descends from would be to end ourselves.
    if std::env::var_os(marker::RUN_ID).is_some_and(|own| own == id.to_string().as_str()) {
        return Ok(Err("this command was started by one of its processes".into()));
    }
    let lock = match Lock::take(&directory.join("lock")) {
        Ok(Some(lock)) => lock,
        Ok(None) => return Ok(Err("its BEAM is alive: it holds the lock".into())),
        Err(error) => return Ok(Err(Failure::of("its lock cannot be taken", &error).0)),
    };
    let failed = |error| Failure::at(&directory, &error);
    // The previous holder of the lock may have closed it.
    let files = directory::list(&directory).map_err(failed)?;
    if files.iter().any(|name| name == "history") {
        return Ok(Ok(None));
    }
    let last_written = last_written(&directory, &files);
    let ledger = Ledger::read(&directory, id).map_err(failed)?;
    let reason = match place::whereabouts(ledger.run.as_ref()).map_err(failed)? {
        Whereabouts::Here => None,
        Whereabouts::Running => Some("its lock was removed, but its BEAM is alive"),
        Whereabouts::OtherContainer => Some("it was in another container"),
        Whereabouts::OtherBoot => Some("it is from before the last boot: nothing is left of it"),
        Whereabouts::Elsewhere => Some("it was on another machine, or that cannot be told"),
    };
    if let Some(reason) = reason {
        return Ok(Err(reason.into()));
    }
    if let (Some(instance), Some(record)) = (instance, &ledger.run) {
        if record.instance != instance {
            let other = super::text::printable(record.instance.as_bytes());
            return Ok(Err(format!("it is of another instance: --instance {other}")));
        }
    }
    let guardian = match &ledger.guardian {
        Some(recorded) => guardian::find(recorded, id).map_err(failed)?,
        None => None,
    };
    Ok(Ok(Some(Dead { id, directory, ledger, guardian, last_written, _lock: lock })))
}

/// The instance whose markers count. Where the directory does not say, its dead runs do, if they agree; otherwise no
/// marker counts.
fn instance(data_dir: &Path, reap: &Reap) -> Result<String, Failure> {
    if let Some(instance) = &reap.instance {
        return Ok(instance.clone());
    }
    match data_dir::instance(data_dir).map_err(|error| Failure::at(data_dir, &error))? {
        Instance::Known(instance) => Ok(instance),
        Instance::Newer(layout) => Err(Failure::newer(data_dir, layout)),
        // No variable of an environment has this value.
        Instance::Unknown => Ok("\0".into()),
    }
}

/// Every run of the directory that is not about to be reaped: what is closed is nobody's business any more, and what
/// is alive or elsewhere is somebody else's.
fn spared_ids(data_dir: &Path, dead: &[Dead]) -> Result<HashSet<RunId>, Failure> {
    let (runs, foreign) = data_dir::runs(data_dir)?;
    let open = runs.into_iter().filter(|(_, files)| !data_dir::is_closed(files)).map(|(id, _)| id);
    let is_dead = |id: &RunId| dead.iter().any(|one| one.id == *id);
    let own = std::env::var(marker::RUN_ID).ok();
    let own = own.and_then(|id| RunId::from_bytes(id.as_bytes()));
    Ok(open.chain(foreign).chain(own).filter(|id| !is_dead(id)).collect())
}

/// A guardian that is still ending processes knows more than any ledger, and gives them their grace period. One that
/// does not finish is killed. Returns the runs whose guardian cannot be killed.
fn await_guardians(dead: &mut [Dead]) -> Result<HashSet<RunId>, Failure> {
    let failed = |error| Failure::of("waiting for a guardian", &error);
    let guardians: Vec<Identity> = dead.iter().filter_map(|one| one.guardian.clone()).collect();
    if guardians.is_empty() {
        return Ok(HashSet::new());
    }
    let longest = dead.iter().map(|one| Duration::from_millis(one.ledger.grace_ms)).max();
    let patience = longest.unwrap_or_default().max(GUARDIAN_GRACE) + GUARDIAN_SLACK;
    let left = process::await_ends(&guardians, Instant::now() + patience).map_err(failed)?;
    let plan = Plan { signal: Signal::KILL, grace: Duration::ZERO, kill_wait: KILL_WAIT };
    let outcomes = stop::stop(&left, None, &plan).map_err(failed)?;
    let stuck: Vec<&Identity> = left
        .iter()
        .zip(outcomes)
        .filter(|(_, outcome)| {
            !matches!(outcome, Outcome::Killed | Outcome::Stopped | Outcome::Gone)
        })
        .map(|(identity, _)| identity)
        .collect();
    let is_stuck = |one: &&Dead| one.guardian.as_ref().is_some_and(|it| stuck.contains(&it));
    let ids = dead.iter().filter(is_stuck).map(|one| one.id).collect();
    // Order: read again behind it. It may have noted another daemon before it ended.
    for one in dead {
        let failed = |error| Failure::at(&one.directory, &error);
        one.ledger = Ledger::read(&one.directory, one.id).map_err(failed)?;
    }
    Ok(ids)
}

const COLUMNS: Columns = Columns { uid: false, arguments: true, markers: true };

/// Returns a section for each run, and one for strays, of what is there and why it is sure.
fn find(dead: &[Dead], search: Search) -> Result<Vec<Section>, Failure> {
    let findings =
        dead_runs::list(search).map_err(|error| Failure::of("looking for processes", &error))?;
    let mut sections: Vec<Section> = dead
        .iter()
        .map(|one| Section {
            id: Some(one.id),
            beam_pid: one.ledger.run.as_ref().and_then(|record| record.beam_pid),
            guardian: one.guardian.as_ref().map(|guardian| guardian.pid.as_raw()),
            ..Section::default()
        })
        .chain([Section::default()])
        .collect();
    for finding in findings.processes {
        let entry = table::read_one(finding.identity.pid, COLUMNS).ok().flatten();
        let ledger = dead.get(finding.run).map(|one| &one.ledger);
        let recorded = ledger.and_then(|ledger| {
            let mut workers = ledger.workers.values();
            let is_it = |of: &Identity| {
                (of.pid, of.start) == (finding.identity.pid, finding.identity.start)
            };
            workers.find(|one| identity_of(one).as_ref().is_some_and(is_it))
        });
        let marked = entry.as_ref().and_then(|entry| match &entry.environment {
            Environment::Read(markers) => markers.worker_id.clone(),
            _ => None,
        });
        let worker = recorded.map(|one| one.worker_id.clone());
        let worker = worker.or_else(|| Some(String::from_utf8_lossy(&marked?).into_owned()));
        let command = entry.map(|entry| entry.arguments.iter().map(<[u8]>::to_vec).collect());
        sections[finding.run].rows.push(Row {
            os_pid: finding.identity.pid.as_raw(),
            start: finding.identity.start,
            worker: worker.unwrap_or_default(),
            command: command.unwrap_or_default(),
            proof: finding.proof,
            ended: None,
        });
    }
    for (run, identity) in findings.ambiguous {
        sections[run].ambiguous.push(identity.pid.as_raw());
    }
    Ok(sections)
}

/// Notes how each process ended. Those that were started meanwhile are there from now on.
fn fill_in(sections: &mut [Section], cleaned: &CleanupReport) {
    for (section, cleanup) in sections.iter_mut().zip(cleaned.runs.iter().chain([&cleaned.strays]))
    {
        let rows = section.rows.iter().enumerate();
        let known: HashMap<(i32, u64), usize> =
            rows.map(|(index, row)| ((row.os_pid, row.start), index)).collect();
        let ended = cleanup.ended.iter();
        let ended = ended.map(|one| (&one.identity, if one.killed { "killed" } else { "stopped" }));
        let survived = cleanup.survivors.iter().map(|one| (one, "survived"));
        for (identity, how) in ended.chain(survived) {
            let key = (identity.pid.as_raw(), identity.start);
            match known.get(&key) {
                Some(index) => section.rows[*index].ended = Some(how),
                None => section.rows.push(Row {
                    os_pid: key.0,
                    start: key.1,
                    worker: String::new(),
                    command: Vec::new(),
                    proof: Proof::Descends,
                    ended: Some(how),
                }),
            }
        }
        section.ambiguous = cleanup.ambiguous.iter().map(|one| one.pid.as_raw()).collect();
        section.survivors = cleanup.survivors.iter().map(|one| one.pid.as_raw()).collect();
    }
}

/// Leaves an obituary for the next start, which closes the run. One of its guardian's is continued.
fn leave_word(
    dead: &Dead,
    cleanup: &RunCleanup,
    section: &Section,
    begun: i64,
) -> Result<(), Failure> {
    if cleanup.ended.is_empty() && cleanup.survivors.is_empty() {
        return Ok(());
    }
    let record = dead.ledger.run.as_ref();
    let started_at = record.and_then(|record| record.started_at).unwrap_or_default();
    let now = now_ms();
    let processes = section.rows.iter().filter_map(|row| {
        let killed = match row.ended? {
            "killed" => true,
            "stopped" => false,
            _ => return None,
        };
        Some((row.worker.clone(), i64::from(row.os_pid), killed))
    });
    let reaped = Reaped {
        run_id: dead.id.to_string(),
        beam_pid: record.and_then(|record| record.beam_pid).unwrap_or_default(),
        // The clock of files may be coarser than that of a start.
        last_heard_at: dead.last_written.max(started_at),
        reaped_at: now,
        duration_ms: u64::try_from(now - begun).unwrap_or_default(),
        processes: processes.collect(),
        survivors: section.survivors.iter().map(|pid| i64::from(*pid)).collect(),
    };
    obituary::add_reaped(&dead.directory, reaped).map_err(|error| {
        let directory = dead.directory.display();
        Failure::new(format!("{directory}: the obituary cannot be written: {error}"))
    })
}

fn last_written(directory: &Path, files: &[std::ffi::OsString]) -> i64 {
    let paths = files.iter().map(|name| directory.join(name)).chain([directory.to_owned()]);
    let changed = paths.filter_map(|path| path.symlink_metadata().ok()?.modified().ok());
    changed.max().map_or(0, milliseconds)
}

fn now_ms() -> i64 {
    milliseconds(SystemTime::now())
}

fn milliseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
