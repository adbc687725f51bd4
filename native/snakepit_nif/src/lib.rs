//! The NIFs: decode, call `snakepit_core`, encode. Nothing else lives here.
//!
//! | module | has the NIFs of |
//! |---|---|
//! | this one | processes, groups, runs, and the guardian's frames |
//! | `ledger` | the files of a run |
//! | `directory` | the data directory |
//! | `pipe`, `lines` | pipes to and from programs, and what comes through them |
//! | `channel` | connections over which descriptors go to the guardian |
//! | `terminal` | terminals of programs, and the one of this BEAM |
//! | `python`, `memory` | terms as Python workers have them |
//! | `usage` | who is of a tree, and what its processes use |
//! | `self_test` | what this place allows |
//!
//! `terms`, `ledger_terms` and `wire_terms` encode and decode.
//!
//! What takes one or two system calls runs on a normal scheduler. What reads the process table or
//! waits runs on a dirty I/O scheduler: it sleeps in the kernel most of the time.

// Rustler decodes arguments into owned values.
#![allow(clippy::needless_pass_by_value)]

mod channel;
mod directory;
mod ledger;
mod ledger_terms;
mod lines;
#[cfg(target_os = "linux")]
mod memory;
mod pipe;
mod python;
mod self_test;
mod terminal;
mod terms;
mod usage;
mod wire_terms;

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustler::{Atom, Binary, Term};
use snakepit_core::account;
use snakepit_core::clock;
use snakepit_core::dead_runs::{self, Search};
use snakepit_core::group;
use snakepit_core::marker::{self, Owner};
use snakepit_core::process::{self, Found};
use snakepit_core::run::{self, Users};
use snakepit_core::run_id::RunId;
use snakepit_core::stop::{self, Plan};
use snakepit_core::table::{Columns, Entry};
use snakepit_core::wire::{self, Request};
use snakepit_core::{Error, Pid, Process, Signal, guardian, identity, protect};

use ledger_terms::{CleanupReportTerm, DeadRunTerm, MemberTerm, OriginTerm};
use terms::{
    Bytes, DeliveryTerm, ErrorTerm, GroupTerm, IdentityTerm, InfoTerm, Items, OutcomeTerm, PidTerm,
    ProcessTerm, SignalTerm, StopReportTerm,
};
use wire_terms::{EventTerm, RequestTerm};

type Answer<T> = Result<T, ErrorTerm>;

/// `Snakepit.Native.clock_read/0`: milliseconds of the clock of leases.
#[rustler::nif]
fn clock_read() -> Answer<u64> {
    Ok(u64::try_from(clock::now()?.as_millis()).unwrap_or(u64::MAX))
}

/// `Snakepit.Native.run_id_generate/0`.
#[rustler::nif]
fn run_id_generate() -> Answer<String> {
    Ok(RunId::generate()?.to_string())
}

/// `Snakepit.Native.run_id_valid/1`.
#[rustler::nif]
fn run_id_valid(id: Binary) -> bool {
    RunId::from_bytes(&id).is_some()
}

/// `Snakepit.Native.run_id_extract/1`.
#[rustler::nif]
fn run_id_extract(arguments: Items<Binary>) -> Option<String> {
    let id = RunId::from_arguments(arguments.0.iter().map(Binary::as_slice))?;
    Some(id.to_string())
}

/// `Snakepit.Native.marker_environment/3`.
#[rustler::nif]
fn marker_environment(
    run_id: String,
    worker_id: String,
    instance: String,
) -> Answer<Vec<(&'static str, String)>> {
    let owner = Owner::current()?.to_string();
    Ok(vec![
        (marker::RUN_ID, run_id),
        (marker::WORKER_ID, worker_id),
        (marker::INSTANCE, instance),
        (marker::OWNER, owner),
    ])
}

/// `Snakepit.Native.signal_valid/1`.
#[rustler::nif]
fn signal_valid(signal: Term) -> bool {
    signal.decode::<SignalTerm>().is_ok()
}

