//! The file in which the guardian records which processes it has adopted.
//!
//! A daemon that emptied its environment carries no marker, and its parents are gone. If guardian and
//! BEAM die together, this file is how the next start knows it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::run_directory::{ADOPTED, NEW_ADOPTED};
use crate::{Error, Identity, Process};

/// `write(2)` of one entry for a process. Returns the file's length.
///
/// # Errors
///
/// The error of `open(2)` or `write(2)`.
pub fn append(directory: &Path, identity: &Identity) -> io::Result<u64> {
    let mut file = OpenOptions::new().append(true).create(true).open(directory.join(ADOPTED))?;
    file.write_all(&entry(identity))?;
    Ok(file.metadata()?.len())
}

/// `rename(2)` of a file without the processes that are gone. Returns its length.
///
/// A caller that is killed meanwhile leaves the old file or the new one, each of them whole. All in the
/// file are checked, and not only those that the caller knows: some are from before its time.
///
/// # Errors
///
/// The error of `read(2)`, `write(2)` or `rename(2)`; the file is as it was.
pub fn compact(directory: &Path) -> io::Result<u64> {
    let recorded = load(directory)?;
    let left = recorded.iter().filter(|one| may_live(one)).map(entry).collect::<Vec<_>>().concat();
    let next = directory.join(NEW_ADOPTED);
    let replaced =
        fs::write(&next, &left).and_then(|()| fs::rename(&next, directory.join(ADOPTED)));
    if replaced.is_err() {
        let _ = fs::remove_file(&next);
    }
    replaced.map(|()| left.len() as u64)
}

fn entry(identity: &Identity) -> Vec<u8> {
    let bytes = identity.encode();
    let length = u32::try_from(bytes.len()).unwrap_or_default().to_be_bytes();
    [length.as_slice(), &bytes].concat()
}

/// Returns whether a process can still run; in doubt it can.
fn may_live(identity: &Identity) -> bool {
    Process::still_runs(identity).unwrap_or(true)
}

/// Returns all that were recorded, as far as the file is whole; nothing if there is no such file.
///
/// # Errors
///
/// [`Error::Os`] if there is one and it cannot be read.
pub fn read(directory: &Path) -> Result<Vec<Identity>, Error> {
    load(directory).map_err(|error| Error::io("adopted processes", &error))
}

fn load(directory: &Path) -> io::Result<Vec<Identity>> {
    match fs::read(directory.join(ADOPTED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map(|bytes| parse(&bytes)),
    }
}

/// Returns the identities in the bytes of such a file. Each has a checksum of its own: a damaged one is left
/// out.
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
    use crate::Pid;
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    use std::path::PathBuf;
    use std::process::Command;

    fn directory(name: &str) -> PathBuf {
        let name = format!("snakepit_adopted_{name}_{}", Pid::current());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn own() -> Identity {
        Process::open(Pid::current()).unwrap().unwrap().identity().clone()
    }

    #[test]
    fn what_was_recorded_is_read_as_far_as_the_file_is_whole() {
        let directory = directory("whole");
        let own = own();
        assert!(load(&directory).unwrap().is_empty());
        append(&directory, &own).unwrap();
        append(&directory, &own).unwrap();
        assert_eq!(load(&directory).unwrap(), [own.clone(), own.clone()]);

        let bytes = fs::read(directory.join(ADOPTED)).unwrap();
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]).len(), cut / (bytes.len() / 2));
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn compacting_keeps_the_living_and_forgets_the_dead_and_the_zombies() {
        let directory = directory("compact");
        let own = own();
        let mut gone = Command::new("true").spawn().unwrap();
        let mut zombie = Command::new("true").spawn().unwrap();
        for child in [&gone, &zombie] {
            let pid = Pid::new(child.id().into()).unwrap();
            append(&directory, Process::open_settled(pid).unwrap().unwrap().identity()).unwrap();
        }
        let before = append(&directory, &own).unwrap();
        gone.wait().unwrap();
        let pid = Pid::new(zombie.id().into()).unwrap().as_raw();
        let stays = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(nix::unistd::Pid::from_raw(pid)), stays).unwrap();

        let after = compact(&directory).unwrap();

        assert_eq!(load(&directory).unwrap(), std::slice::from_ref(&own));
        assert_eq!(fs::metadata(directory.join(ADOPTED)).unwrap().len(), after);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        assert_eq!(append(&directory, &own).unwrap(), 2 * after);
        assert!(after < before);
        zombie.wait().unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_replaced_stays_as_it_was() {
        let directory = directory("replace");
        let own = own();
        append(&directory, &own).unwrap();
        fs::create_dir(directory.join(NEW_ADOPTED)).unwrap();
        compact(&directory).unwrap_err();
        assert_eq!(load(&directory).unwrap(), [own]);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_cannot_be_read_is_not_empty() {
        let directory = directory("unreadable");
        fs::create_dir(directory.join(ADOPTED)).unwrap();
        assert!(matches!(read(&directory), Err(Error::Os { .. })));
        compact(&directory).unwrap_err();
        assert!(directory.join(ADOPTED).is_dir());
        fs::remove_dir_all(&directory).unwrap();
    }
}
