//! The file in which the guardian notes whom it has adopted.
//!
//! A daemon that emptied its environment carries no marker, and its parents are gone. If guardian and
//! BEAM die together, this file is how the next start knows it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::Identity;

/// The file's name in the run's directory.
pub const FILE: &str = "adopted";

/// Adds a process, with one `write`.
///
/// # Errors
///
/// What the file system says.
pub fn append(directory: &Path, identity: &Identity) -> io::Result<()> {
    let bytes = identity.encode();
    let length = u32::try_from(bytes.len()).unwrap_or_default().to_be_bytes();
    let mut file = OpenOptions::new().append(true).create(true).open(directory.join(FILE))?;
    file.write_all(&[length.as_slice(), &bytes].concat())
}

/// All that were noted, as far as the file is whole. Nothing if there is no such file.
pub fn read(directory: &Path) -> Vec<Identity> {
    parse(&fs::read(directory.join(FILE)).unwrap_or_default())
}

/// What such a file says. An identity has a checksum of its own: a damaged one is left out.
pub fn parse(mut bytes: &[u8]) -> Vec<Identity> {
    let mut found = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let Some((encoded, behind)) = rest.split_at_checked(length) else { break };
        found.extend(Identity::decode(encoded));
        bytes = behind;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pid, Process};

    #[test]
    fn what_was_noted_is_read_as_far_as_the_file_is_whole() {
        let directory = std::env::temp_dir().join(format!("snakepit_adopted_{}", Pid::current()));
        fs::create_dir_all(&directory).unwrap();
        let own = Process::open(Pid::current()).unwrap().unwrap().identity().clone();
        assert!(read(&directory).is_empty());
        append(&directory, &own).unwrap();
        append(&directory, &own).unwrap();
        assert_eq!(read(&directory), [own.clone(), own.clone()]);

        let bytes = fs::read(directory.join(FILE)).unwrap();
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]).len(), cut / (bytes.len() / 2));
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
