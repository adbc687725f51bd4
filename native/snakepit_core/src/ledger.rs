//! What a run has recorded, read without a BEAM: its DETS table, its journal, and what its guardian has adopted.
//!
//! `Snakepit.Ledger.Table` writes all this and reads it by the same rules. Nothing here is believed unchecked:
//! damaged parts are counted and left out.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::external_term::Term;
use crate::record::Record;
use crate::run_id::RunId;
use crate::{Error, Identity, adopted, journal};

mod history;
mod salvage;
mod seal;

pub use history::ClosedRun;
pub use salvage::{Salvaged, parse as salvage};
pub use seal::open as open_seal;

/// What a run says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunRecord {
    /// Of which instance it is.
    pub instance: String,
    /// Its state, by name.
    pub state: String,
    /// Its BEAM.
    pub beam: Option<Identity>,
    /// The pid of its BEAM.
    pub beam_pid: Option<i64>,
    /// `/etc/machine-id` and the name of the host.
    pub machine: Option<String>,
    /// Its pid namespace, as `/proc/<pid>/ns/pid` names it.
    pub namespace: Option<String>,
    /// Its Erlang node.
    pub node: String,
    /// When it began, in milliseconds since the epoch.
    pub started_at: Option<i64>,
    /// When its state changed.
    pub changed_at: Option<i64>,
}

/// What is in the files of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// What the run says of itself, unless that was lost.
    pub run: Option<RunRecord>,
    /// Its guardian.
    pub guardian: Option<Identity>,
    /// The longest that one of its workers is given to end, in milliseconds.
    pub grace_ms: u64,
    /// Its workers by their ids.
    pub workers: BTreeMap<String, Record>,
    /// Processes that wait at their gates.
    pub children: Vec<Identity>,
    /// Processes that its guardian has adopted.
    pub adopted: Vec<Identity>,
    /// How many records are damaged.
    pub bad: usize,
    /// How many bytes of the journal are damaged.
    pub ignored: usize,
}

/// No process is given more: about 24 days.
const LONGEST_MS: u64 = 0x7FFF_FFFF;

/// How often to read again what a living BEAM changes meanwhile.
const ATTEMPTS: usize = 5;

impl Ledger {
    /// Reads the ledger in the directory of a run. Workers of another run are left out.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if a file is there and cannot be read. A caller that takes it for missing forgets processes.
    pub fn read(directory: &Path, run_id: RunId) -> Result<Self, Error> {
        let mut attempts = 0;
        loop {
            let before = version(directory);
            let mut ledger = Self::read_once(directory)?;
            ledger.workers.retain(|_, record| record.run_id.as_bytes() == run_id.as_bytes());
            attempts += 1;
            // Order: asked again behind it. A checkpoint moves entries from one file to the next.
            if attempts >= ATTEMPTS || version(directory) == before {
                return Ok(ledger);
            }
        }
    }

    fn read_once(directory: &Path) -> Result<Self, Error> {
        let mut ledger = Self::default();
        match salvage::read(&directory.join("ledger.dets"))? {
            None => {}
            Some(Err(())) => ledger.bad += 1,
            Some(Ok(found)) => ledger.add_table(&found),
        }
        for name in ["journal.old", "journal"] {
            let contents = journal::read(&directory.join(name))?;
            ledger.ignored += contents.ignored;
            for entry in &contents.entries {
                ledger.add_entry(entry);
            }
        }
        ledger.adopted = adopted::read(directory)?;
        Ok(ledger)
    }

    /// Returns every process that it names.
    pub fn identities(&self) -> Vec<Identity> {
        let mut identities: Vec<Identity> = self.workers.values().filter_map(identity_of).collect();
        identities.extend(self.children.iter().chain(&self.adopted).cloned());
        let mut seen = HashSet::new();
        identities.retain(|one| seen.insert(one.clone()));
        identities
    }

    fn add_table(&mut self, found: &Salvaged) {
        for object in &found.leftovers {
            self.add_object(object);
        }
        // Those that were freed are not damaged, but written over.
        self.bad = 0;
        for object in &found.objects {
            self.add_object(object);
        }
        self.bad += usize::from(!found.complete);
    }

    fn add_object(&mut self, object: &Term) {
        let Some([key, value]) = object.tuple() else {
            self.bad += 1;
            return;
        };
        let added = match key.atom() {
            Some(key) => value.binary().and_then(seal::open).and_then(|term| self.set(key, &term)),
            None => key.text().and_then(|_id| self.add_sealed(value)),
        };
        self.bad += usize::from(added.is_none());
    }

    /// Adds an entry of the journal.
    pub fn add_entry(&mut self, bytes: &[u8]) {
        let Some(term) = Term::decode(bytes) else { return };
        let added = match term.tuple() {
            Some([kind, value]) if kind.atom() == Some("gone") => self.remove(value),
            Some([kind, added, gone]) if kind.atom() == Some("children") => {
                self.change_children(added, gone)
            }
            Some([kind, value]) => kind.atom().and_then(|kind| match kind {
                "run" => self.set("current_run", value),
                "guardian" | "grace" => self.set(kind, value),
                _ => None,
            }),
            Some([kind, fields @ ..]) if kind.atom() == Some("worker") => self.add_worker(fields),
            _ => None,
        };
        self.bad += usize::from(added.is_none());
    }