/// `Snakepit.Native.process_identify/1`: who has this pid now; ambiguous where only time will tell. A
/// few system calls, none of which blocks.
#[rustler::nif]
fn process_identify(os_pid: PidTerm) -> Answer<ProcessTerm> {
    let process = living(os_pid.pid()?, Process::open)?;
    let identity = process.settled_identity().ok_or(Error::Ambiguous(process.pid()))?;
    Ok(ProcessTerm(identity))
}

/// `Snakepit.Native.process_settle/1`: who has this pid now, in any case. May wait 10 ms.
#[rustler::nif(schedule = "DirtyIo")]
fn process_settle(os_pid: PidTerm) -> Answer<ProcessTerm> {
    Ok(ProcessTerm(living(os_pid.pid()?, Process::open_settled)?.identity().clone()))
}

/// `Snakepit.Native.process_alive/1`.
#[rustler::nif]
fn process_alive(identity: IdentityTerm) -> Answer<bool> {
    Ok(Process::still_runs(&identity.identity()?)?)
}

/// `Snakepit.Native.process_info/1`. Reads three small files of `/proc`, one of which waits while
/// the memory of that process is changed.
#[rustler::nif(schedule = "DirtyIo")]
fn process_info(identity: IdentityTerm) -> Answer<InfoTerm> {
    let columns = Columns { uid: true, arguments: true, markers: false };
    let process = open(&identity)?;
    let entry = process.inspect(columns)?.filter(Entry::is_alive);
    Ok(InfoTerm(entry.ok_or(Error::NoSuchProcess(process.pid().as_raw().into()))?))
}

/// `Snakepit.Native.process_signal/2`. Never blocks: normal scheduler.
#[rustler::nif]
fn process_signal(identity: IdentityTerm, signal: SignalTerm) -> Answer<DeliveryTerm> {
    Ok(DeliveryTerm(open(&identity)?.signal(signal.0)?))
}

/// `Snakepit.Native.process_stop/4`. Waits.
#[rustler::nif(schedule = "DirtyIo")]
fn process_stop(
    identities: Items<IdentityTerm>,
    signal: SignalTerm,
    grace_ms: u64,
    kill_wait_ms: u64,
) -> Answer<Vec<OutcomeTerm>> {
    let identities: Result<Vec<_>, _> = identities.0.iter().map(IdentityTerm::identity).collect();
    let outcomes = stop::stop(&identities?, None, &plan(signal, grace_ms, kill_wait_ms))?;
    Ok(outcomes.into_iter().map(OutcomeTerm).collect())
}

/// `Snakepit.Native.process_await/2`: those that have not ended when the time is up. Waits.
#[rustler::nif(schedule = "DirtyIo")]
fn process_await(identities: Items<IdentityTerm>, timeout_ms: u64) -> Answer<Vec<ProcessTerm>> {
    let identities: Result<Vec<_>, _> = identities.0.iter().map(IdentityTerm::identity).collect();
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.min(LONGEST_MS));
    let left = process::await_ends(&identities?, deadline)?;
    Ok(left.into_iter().map(ProcessTerm).collect())
}

/// `Snakepit.Native.group_signal/2`. Reads the process table where the kernel has no call for it.
#[rustler::nif(schedule = "DirtyIo")]
fn group_signal(group: GroupTerm, signal: SignalTerm) -> Answer<DeliveryTerm> {
    Ok(DeliveryTerm(group::signal(&group.group()?, signal.0)?))
}

/// `Snakepit.Native.group_stop/4`. Waits.
#[rustler::nif(schedule = "DirtyIo")]
fn group_stop(
    group: GroupTerm,
    signal: SignalTerm,
    grace_ms: u64,
    kill_wait_ms: u64,
) -> Answer<OutcomeTerm> {
    Ok(OutcomeTerm(group::stop(&group.group()?, &plan(signal, grace_ms, kill_wait_ms))?))
}

