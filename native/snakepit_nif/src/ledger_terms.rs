//! The files of a run, and what dead runs have left behind, as Elixir sees them.

use std::sync::{Mutex, PoisonError};

use rustler::env::{OwnedEnv, SavedTerm};
use rustler::{
    Atom, Binary, Encoder, Env, LocalPid, NifMap, NifUnitEnum, Resource, ResourceArc, Term,
};
use snakepit_core::dead_runs::{CleanupReport, DeadRun, RunCleanup};
use snakepit_core::identity::Origin;
use snakepit_core::journal::{Contents, Journal};
use snakepit_core::lock::Lock;
use snakepit_core::obituary::{Ended, Obituary, Reaped, Used};
use snakepit_core::queue::Queue;
use snakepit_core::run::RunMember;
use snakepit_core::run_id::RunId;
use snakepit_core::{Error, Identity};

use crate::terms::{Bytes, ErrorTerm, Items, ProcessTerm, map};

mod atoms {
    rustler::atoms! {
        entries, ignored, found, stopped, killed, ambiguous, doubtful, survivors, runs, strays,
        run_id, beam_pid, detected_at, detected_by, duration_ms, processes, worker_id, os_pid,
        after_ms, ended, identity, usage, user_us, system_us, max_rss_kb,
    }
}

/// A journal that is being written, for as long as a term refers to it, and what is to be written.
pub struct JournalResource {
    pub journal: Journal,
    pub queue: Queue<Waiter>,
}

#[rustler::resource_impl]
impl Resource for JournalResource {}

/// A process that waits for its entry to be written, and the term by which it knows the answer.
pub struct Waiter {
    pid: LocalPid,
    env: OwnedEnv,
    tag: SavedTerm,
}

/// What has become of an entry, and whether the caller has to call `journal_write/1`.
#[derive(NifUnitEnum)]
pub enum TurnTerm {
    Appended,
    Write,
    Waits,
}

impl JournalResource {
    pub fn new(journal: Journal) -> Self {
        Self { journal, queue: Queue::default() }
    }

    pub fn enqueue(&self, pid: LocalPid, tag: Term, content: &[u8]) -> TurnTerm {
        let env = OwnedEnv::new();
        let tag = env.save(tag);
        let writes = self.queue.push(Waiter { pid, env, tag }, content.to_vec());
        if writes { TurnTerm::Write } else { TurnTerm::Waits }
    }

    pub fn write_all(&self, env: Env) {
        self.queue.write_all(&self.journal, |waiter, result| {
            let answer = result.map_err(ErrorTerm::from);
            // One that has died waits for nothing.
            let Waiter { pid, env: own, tag } = waiter;
            own.run(|own| {
                let tag = tag.load(own).in_env(env);
                let _ = env.send(&pid, (tag, answer));
            });
        });
    }
}

/// A lock, until it is released or no term refers to it.
pub struct LockResource(Mutex<Option<Lock>>);

#[rustler::resource_impl]
impl Resource for LockResource {}

impl LockResource {
    pub fn new(lock: Lock) -> ResourceArc<Self> {
        ResourceArc::new(Self(Mutex::new(Some(lock))))
    }

    pub fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// `%{entries: [binary], ignored: bytes}`.
pub struct ContentsTerm(pub Contents);

impl Encoder for ContentsTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let entries: Vec<_> = self.0.entries.iter().cloned().map(Bytes).collect();
        let pairs = [
            (atoms::entries(), entries.encode(env)),
            (atoms::ignored(), self.0.ignored.encode(env)),
        ];
        map(env, &pairs)
    }
}

#[derive(NifUnitEnum)]
pub enum OriginTerm {
    Here,
    OtherBoot,
    OtherNamespace,
    Elsewhere,
    Unknown,
}

impl From<Origin> for OriginTerm {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Here => Self::Here,
            Origin::OtherBoot => Self::OtherBoot,
            Origin::OtherNamespace => Self::OtherNamespace,
            Origin::Elsewhere => Self::Elsewhere,
            Origin::Unknown => Self::Unknown,
        }
    }
}

/// `%{run_id: id, identities: [identity]}`.
#[derive(NifMap)]
pub struct DeadRunTerm<'a> {
    run_id: Binary<'a>,
    identities: Items<Binary<'a>>,
}

impl DeadRunTerm<'_> {
    /// Identities that are damaged name nobody.
    pub fn run(&self) -> Result<DeadRun, Error> {
        let run_id = RunId::from_bytes(&self.run_id).ok_or(Error::NotARunId)?;
        let identities = self.identities.0.iter();
        let identities = identities.filter_map(|one| Identity::decode(one).ok()).collect();
        Ok(DeadRun { run_id, identities })
    }
}

