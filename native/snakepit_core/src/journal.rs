//! A write-ahead log: what must not be lost at `kill -9`, appended by any thread, in one `write(2)`.
//!
//! What the kernel has taken survives the process, and nothing here needs to survive the kernel but
//! the run's states, which are synced. An entry is length, checksum and content. A file that was cut,
//! or in which a byte has changed, is believed up to the first entry that does not add up.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use nix::errno::Errno;

use crate::error::errno;
use crate::{Error, filesystem};

mod entries;

pub use entries::{Contents, parse};

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// The bound for the file. Entries are refused beyond it: nothing carries them off, so something
    /// is wrong with the process that should.
    max_bytes: u64,
    /// Whether a `write` to it waits for memory at most.
    in_memory: bool,
    /// As in the writer, for callers that must not wait for its lock.
    length: AtomicU64,
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    /// `None` once it is closed.
    file: Option<Arc<File>>,
    length: u64,
    /// Why no entry can be appended any more: half of one is at the end, and could not be cut off.
    broken: Option<Errno>,
}

impl Journal {
    /// Opens a journal to append to it.
    ///
    /// # Errors
    ///
    /// [`Error::Os`].
    pub fn open(path: &Path, max_bytes: u64) -> Result<Self, Error> {
        let file = create(path)?;
        let length = file.metadata().map_err(|error| Error::io("journal", &error))?.len();
        let in_memory = filesystem::is_memory(&file)?;
        let writer = Mutex::new(Writer { file: Some(Arc::new(file)), length, broken: None });
        let length = AtomicU64::new(length);
        Ok(Self { path: path.to_owned(), max_bytes, in_memory, length, writer })
    }

    /// `write(2)` of an entry. The kernel has it when this returns. May wait for the disk.
    ///
    /// # Errors
    ///
    /// [`Error::Os`], and then nothing was appended: with `ESTALE` if the file was deleted, so that an
    /// entry would be lost, with `EFBIG` if it has grown beyond its bound.
    pub fn append(&self, content: &[u8]) -> Result<(), Error> {
        self.append_all(&[content])
    }

    /// Appends several entries, all or none.
    ///
    /// # Errors
    ///
    /// As for [`Journal::append`].
    pub fn append_all(&self, contents: &[&[u8]]) -> Result<(), Error> {
        let failed = Error::os("journal");
        let entries = entries::encode(contents).map_err(&failed)?;
        self.with_writer(|writer| writer.append(&entries, self.max_bytes)).map_err(&failed)
    }

    /// As [`Journal::append`], if that does not wait: the file is in memory, and no other thread holds the
    /// lock. `None` otherwise.
    pub fn append_at_once(&self, content: &[u8]) -> Option<Result<(), Error>> {
        if !self.in_memory {
            return None;
        }
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let appended = entries::encode(&[content])
            .and_then(|entry| writer.append(&entry, self.max_bytes))
            .map_err(Error::os("journal"));
        self.length.store(writer.length, Ordering::Relaxed);
        Some(appended)
    }

    /// `fdatasync(2)`: waits until the disk has what was appended. Others append meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Os`].
    pub fn sync(&self) -> Result<(), Error> {
        let file = self.with_writer(|writer| writer.file()).map_err(Error::os("journal"))?;
        file.sync_data().map_err(|error| Error::io("journal", &error))
    }

    /// Returns how long the file is, without waiting for the lock.
    pub fn length(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    /// `rename(2)` of what was appended so far to another file, for the ledger to store, and goes on with an
    /// empty one. No entry is in both, and none in neither.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] with `EEXIST` if there is such a file: the ledger has not stored it yet.
    pub fn rotate(&self, aside: &Path) -> Result<(), Error> {
        let failed = |error: io::Error| Error::io("journal", &error);
        // A file that cannot be inspected is not missing: the rename would overwrite it.
        if aside.try_exists().map_err(failed)? {
            return Err(Error::Os { call: "journal", errno: Errno::EEXIST });
        }
        // The lock is held meanwhile: threads that append now wait.
        self.with_writer(|writer| {
            // The new one first. If the disk is too full for it, the old one is still in place.
            let fresh = self.path.with_extension("new");
            let file = create(&fresh)?;
            self.exchange(writer, &fresh, aside).map_err(failed)?;
            *writer = Writer { file: Some(Arc::new(file)), length: 0, broken: None };
            Ok(())
        })
    }

    /// Puts the file aside and a fresh one in its place: both or neither.
    fn exchange(&self, writer: &mut Writer, fresh: &Path, aside: &Path) -> io::Result<()> {
        match fs::rename(&self.path, aside) {
            // Last time it went away and could not come back.
            Err(error) if error.kind() == io::ErrorKind::NotFound && writer.broken.is_some() => {}
            moved => moved?,
        }
        fs::rename(fresh, &self.path).inspect_err(|error| {
            // Back: what is appended to a file that the ledger stores and deletes would be lost.
            if fs::rename(aside, &self.path).is_err() {
                writer.broken = Some(errno(error));
            }
        })
    }

    /// Closes the file. Later calls of [`Journal::append`] fail with `EBADF`.
    pub fn close(&self) {
        self.with_writer(|writer| writer.file = None);
    }

    fn with_writer<T>(&self, run: impl FnOnce(&mut Writer) -> T) -> T {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let result = run(&mut writer);
        self.length.store(writer.length, Ordering::Relaxed);
        result
    }
}

impl Writer {
    fn file(&self) -> Result<Arc<File>, Errno> {
        self.file.clone().ok_or(Errno::EBADF)
    }

