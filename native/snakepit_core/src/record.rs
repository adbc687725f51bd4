//! What the ledger keeps of a worker, sealed with a version and a checksum.
//!
//! A ledger file that lost a few bytes may still open and hand out records with wrong values. A
//! record whose seal does not match is counted and never acted upon.

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use crate::external_term::Term;

/// The layout of [`Record`]. A record of another version is not understood, so not acted upon.
pub const VERSION: u32 = 1;

/// One worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// Its id, unique within the run.
    pub worker_id: String,
    /// The run it belongs to.
    pub run_id: String,
    /// Whether it has a process yet.
    pub status: Status,
    /// Its process, once there is one.
    pub os_pid: Option<i64>,
    /// Its process group, once there is one.
    pub pgid: Option<i64>,
    /// [`crate::Identity`], encoded.
    pub identity: Option<Vec<u8>>,
    /// The BEAM process that owns it, as text.
    pub elixir_pid: Option<String>,
    /// Program and arguments.
    pub command: Vec<Vec<u8>>,
    /// Milliseconds since the epoch, for people. No decision depends on it.
    pub spawned_at: i64,
}

/// How far a worker's registration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Status {
    /// The id is taken; no process is known.
    Reserved,
    /// The process is known.
    Active,
}

/// Why a record is not to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Its layout is not the one that this code knows.
    Version,
    /// Its content is not what was sealed.
    Checksum,
}

impl Record {
    /// From the fields of an entry of the journal: `Snakepit.Ledger.Journal` has their order.
    pub fn from_fields(fields: &[Term]) -> Option<Self> {
        let [worker_id, run_id, status, os_pid, pgid, identity, elixir_pid, command, spawned_at] =
            fields
        else {
            return None;
        };
        let command: Option<Vec<_>> =
            command.list()?.iter().map(|one| one.binary().map(<[u8]>::to_vec)).collect();
        Some(Self {
            worker_id: worker_id.text()?.to_owned(),
            run_id: run_id.text()?.to_owned(),
            status: match status.atom()? {
                "reserved" => Status::Reserved,
                "active" => Status::Active,
                _ => return None,
            },
            os_pid: optional(os_pid, Term::integer)?,
            pgid: optional(pgid, Term::integer)?,
            identity: optional(identity, |one| one.binary().map(<[u8]>::to_vec))?,
            elixir_pid: optional(elixir_pid, |one| one.text().map(str::to_owned))?,
            command: command?,
            spawned_at: spawned_at.integer()?,
        })
    }

    /// From a map with these keys, as the table has it.
    pub fn from_term(map: &Term) -> Option<Self> {
        let fields: Option<Vec<Term>> = FIELDS.iter().map(|key| map.get(key).cloned()).collect();
        Self::from_fields(&fields?)
    }

    /// The checksum over version and content.
    pub fn checksum(&self) -> u64 {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        // Writing to memory cannot fail for a struct of plain fields.
        let _ = rmp_serde::encode::write(&mut bytes, self);
        xxh3_64(&bytes)
    }

    /// Whether this is what was sealed.
    ///
    /// # Errors
    ///
    /// The [`Flaw`] that was found first.
    pub fn check(&self, version: u32, checksum: u64) -> Result<(), Flaw> {
        if version != VERSION {
            Err(Flaw::Version)
        } else if checksum != self.checksum() {
            Err(Flaw::Checksum)
        } else {
            Ok(())
        }
    }
}

const FIELDS: [&str; 9] = [
    "worker_id",
    "run_id",
    "status",
    "os_pid",
    "pgid",
    "identity",
    "elixir_pid",
    "command",
    "spawned_at",
];

/// `Some(None)` for `nil`, `None` for what is of another kind.
#[expect(clippy::option_option, reason = "so that `?` tells what is of another kind")]
fn optional<T>(term: &Term, read: impl Fn(&Term) -> Option<T>) -> Option<Option<T>> {
    if term.is_nil() { Some(None) } else { read(term).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Record {
        Record {
            worker_id: "w1".into(),
            run_id: "k3x9a2p".into(),
            status: Status::Active,
            os_pid: Some(4711),
            pgid: Some(4711),
            identity: Some(vec![1, 2, 3]),
            elixir_pid: Some("<0.123.0>".into()),
            command: vec![b"sleep".to_vec(), b"\xff".to_vec()],
            spawned_at: 1_700_000_000_000,
        }
    }

    #[test]
    fn a_sealed_record_is_believed() {
        assert_eq!(sample().check(VERSION, sample().checksum()), Ok(()));
    }

    #[test]
    fn every_field_is_sealed() {
        let checksum = sample().checksum();
        let changes: [fn(&mut Record); 9] = [
            |r| r.worker_id.push('x'),
            |r| r.run_id = "k3x9a2q".into(),
            |r| r.status = Status::Reserved,
            |r| r.os_pid = Some(4712),
            |r| r.pgid = None,
            |r| r.identity = Some(vec![1, 2, 4]),
            |r| r.elixir_pid = None,
            |r| r.command = vec![b"sleep\xff".to_vec()],
            |r| r.spawned_at += 1,
        ];
        for (index, change) in changes.iter().enumerate() {
            let mut record = sample();
            change(&mut record);
            assert_eq!(record.check(VERSION, checksum), Err(Flaw::Checksum), "change {index}");
        }
    }

    #[test]
    fn another_version_is_not_understood() {
        assert_eq!(sample().check(VERSION + 1, sample().checksum()), Err(Flaw::Version));
    }
}