    fn set(&mut self, key: &str, value: &Term) -> Option<()> {
        match key {
            "current_run" => self.run = RunRecord::from_term(value),
            "guardian" => self.guardian = value.binary().and_then(|one| Identity::decode(one).ok()),
            "grace" => {
                let grace_ms = u64::try_from(value.integer()?).ok();
                self.grace_ms = grace_ms.filter(|ms| *ms <= LONGEST_MS).unwrap_or_default();
            }
            "children" => self.children = identities(value)?,
            _ => return None,
        }
        Some(())
    }

    fn add_sealed(&mut self, sealed: &Term) -> Option<()> {
        let record = Record::from_term(sealed)?;
        let version = sealed.get("version")?.integer()?.try_into().ok()?;
        // It is unsigned, and one that does not fit is not what an entry of the journal has.
        let checksum = sealed.get("checksum")?;
        record.check(version, checksum_of(checksum)?).ok()?;
        self.workers.insert(record.worker_id.clone(), record);
        Some(())
    }

    fn add_worker(&mut self, fields: &[Term]) -> Option<()> {
        let record = Record::from_fields(fields)?;
        // One that has become a worker has a record of its own.
        if let Some(identity) = identity_of(&record) {
            self.children.retain(|child| *child != identity);
        }
        self.workers.insert(record.worker_id.clone(), record);
        Some(())
    }

    fn remove(&mut self, worker_id: &Term) -> Option<()> {
        self.workers.remove(worker_id.text()?);
        Some(())
    }

    fn change_children(&mut self, added: &Term, gone: &Term) -> Option<()> {
        let added = identities(added)?;
        if gone.atom() == Some("all") {
            self.children = added;
        } else {
            let gone = identities(gone)?;
            self.children.retain(|child| !gone.contains(child));
            self.children.extend(added);
        }
        Some(())
    }
}

/// Which files there are: each rotation makes others.
fn version(directory: &Path) -> [Option<u64>; 2] {
    ["journal", "journal.old"].map(|name| Some(fs::metadata(directory.join(name)).ok()?.ino()))
}

/// Returns the process of a worker, if it has one that can be understood.
pub fn identity_of(record: &Record) -> Option<Identity> {
    Identity::decode(record.identity.as_deref()?).ok()
}

/// A damaged one names nobody; what is no binary is no list of identities.
fn identities(list: &Term) -> Option<Vec<Identity>> {
    let binaries: Option<Vec<&[u8]>> = list.list()?.iter().map(Term::binary).collect();
    Some(binaries?.into_iter().filter_map(|one| Identity::decode(one).ok()).collect())
}

fn checksum_of(term: &Term) -> Option<u64> {
    match term {
        Term::Integer(value) => u64::try_from(*value).ok(),
        Term::Natural(value) => Some(*value),
        _ => None,
    }
}

impl RunRecord {
    fn from_term(term: &Term) -> Option<Self> {
        let text = |key| term.get(key).and_then(Term::text).map(str::to_owned);
        let integer = |key| term.get(key).and_then(Term::integer);
        let place = |key| term.get("place")?.get(key)?.text().map(str::to_owned);
        // A run that says nothing of its BEAM is as good as none.
        let beam = Identity::decode(term.get("beam")?.binary()?).ok();
        Some(Self {
            instance: text("instance").unwrap_or_default(),
            state: term.get("state").and_then(Term::atom).unwrap_or_default().to_owned(),
            beam,
            beam_pid: integer("beam_pid"),
            machine: place("machine"),
            namespace: place("namespace"),
            node: text("node").unwrap_or_default(),
            started_at: integer("started_at"),
            changed_at: integer("changed_at"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(run: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/fixtures/ledgers").join(run)
    }

    #[test]
    fn the_ledgers_of_earlier_versions_are_read() {
        for (run, workers) in
            [("layout-0/ah71hti", 4), ("layout-0/iklgnqr", 4), ("layout-1/f52vhfy", 4)]
        {
            let id = RunId::from_bytes(&run.as_bytes()[9..]).unwrap();
            let ledger = Ledger::read(&fixture(run), id).unwrap();
            assert_eq!((ledger.bad, ledger.ignored), (0, 0), "{run}");
            assert_eq!(ledger.workers.len(), workers, "{run}: {:?}", ledger.workers);
            let record = ledger.run.unwrap();
            assert_eq!(record.state, "running");
            assert!(record.beam.is_some() && record.started_at.is_some());
            assert!(ledger.guardian.is_some());
        }
    }

    #[test]
    fn a_ledger_that_is_not_there_is_empty_and_one_that_cannot_be_read_is_an_error() {
        let id = RunId::from_bytes(b"k3x9a2p").unwrap();
        assert_eq!(Ledger::read(Path::new("/nonexistent"), id).unwrap(), Ledger::default());
        let place = std::env::temp_dir().join(format!("snakepit_ledger_{}", crate::Pid::current()));
        fs::create_dir_all(place.join("journal")).unwrap();
        assert!(Ledger::read(&place, id).is_err());
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn entries_that_are_none_are_counted_and_change_nothing() {
        let mut ledger = Ledger::default();
        // `{run, ok}`, `{gone, 1}`, `{grace, -1}`, `{other}`.
        ledger.add_entry(&[131, 104, 2, 119, 4, b'g', b'o', b'n', b'e', 97, 1]);
        ledger.add_entry(&[131, 104, 1, 119, 1, b'x']);
        ledger.add_entry(&[131, 106]);
        assert_eq!(ledger.bad, 3);
        ledger.bad = 0;
        assert_eq!(ledger, Ledger::default());
    }
}
