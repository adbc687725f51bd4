//! Small files that are made once and whole, and read only if nobody else could have written them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::geteuid;

use crate::{Error, entropy};

/// Reads a file of this user that nobody else may write to; a link is not followed.
///
/// # Errors
///
/// [`Error::Os`] with `EPERM` if it is another's, or others may write to it, or it is no regular file;
/// with `EFBIG` if it is longer than `max_bytes`.
pub fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Error> {
    load(path, max_bytes).map_err(|error| Error::io("file", &error))
}

fn load(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    // Nobody has to write into a named pipe for this to go on.
    let flags = libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        return Err(Errno::EPERM.into());
    }
    // Not even begun: it may be a file of a terabyte without any blocks.
    if metadata.len() > max_bytes {
        return Err(Errno::EFBIG.into());
    }
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(Errno::EFBIG.into());
    }
    Ok(bytes)
}

/// Makes a file with this content, unless there is one. Whoever sees it sees all of it, and so does
/// whoever comes after a power loss.
///
/// # Errors
///
/// [`Error::Os`].
pub fn create(path: &Path, content: &[u8]) -> Result<(), Error> {
    write_once(path, content).map_err(|error| Error::io("file", &error))
}

fn write_once(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(format!("{:016x}", entropy::number()?));
    let written = write_synced(&temporary, content).and_then(|()| publish(&temporary, path));
    let _ = fs::remove_file(&temporary);
    written?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// A link, unlike a rename, does not take the place of one that another was quicker to make.
fn publish(temporary: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(temporary, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("snakepit_file_{name}_{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn errno(result: Result<Vec<u8>, Error>) -> Errno {
        match result {
            Err(Error::Os { errno, .. }) => errno,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_first_of_many_that_make_it_at_once_is_what_all_of_them_read() {
        let scratch = Scratch::new("first");
        let path = scratch.0.join("file");
        let read = std::thread::scope(|scope| {
            let make = |number: u8| {
                let path = &path;
                scope.spawn(move || {
                    create(path, &[number; 64]).unwrap();
                    read(path, 64).unwrap()
                })
            };
            let threads: Vec<_> = (0..16).map(make).collect();
            threads.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(read.iter().all(|one| one.len() == 64 && one == &read[0]));
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    #[test]
    fn what_others_may_write_to_and_what_is_no_file_is_not_read() {
        let scratch = Scratch::new("others");
        let path = scratch.0.join("file");
        create(&path, b"12345678").unwrap();
        assert_eq!(errno(read(&path, 7)), Errno::EFBIG);
        for mode in [0o620, 0o602, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(errno(read(&path, 64)), Errno::EPERM, "{mode:o}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read(&path, 8).unwrap(), b"12345678");
        let link = scratch.0.join("link");
        symlink(&path, &link).unwrap();
        assert_eq!(errno(read(&link, 64)), Errno::ELOOP);
        let pipe = scratch.0.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(errno(read(&pipe, 64)), Errno::EPERM);
        assert_eq!(errno(read(&scratch.0, 64)), Errno::EPERM);
    }
}