    fn append(&mut self, entries: &[u8], max_bytes: u64) -> Result<(), Errno> {
        if let Some(errno) = self.broken {
            return Err(errno);
        }
        let length = self.length;
        let file = self.file()?;
        // A file without a name is gone with the process that has it open.
        if file.metadata().map_err(|error| errno(&error))?.nlink() == 0 {
            return Err(Errno::ESTALE);
        }
        if length + entries.len() as u64 > max_bytes {
            return Err(Errno::EFBIG);
        }
        match (&*file).write_all(entries) {
            Ok(()) => {
                self.length += entries.len() as u64;
                Ok(())
            }
            // Part of it may be there, on a disk that became full. Behind it no entry would count.
            Err(error) => {
                let reason = errno(&error);
                if file.set_len(length).is_err() {
                    self.broken = Some(reason);
                }
                Err(reason)
            }
        }
    }
}

/// Reads a journal, its own or a dead one's. One that does not exist is empty.
///
/// # Errors
///
/// [`Error::Os`].
pub fn read(path: &Path) -> Result<Contents, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(parse(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Contents::default()),
        Err(error) => Err(Error::io("journal", &error)),
    }
}

fn create(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(path)
        .map_err(|error| Error::io("journal", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let directory = format!("snakepit_journal_{name}_{}", std::process::id());
            let path = std::env::temp_dir().join(directory);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_was_appended_is_read_across_a_rotation_and_once() {
        let scratch = Scratch::new("rotation");
        let (path, aside) = (scratch.file("journal"), scratch.file("journal.old"));
        let journal = Journal::open(&path, 1 << 20).unwrap();
        journal.append(b"one").unwrap();
        journal.rotate(&aside).unwrap();
        journal.append(b"two").unwrap();
        assert!(matches!(journal.rotate(&aside), Err(Error::Os { errno: Errno::EEXIST, .. })));
        assert_eq!(read(&aside).unwrap().entries, [b"one".to_vec()]);
        assert_eq!(read(&path).unwrap().entries, [b"two".to_vec()]);
        assert_eq!(read(&scratch.file("none")).unwrap(), Contents::default());
    }

    #[test]
    fn a_rotation_that_fails_half_way_is_taken_back() {
        let scratch = Scratch::new("half_way");
        let (path, aside) = (scratch.file("journal"), scratch.file("journal.old"));
        let journal = Journal::open(&path, 1 << 20).unwrap();
        journal.append(b"one").unwrap();
        let missing = scratch.file("no such file");
        journal.with_writer(|writer| journal.exchange(writer, &missing, &aside)).unwrap_err();
        assert!(!aside.exists());
        journal.append(b"two").unwrap();
        assert_eq!(read(&path).unwrap().entries, [b"one".to_vec(), b"two".to_vec()]);
        journal.rotate(&aside).unwrap();
        assert_eq!(read(&aside).unwrap().entries.len(), 2);
    }

    #[test]
    fn a_rotation_does_not_overwrite_what_cannot_be_inspected() {
        let scratch = Scratch::new("inspected");
        let (path, aside) = (scratch.file("journal"), scratch.file("journal.old"));
        let journal = Journal::open(&path, 1 << 20).unwrap();
        journal.append(b"one").unwrap();
        std::os::unix::fs::symlink(&aside, &aside).unwrap();
        assert!(matches!(journal.rotate(&aside), Err(Error::Os { errno: Errno::ELOOP, .. })));
        assert!(aside.is_symlink());
        assert_eq!(read(&path).unwrap().entries, [b"one".to_vec()]);
    }

    #[test]
    fn a_journal_that_went_away_takes_no_entry_until_it_is_rotated() {
        let scratch = Scratch::new("away");
        let (path, aside) = (scratch.file("journal"), scratch.file("journal.old"));
        let journal = Journal::open(&path, 1 << 20).unwrap();
        journal.with_writer(|writer| writer.broken = Some(Errno::EIO));
        fs::rename(&path, &aside).unwrap();
        assert!(matches!(journal.append(b"lost"), Err(Error::Os { errno: Errno::EIO, .. })));
        fs::remove_file(&aside).unwrap();
        journal.rotate(&aside).unwrap();
        journal.append(b"kept").unwrap();
        assert_eq!(read(&path).unwrap().entries, [b"kept".to_vec()]);
    }

    #[test]
    fn a_deleted_a_full_and_a_closed_journal_take_no_entry() {
        let scratch = Scratch::new("refusals");
        let path = scratch.file("journal");
        let refused = |journal: &Journal| match journal.append(b"12345678") {
            Err(Error::Os { errno, .. }) => errno,
            other => panic!("{other:?}"),
        };
        let journal = Journal::open(&path, 30).unwrap();
        journal.append(b"12345678").unwrap();
        assert_eq!(refused(&journal), Errno::EFBIG);
        assert_eq!(journal.length(), 20);
        fs::remove_file(&path).unwrap();
        assert_eq!(refused(&journal), Errno::ESTALE);
        journal.close();
        assert_eq!(refused(&journal), Errno::EBADF);
    }
}
