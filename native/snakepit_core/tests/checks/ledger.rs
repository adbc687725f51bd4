//! The files of a run: what is damaged is left out, and nothing that was not written comes out.

use serde::Serialize;
use snakepit_core::external_term::{self, Term};
use snakepit_core::ledger::{self, ClosedRun, Ledger};
use snakepit_core::record::{Flaw, Record, Status, VERSION};
use snakepit_core::{Identity, Pid, adopted, journal};
use xxhash_rust::xxh3::xxh3_64;

use super::script::Script;

/// The longest entry of a journal.
const LONGEST: usize = 1 << 20;

pub fn check(bytes: &[u8]) {
    any_journal(bytes);
    any_adopted(bytes);
    any_identity(bytes);
    any_term(bytes);
    any_table(bytes);
    damaged_journal(&mut Script(bytes));
    damaged_adopted(&mut Script(bytes));
    records(&mut Script(bytes));
}

fn any_journal(bytes: &[u8]) {
    let contents = journal::parse(bytes);
    let (entries, ignored) = slow_journal(bytes);
    assert_eq!((contents.entries, contents.ignored), (entries, ignored));
}

/// Tries each entry by writing it again.
fn slow_journal(bytes: &[u8]) -> (Vec<Vec<u8>>, usize) {
    let mut entries = Vec::new();
    let mut at = 0;
    while let Some(length) = slow_length(&bytes[at..]).filter(|length| *length <= LONGEST) {
        let Some(content) = bytes.get(at + 12..at + 12 + length) else { break };
        let whole = entry(content);
        if !bytes[at..].starts_with(&whole) {
            break;
        }
        entries.push(content.to_vec());
        at += whole.len();
    }
    (entries, bytes.len() - at)
}

fn slow_length(bytes: &[u8]) -> Option<usize> {
    let digits = bytes.get(..4)?;
    Some(digits.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

fn entry(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    let sum = xxh3_64(content) ^ xxh3_64(&length);
    [&length, &sum.to_be_bytes()[..], content].concat()
}

/// With one byte changed or the end cut off, all entries before that are there and no other.
fn damaged_journal(script: &mut Script) {
    let damage = Damage::next(script);
    let mut entries = Vec::new();
    while !script.is_over() {
        entries.push(script.string());
    }
    let whole: Vec<Vec<u8>> = entries.iter().map(|content| entry(content)).collect();
    let (bytes, at) = damage.applied(whole.concat());
    let contents = journal::parse(&bytes);
    let intact = count_before(&whole, at);
    assert_eq!(contents.entries, entries[..intact], "damaged at {at}");
    let read: usize = whole[..intact].iter().map(Vec::len).sum();
    assert_eq!(contents.ignored, bytes.len() - read);
}

/// How many of these, one behind the other, end before a place.
fn count_before(whole: &[Vec<u8>], place: usize) -> usize {
    let mut end = 0;
    let ends = whole.iter().map(|one| {
        end += one.len();
        end
    });
    ends.take_while(|end| *end <= place).count()
}

struct Damage {
    cut: bool,
    place: u64,
    flip: u8,
}

impl Damage {
    fn next(script: &mut Script) -> Self {
        let kind = script.byte();
        Self { cut: kind % 2 == 0, place: script.number(), flip: kind | 1 }
    }

    /// The damaged bytes, and how many of them are as they were.
    fn applied(&self, mut bytes: Vec<u8>) -> (Vec<u8>, usize) {
        let at = (self.place % (bytes.len() as u64 + 1)) as usize;
        if self.cut {
            bytes.truncate(at);
        } else if let Some(byte) = bytes.get_mut(at) {
            *byte ^= self.flip;
        }
        (bytes, at)
    }
}

fn any_adopted(bytes: &[u8]) {
    let mut expected = Vec::new();
    let mut at = 0;
    while let Some(length) = slow_length(&bytes[at..]) {
        let Some(encoded) = bytes.get(at + 4..at + 4 + length) else { break };
        expected.extend(Identity::decode(encoded));
        at += 4 + length;
    }
    assert_eq!(adopted::parse(bytes), expected);
}

/// Those before the damage are there, and behind it none that was not recorded.
fn damaged_adopted(script: &mut Script) {
    let damage = Damage::next(script);
    let mut noted = Vec::new();
    while !script.is_over() {
        noted.push(identity(script));
    }
    let whole: Vec<Vec<u8>> = noted
        .iter()
        .map(Identity::encode)
        .map(|bytes| [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), &bytes[..]].concat())
        .collect();
    let (bytes, at) = damage.applied(whole.concat());
    let found = adopted::parse(&bytes);
    let intact = count_before(&whole, at);
    assert_eq!(found[..intact], noted[..intact], "damaged at {at}");
    assert!(found[intact..].iter().all(|one| noted[intact..].contains(one)), "damaged at {at}");
}

pub fn identity(script: &mut Script) -> Identity {
    let mut boot = [0; 16];
    boot[..8].copy_from_slice(&script.number().to_be_bytes());
    Identity {
        pid: Pid::new((script.number() % 0x7fff_ffff + 1) as i64).unwrap(),
        start: script.number(),
        settled: script.byte() % 2 == 0,
        uid: script.optional(|script| script.number() as u32),
        boot,
        namespace: script.number(),
        handle: None,
    }
}

/// An identity as it is stored; the second of what the code under test writes.
#[derive(Serialize)]
struct Stored<'a> {
    system: &'a str,
    pid: i32,
    start: u64,
    settled: bool,
    uid: Option<u32>,
    boot: [u8; 16],
    namespace: u64,
    handle: Option<(i32, Vec<u8>)>,
}