/// `Snakepit.Native.run_find/2`. Reads the process table.
#[rustler::nif(schedule = "DirtyIo")]
fn run_find(run_id: Binary, any_user: bool) -> Answer<Vec<ProcessTerm>> {
    let found = run::find(parse_run_id(run_id)?, users(any_user))?;
    Ok(found.into_iter().map(ProcessTerm).collect())
}

/// `Snakepit.Native.run_stop/4`. Waits.
#[rustler::nif(schedule = "DirtyIo")]
fn run_stop(
    run_id: Binary,
    any_user: bool,
    grace_ms: u64,
    kill_wait_ms: u64,
) -> Answer<StopReportTerm> {
    let plan = plan(SignalTerm(Signal::TERM), grace_ms, kill_wait_ms);
    Ok(StopReportTerm(run::stop(parse_run_id(run_id)?, users(any_user), &plan)?))
}

/// `Snakepit.Native.run_sweep/4`. Waits.
#[rustler::nif(schedule = "DirtyIo")]
fn run_sweep(
    run_id: Binary,
    identities: Items<IdentityTerm>,
    grace_ms: u64,
    kill_wait_ms: u64,
) -> Answer<StopReportTerm> {
    // A damaged identity names nobody.
    let recorded = identities.0.iter().filter_map(|one| one.identity().ok()).collect();
    let plan = plan(SignalTerm(Signal::TERM), grace_ms, kill_wait_ms);
    Ok(StopReportTerm(run::sweep(parse_run_id(run_id)?, recorded, &plan)?))
}

/// `Snakepit.Native.guardian_find/2`: the guardian of this run, if it is the process of this identity.
/// May wait 10 ms.
#[rustler::nif(schedule = "DirtyIo")]
fn guardian_find(identity: IdentityTerm, run_id: Binary) -> Answer<Option<ProcessTerm>> {
    let found = guardian::find(&identity.identity()?, parse_run_id(run_id)?)?;
    Ok(found.map(ProcessTerm))
}

/// `Snakepit.Native.guardian_protect/2`: whether everyone is kept from signalling the guardian, while it
/// lives.
#[rustler::nif]
fn guardian_protect(identity: IdentityTerm, protected: bool) -> Answer<()> {
    let guardian = identity.identity()?;
    if protected {
        protect::add_guardian(guardian);
    } else {
        protect::remove_guardian(&guardian);
    }
    Ok(())
}

/// `Snakepit.Native.guardian_environment/0`: the variables that a guardian needs in its environment.
#[rustler::nif]
fn guardian_environment() -> Vec<(&'static str, String)> {
    identity::life_variable().into_iter().collect()
}

/// `Snakepit.Native.identity_scope/1`: whether its pid means anything here.
#[rustler::nif]
fn identity_scope(identity: IdentityTerm) -> Answer<OriginTerm> {
    Ok(identity.identity()?.origin()?.into())
}

/// `Snakepit.Native.run_members/1`. Reads the process table.
#[rustler::nif(schedule = "DirtyIo")]
fn run_members(run_id: Binary) -> Answer<Vec<MemberTerm>> {
    Ok(run::members(parse_run_id(run_id)?)?.into_iter().map(MemberTerm).collect())
}

/// `Snakepit.Native.run_strays/2`. Reads the process table.
#[rustler::nif(schedule = "DirtyIo")]
fn run_strays(run_id: Binary, root: PidTerm) -> Answer<Vec<ProcessTerm>> {
    Ok(run::strays(parse_run_id(run_id)?, root.pid()?)?.into_iter().map(ProcessTerm).collect())
}

