//! The layout of a journal: length, checksum and content of one entry behind the other.

use nix::errno::Errno;
use xxhash_rust::xxh3::xxh3_64;

/// Length and checksum in front of each entry.
const HEADER: usize = 4 + 8;

/// No entry is longer. A length beyond it is damage, and not a reason to allocate.
const MAX_ENTRY: usize = 1 << 20;

/// What a journal holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The entries, oldest first.
    pub entries: Vec<Vec<u8>>,
    /// How many bytes at the end make no entry.
    pub ignored: usize,
}

/// Returns the entries in `bytes`, up to the first that does not add up.
pub fn parse(bytes: &[u8]) -> Contents {
    let mut contents = Contents::default();
    let mut rest = bytes;
    while let Some((content, behind)) = split(rest) {
        contents.entries.push(content.to_vec());
        rest = behind;
    }
    contents.ignored = rest.len();
    contents
}

/// Returns the bytes of these entries, one behind the other; `EMSGSIZE` if one is too long.
pub(super) fn encode(contents: &[&[u8]]) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::with_capacity(contents.iter().map(|content| HEADER + content.len()).sum());
    for content in contents {
        let length = u32::try_from(content.len()).map_err(|_| Errno::EMSGSIZE)?.to_be_bytes();
        if content.len() > MAX_ENTRY {
            return Err(Errno::EMSGSIZE);
        }
        bytes.extend_from_slice(&length);
        bytes.extend_from_slice(&checksum(length, content).to_be_bytes());
        bytes.extend_from_slice(content);
    }
    Ok(bytes)
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<8>()?;
    let count = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    if count > MAX_ENTRY || count > rest.len() {
        return None;
    }
    let (content, behind) = rest.split_at(count);
    (u64::from_be_bytes(*sum) == checksum(*length, content)).then_some((content, behind))
}

/// Over the length too, and never 0 for an empty entry: a stretch of zeroes, which a file system may
/// leave at the end of a file after a power loss, is no entry.
fn checksum(length: [u8; 4], content: &[u8]) -> u64 {
    xxh3_64(content) ^ xxh3_64(&length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<Vec<u8>>, Vec<u8>) {
        let entries = vec![b"first".to_vec(), Vec::new(), vec![0xff; 300], b"last".to_vec()];
        let contents: Vec<&[u8]> = entries.iter().map(Vec::as_slice).collect();
        let bytes = encode(&contents).unwrap();
        (entries, bytes)
    }

    #[test]
    fn a_journal_that_is_cut_anywhere_has_the_whole_entries_before_the_cut() {
        let (entries, bytes) = sample();
        for cut in 0..=bytes.len() {
            let contents = parse(&bytes[..cut]);
            assert_eq!(contents.entries, entries[..contents.entries.len()], "cut at {cut}");
            let whole: usize = contents.entries.iter().map(|one| HEADER + one.len()).sum();
            assert_eq!(whole + contents.ignored, cut);
            assert!(contents.ignored < HEADER + 300);
        }
    }

    #[test]
    fn a_flipped_bit_ends_what_is_believed_and_changes_no_entry() {
        let (entries, bytes) = sample();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let contents = parse(&flipped);
            assert!(contents.ignored > 0, "bit {bit}");
            assert_eq!(contents.entries, entries[..contents.entries.len()], "bit {bit}");
        }
    }

    #[test]
    fn zeroes_are_no_entries() {
        assert_eq!(parse(&[0; 100]), Contents { entries: vec![], ignored: 100 });
    }
}