/// What is read as a term is all of it that was used: the same bytes are the same term, and one less is none.
fn any_term(bytes: &[u8]) {
    let versioned = [&[external_term::VERSION], bytes].concat();
    for bytes in [bytes, &versioned] {
        let Some((term, used)) = Term::decode_prefix(bytes) else { continue };
        assert_eq!(Term::decode(&bytes[..used]).as_ref(), Some(&term));
        assert_eq!(Term::decode(&bytes[..used - 1]), None);
        Ledger::default().add_entry(&bytes[..used]);
    }
    assert_eq!(ledger::open_seal(bytes), None, "a seal is not guessed");
    assert_eq!(ClosedRun::parse(bytes), None);
}

/// Whatever is behind the header of a table, each object that is found is a tuple.
fn any_table(bytes: &[u8]) {
    let mut table: Vec<u8> = [0, 0x00AB_CDEF, 0, 1, 9, 0, 0, 0, 0]
        .iter()
        .flat_map(|word: &u32| word.to_be_bytes())
        .collect();
    table.extend_from_slice(bytes);
    let found = ledger::salvage(&table).unwrap();
    assert!(found.objects.iter().chain(&found.leftovers).all(|one| one.tuple().is_some()));
}

fn any_identity(bytes: &[u8]) {
    if let Ok(identity) = Identity::decode(bytes) {
        same_again(&identity);
    }
    // A seal is not guessed: here anything at all has one.
    if let Ok(identity) = Identity::decode(&sealed(bytes)) {
        same_again(&identity);
    }
    let mut script = Script(bytes);
    let made = identity(&mut script);
    let handle = script.optional(|script| (script.byte().into(), script.string().to_vec()));
    let stored = Stored {
        system: std::env::consts::OS,
        pid: made.pid.as_raw(),
        start: made.start,
        settled: made.settled,
        uid: made.uid,
        boot: made.boot,
        namespace: made.namespace,
        handle: handle.clone(),
    };
    let stored = sealed(&rmp_serde::to_vec(&stored).unwrap());
    let read = Identity::decode(&stored).unwrap();
    assert_eq!(read.encode(), stored, "the same bytes again");
    assert_eq!(read.handle.is_some(), handle.is_some());
    assert_eq!(Identity { handle: None, ..read }, made);
}

fn same_again(identity: &Identity) {
    assert_eq!(Identity::decode(&identity.encode()).as_ref().ok(), Some(identity));
}

fn sealed(content: &[u8]) -> Vec<u8> {
    let versioned = [&[1], content].concat();
    [&versioned[..], &xxh3_64(&versioned).to_le_bytes()].concat()
}

/// A seal fits its own record and no other.
fn records(script: &mut Script) {
    let (one, other) = (record(script), record(script));
    assert_eq!(one.check(VERSION, one.checksum()), Ok(()));
    assert_eq!(one == other, one.checksum() == other.checksum());
    let version = script.number() as u32;
    if version != VERSION {
        assert_eq!(one.check(version, one.checksum()), Err(Flaw::Version));
    }
}

fn record(script: &mut Script) -> Record {
    let text = |script: &mut Script| String::from_utf8_lossy(script.string()).into_owned();
    Record {
        worker_id: text(script),
        run_id: text(script),
        status: if script.byte() % 2 == 0 { Status::Active } else { Status::Reserved },
        os_pid: script.optional(Script::signed),
        pgid: script.optional(Script::signed),
        identity: script.optional(|script| script.string().to_vec()),
        elixir_pid: script.optional(text),
        command: (0..script.byte() % 4).map(|_| script.string().to_vec()).collect(),
        spawned_at: script.signed(),
    }
}