/// `Snakepit.Native.run_reap/5`. Waits.
#[rustler::nif(schedule = "DirtyIo")]
fn run_reap(
    runs: Items<DeadRunTerm>,
    instance: Binary,
    spared: Items<Binary>,
    grace_ms: u64,
    kill_wait_ms: u64,
) -> Answer<CleanupReportTerm> {
    let runs: Result<Vec<_>, Error> = runs.0.iter().map(DeadRunTerm::run).collect();
    let spared: HashSet<_> = spared.0.iter().filter_map(|id| RunId::from_bytes(id)).collect();
    let search = Search { runs: &runs?, instance: &instance, spared: &spared };
    let plan = plan(SignalTerm(Signal::TERM), grace_ms, kill_wait_ms);
    Ok(CleanupReportTerm(dead_runs::stop(search, &plan)?))
}

/// `Snakepit.Native.wire_encode/1`: a frame for the guardian.
#[rustler::nif]
fn wire_encode(request: RequestTerm) -> Bytes {
    Bytes(wire::encode(&Request::from(request)))
}

/// `Snakepit.Native.wire_decode/1`: a frame from the guardian.
#[rustler::nif]
fn wire_decode(frame: Binary) -> Result<EventTerm, Atom> {
    wire::decode(&frame).map(EventTerm).ok_or_else(terms::malformed)
}

/// `Snakepit.Native.user_lookup/1`: uid, gid and groups of an account. May ask the network.
#[rustler::nif(schedule = "DirtyIo")]
fn user_lookup(name: String) -> Answer<(u32, u32, Vec<u32>)> {
    let user = account::user(&name)?;
    Ok((user.uid, user.gid, user.groups))
}

/// `Snakepit.Native.user_lookup_number/1`: as `user_lookup/1`; `nil` for the user that this process is, if
/// it may become no other. May ask the network.
#[rustler::nif(schedule = "DirtyIo")]
fn user_lookup_number(uid: u32) -> Answer<Option<(u32, u32, Vec<u32>)>> {
    let user = account::numbered(uid)?;
    Ok(user.map(|user| (user.uid, user.gid, user.groups)))
}

/// `Snakepit.Native.group_lookup/1`: the gid of a group. May ask the network.
#[rustler::nif(schedule = "DirtyIo")]
fn group_lookup(name: String) -> Answer<u32> {
    Ok(account::group(&name)?)
}

fn living(
    pid: Pid,
    open: impl FnOnce(Pid) -> Result<Option<Process>, Error>,
) -> Result<Process, Error> {
    match open(pid)? {
        Some(process) if process.is_alive()? => Ok(process),
        _ => Err(Error::NoSuchProcess(pid.as_raw().into())),
    }
}

fn open(identity: &IdentityTerm) -> Result<Process, Error> {
    let identity = identity.identity()?;
    match Process::reopen(&identity, None)? {
        Found::Same(process) => Ok(process),
        Found::Gone => Err(Error::NoSuchProcess(identity.pid.as_raw().into())),
        Found::Ambiguous => Err(Error::Ambiguous(identity.pid)),
    }
}

fn as_path(bytes: Bytes) -> PathBuf {
    OsString::from_vec(bytes.0).into()
}

fn parse_run_id(run_id: Binary) -> Result<RunId, Error> {
    RunId::from_bytes(&run_id).ok_or(Error::NotARunId)
}

fn users(any: bool) -> Users {
    if any { Users::Any } else { Users::Own }
}

/// Longer than anyone waits, and short enough to be added to a clock.
const LONGEST_MS: u64 = 1000 * 60 * 60 * 24 * 365;

fn plan(signal: SignalTerm, grace_ms: u64, kill_wait_ms: u64) -> Plan {
    Plan {
        signal: signal.0,
        grace: Duration::from_millis(grace_ms.min(LONGEST_MS)),
        kill_wait: Duration::from_millis(kill_wait_ms.min(LONGEST_MS)),
    }
}

fn load(env: rustler::Env, _info: Term) -> bool {
    pipe::load(env)
}

rustler::init!("Elixir.Snakepit.Native", load = load);
