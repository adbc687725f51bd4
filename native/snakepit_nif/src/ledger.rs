//! The files of a run and what is sealed in them, as Elixir asks for it. What opens, reads or waits for a file
//! runs on a dirty I/O scheduler.

use rustler::{Atom, Binary, Env, ResourceArc, Term};
use snakepit_core::journal::{self, Journal};
use snakepit_core::lock::Lock;
use snakepit_core::{Error, adopted, obituary};

use crate::ledger_terms::{
    ContentsTerm, JournalResource, LockResource, ObituaryTerm, ReapedTerm, TurnTerm,
};
use crate::terms::{self, Bytes, ProcessTerm, RecordTerm, SealTerm};
use crate::{Answer, as_path};

/// `Snakepit.Native.record_seal/1`: version and checksum for a record.
#[rustler::nif]
fn record_seal(record: RecordTerm) -> SealTerm {
    record.seal()
}

/// `Snakepit.Native.record_check/1`. Takes any term: a damaged ledger holds anything.
#[rustler::nif]
fn record_check(sealed: Term) -> Result<RecordTerm, Atom> {
    terms::check_record(sealed)
}

/// `Snakepit.Native.lock_take/1`: `nil` if someone else has it. Opens a file.
#[rustler::nif(schedule = "DirtyIo")]
fn lock_take(path: Bytes) -> Answer<Option<ResourceArc<LockResource>>> {
    Ok(Lock::take(&as_path(path))?.map(LockResource::new))
}

/// `Snakepit.Native.lock_release/1`. Closes a file, as `journal_close/1` does.
#[rustler::nif(schedule = "DirtyIo")]
fn lock_release(lock: ResourceArc<LockResource>) -> Atom {
    lock.release();
    rustler::types::atom::ok()
}

/// `Snakepit.Native.journal_open/2`. Opens a file.
#[rustler::nif(schedule = "DirtyIo")]
fn journal_open(path: Bytes, max_bytes: u64) -> Answer<ResourceArc<JournalResource>> {
    Ok(ResourceArc::new(JournalResource::new(Journal::open(&as_path(path), max_bytes)?)))
}

/// `Snakepit.Native.journal_append/3`. Never waits for the disk: appends at once what goes to memory, and
/// otherwise leaves it to `journal_write/1`, which sends `{tag, answer}`.
#[rustler::nif]
fn journal_append(
    env: Env,
    journal: ResourceArc<JournalResource>,
    content: Binary,
    tag: Term,
) -> Answer<TurnTerm> {
    match journal.journal.append_at_once(&content) {
        Some(appended) => Ok(appended.map(|()| TurnTerm::Appended)?),
        None => Ok(journal.enqueue(env.pid(), tag, &content)),
    }
}

/// `Snakepit.Native.journal_note/2`: whether it will be written together with the next entry, or is.
#[rustler::nif]
fn journal_note(journal: ResourceArc<JournalResource>, content: Binary) -> bool {
    let appended = journal.journal.append_at_once(&content);
    appended.map_or_else(|| journal.queue.note(&content), |appended| appended.is_ok())
}

/// `Snakepit.Native.journal_write/1`: what waits in the queue. Waits for the disk.
#[rustler::nif(schedule = "DirtyIo")]
fn journal_write(env: Env, journal: ResourceArc<JournalResource>) -> Atom {
    journal.write_all(env);
    rustler::types::atom::ok()
}

/// `Snakepit.Native.journal_sync/1`. Waits for the disk.
#[rustler::nif(schedule = "DirtyIo")]
fn journal_sync(journal: ResourceArc<JournalResource>) -> Answer<()> {
    Ok(journal.journal.sync()?)
}

/// `Snakepit.Native.journal_empty/1`.
#[rustler::nif]
fn journal_empty(journal: ResourceArc<JournalResource>) -> bool {
    journal.journal.length() == 0 && journal.queue.is_empty()
}

/// `Snakepit.Native.journal_rotate/2`. Renames files.
#[rustler::nif(schedule = "DirtyIo")]
fn journal_rotate(journal: ResourceArc<JournalResource>, aside: Bytes) -> Answer<()> {
    Ok(journal.journal.rotate(&as_path(aside))?)
}

/// `Snakepit.Native.journal_close/1`. The last to close a file that was deleted frees its blocks.
#[rustler::nif(schedule = "DirtyIo")]
fn journal_close(journal: ResourceArc<JournalResource>) -> Atom {
    journal.journal.close();
    rustler::types::atom::ok()
}

/// `Snakepit.Native.journal_read/1`. Reads a file.
#[rustler::nif(schedule = "DirtyIo")]
fn journal_read(path: Bytes) -> Answer<ContentsTerm> {
    Ok(ContentsTerm(journal::read(&as_path(path))?))
}

/// `Snakepit.Native.adopted_read/1`: what a dead run's guardian had adopted. Reads a file.
#[rustler::nif(schedule = "DirtyIo")]
fn adopted_read(directory: Bytes) -> Answer<Vec<ProcessTerm>> {
    Ok(adopted::read(&as_path(directory))?.into_iter().map(ProcessTerm).collect())
}

/// `Snakepit.Native.obituary_add/2`: what was reaped of a dead run. Writes a file.
#[rustler::nif(schedule = "DirtyIo")]
fn obituary_add(directory: Bytes, reaped: ReapedTerm) -> Answer<()> {
    let added = obituary::add_reaped(&as_path(directory), reaped.into());
    Ok(added.map_err(|error| Error::io("obituary", &error))?)
}

/// `Snakepit.Native.obituary_read/1`. Reads a file.
#[rustler::nif(schedule = "DirtyIo")]
fn obituary_read(directory: Bytes) -> Option<ObituaryTerm> {
    obituary::read(&as_path(directory)).map(ObituaryTerm)
}