/// `%{runs: [cleanup], strays: cleanup}`.
pub struct CleanupReportTerm(pub CleanupReport);

impl Encoder for CleanupReportTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let runs: Vec<_> = self.0.runs.iter().map(|run| cleanup(env, run)).collect();
        let pairs =
            [(atoms::runs(), runs.encode(env)), (atoms::strays(), cleanup(env, &self.0.strays))];
        map(env, &pairs)
    }
}

fn cleanup<'a>(env: Env<'a>, cleanup: &RunCleanup) -> Term<'a> {
    let survivors: Vec<_> = cleanup.survivors.iter().cloned().map(ProcessTerm).collect();
    let ended = cleanup.ended.iter();
    let ended: Vec<_> = ended.map(|one| (one.identity.pid.as_raw(), one.killed)).collect();
    let doubtful: Vec<_> = cleanup.ambiguous.iter().cloned().map(ProcessTerm).collect();
    let pairs = [
        (atoms::found(), cleanup.found.encode(env)),
        (atoms::stopped(), cleanup.stopped.encode(env)),
        (atoms::killed(), cleanup.killed.encode(env)),
        (atoms::ambiguous(), cleanup.ambiguous.len().encode(env)),
        (atoms::doubtful(), doubtful.encode(env)),
        (atoms::survivors(), survivors.encode(env)),
        (atoms::ended(), ended.encode(env)),
    ];
    map(env, &pairs)
}

/// `%{os_pid: pid, identity: identity, worker_id: id | nil}`.
pub struct MemberTerm(pub RunMember);

impl Encoder for MemberTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let pairs = [
            (atoms::os_pid(), self.0.identity.pid.as_raw().encode(env)),
            (atoms::identity(), Bytes(self.0.identity.encode()).encode(env)),
            (atoms::worker_id(), self.0.worker_id.clone().map(Bytes).encode(env)),
        ];
        map(env, &pairs)
    }
}

/// What was reaped of a dead run; see `snakepit_core::obituary`.
#[derive(NifMap)]
pub struct ReapedTerm {
    run_id: String,
    beam_pid: i64,
    last_heard_at: i64,
    reaped_at: i64,
    duration_ms: u64,
    processes: Vec<(String, i64, bool)>,
    survivors: Vec<i64>,
}

impl From<ReapedTerm> for Reaped {
    fn from(term: ReapedTerm) -> Self {
        let ReapedTerm { run_id, beam_pid, last_heard_at, reaped_at, duration_ms, .. } = term;
        let (processes, survivors) = (term.processes, term.survivors);
        Self { run_id, beam_pid, last_heard_at, reaped_at, duration_ms, processes, survivors }
    }
}

/// An obituary as a map; see `snakepit_core::obituary`.
pub struct ObituaryTerm(pub Obituary);

impl Encoder for ObituaryTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let obituary = &self.0;
        let processes: Vec<_> = obituary.processes.iter().map(|one| ended(env, one)).collect();
        let pairs: [(Atom, Term); 8] = [
            (atoms::run_id(), obituary.run_id.encode(env)),
            (atoms::beam_pid(), obituary.beam_pid.encode(env)),
            (atoms::detected_at(), obituary.detected_at.encode(env)),
            (atoms::detected_by(), obituary.detected_by.encode(env)),
            (atoms::duration_ms(), obituary.duration_ms.encode(env)),
            (atoms::processes(), processes.encode(env)),
            (atoms::survivors(), obituary.survivors.encode(env)),
            (atoms::usage(), used(env, obituary.used)),
        ];
        map(env, &pairs)
    }
}

fn ended<'a>(env: Env<'a>, ended: &Ended) -> Term<'a> {
    let pairs = [
        (atoms::worker_id(), ended.worker_id.encode(env)),
        (atoms::os_pid(), ended.pid.encode(env)),
        (atoms::killed(), ended.killed.encode(env)),
        (atoms::after_ms(), ended.after_ms.encode(env)),
        (atoms::usage(), used(env, ended.used)),
    ];
    map(env, &pairs)
}

fn used(env: Env, used: Used) -> Term {
    let pairs = [
        (atoms::user_us(), used.user_us.encode(env)),
        (atoms::system_us(), used.system_us.encode(env)),
        (atoms::max_rss_kb(), used.max_rss_kb.encode(env)),
    ];
    map(env, &pairs)
}
