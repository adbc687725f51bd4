//! Reads a DETS file without DETS, as `Snakepit.Ledger.Salvage` does and by the same rules.
//!
//! The file is searched for the objects of the dead table: each is a tuple in the external term format, whole or
//! not there. Objects that were freed are in the file until they are overwritten; the seal of a record tells
//! which ones to believe.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Error;
use crate::external_term::Term;

/// What every tuple of up to 255 elements begins with.
const TUPLE: [u8; 2] = [131, 104];
/// A file may consist of beginnings of tuples that all end nowhere.
const PATIENCE: Duration = Duration::from_secs(3);
/// No object is longer, whatever a length in it says.
const MAX_OBJECT: usize = 1 << 20;
const COOKIE: u32 = 0x00AB_CDEF;
const VERSION: u32 = 9;
/// After the length of a collection of objects that was not freed.
const ACTIVE: [u8; 4] = 0x1234_5678_u32.to_be_bytes();

/// What was found in a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// Its objects.
    pub objects: Vec<Term>,
    /// Objects that were freed.
    pub leftovers: Vec<Term>,
    /// Whether there are as many as its header says, and all of it was searched.
    pub complete: bool,
}

/// Reads the file; `None` if there is none, and an error in it for one of another kind.
pub(super) fn read(path: &Path) -> Result<Option<Result<Salvaged, ()>>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(parse(&bytes).ok_or(()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("ledger", &error)),
    }
}

/// Returns what is in the bytes of a table; `None` for a file of another kind.
pub fn parse(bytes: &[u8]) -> Option<Salvaged> {
    let least = header(bytes)?;
    let collections = collections(bytes);
    let mut collections = collections.iter().peekable();
    let deadline = Instant::now() + PATIENCE;
    let mut found = Salvaged::default();
    let mut at = 0;
    let mut in_time = true;
    while let Some(position) = find(bytes, &TUPLE, at) {
        while collections.next_if(|(_, to)| *to <= position).is_some() {}
        let end = bytes.len().min(position + MAX_OBJECT);
        if let Some((object, used)) = Term::decode_prefix(&bytes[position..end]) {
            let stop = position + used;
            match collections.peek() {
                Some((from, _)) if *from < position => {
                    found.objects.push(object);
                    at = stop;
                }
                // One that was freed may end in what was written over it.
                Some((from, _)) => {
                    found.leftovers.push(object);
                    at = stop.min(*from);
                }
                None => {
                    found.leftovers.push(object);
                    at = stop;
                }
            }
        } else if Instant::now() > deadline {
            in_time = false;
            break;
        } else {
            at = position + 1;
        }
    }
    found.complete = in_time && found.objects.len() >= least;
    Some(found)
}

/// Returns how many objects there are at least. The count is kept up to date only in a table that was closed.
fn header(bytes: &[u8]) -> Option<usize> {
    let word = |index: usize| {
        let field = bytes.get(index * 4..index * 4 + 4)?;
        Some(u32::from_be_bytes(field.try_into().ok()?))
    };
    let (cookie, closed, version, count) = (word(1)?, word(2)?, word(4)?, word(8)?);
    if cookie != COOKIE || version != VERSION {
        return None;
    }
    Some(if closed == 1 { usize::try_from(count).unwrap_or(usize::MAX) } else { 0 })
}

/// Where each begins and ends, in the order of the file. Bytes of an object may look like one.
fn collections(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut collections = Vec::new();
    let mut at = 0;
    while let Some(position) = find(bytes, &ACTIVE, at) {
        at = position + ACTIVE.len();
        let Some(start) = position.checked_sub(4) else { continue };
        let Ok(length) = bytes[start..position].try_into().map(u32::from_be_bytes) else {
            continue;
        };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        collections.push((position, start.saturating_add(length)));
    }
    collections
}

fn find(bytes: &[u8], wanted: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    Some(from + rest.windows(wanted.len()).position(|window| window == wanted)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_kind_is_no_table_and_a_damaged_one_yields_what_is_whole() {
        assert_eq!(parse(b""), None);
        assert_eq!(parse(&[0; 4096]), None);
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../test/fixtures/ledgers/layout-1/f52vhfy/ledger.dets");
        let bytes = fs::read(path).unwrap();
        let whole = parse(&bytes).unwrap();
        assert!(whole.complete && !whole.objects.is_empty());
        for cut in (0..bytes.len()).step_by(97) {
            if let Some(found) = parse(&bytes[..cut]) {
                let all: Vec<_> = whole.objects.iter().chain(&whole.leftovers).collect();
                assert!(found.objects.iter().all(|one| all.contains(&one)), "cut at {cut}");
            }
        }
    }
}
