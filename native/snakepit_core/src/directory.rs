//! The data directory and the directories of runs: made with their mode, and read only if nobody else could
//! have written there. What is in them decides what is killed.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::unistd::geteuid;

use crate::run_id::RunId;
use crate::{Error, filesystem};

/// The bits that let others than the owner write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// The bits that let others than the owner come to what is in a directory.
const ENTERED_BY_OTHERS: u32 = 0o011;
/// The owner's alone.
const PRIVATE: u32 = 0o700;

/// Opening a directory to inspect it takes no right to read it.
#[cfg(target_os = "linux")]
const INSPECT: libc::c_int = libc::O_PATH;
#[cfg(not(target_os = "linux"))]
const INSPECT: libc::c_int = 0;

/// `mkdir(2)` of a directory, and of those above it that are missing, for this user alone.
///
/// The mode is an argument of `mkdir(2)`: there is no moment at which it is another, and a sandbox that
/// forbids `chown`, which OTP calls before `chmod`, does not matter.
///
/// # Errors
///
/// [`Error::Os`].
pub fn make(path: &Path) -> Result<(), Error> {
    // One that is there is not asked for again: in a read-only place that would be refused.
    if path.is_dir() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(PRIVATE).create(path);
    made.map_err(|error| Error::io("mkdir", &error))
}

/// `mkdir(2)` of a directory that is not there yet, for this user alone.
///
/// # Errors
///
/// [`Error::Os`] with `EEXIST` if there is something of that name.
pub fn claim(path: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().mode(PRIVATE).create(path);
    made.map_err(|error| Error::io("mkdir", &error))
}

/// Whose a directory is, and on which file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its owner.
    pub owner: u32,
    /// Who asks.
    pub user: u32,
    /// Whether others than its owner may write there.
    pub shared: bool,
    /// Its file system, if that is a network's.
    pub remote: Option<String>,
}

/// `fstat(2)` and `fstatfs(2)` of a directory; through a link only if `follows`.
///
/// # Errors
///
/// [`Error::Os`], with `ENOTDIR` for a link that is not to be followed.
pub fn inspect(path: &Path, follows: bool) -> Result<Standing, Error> {
    let directory = open(path, INSPECT | if follows { 0 } else { libc::O_NOFOLLOW })?;
    let metadata = metadata(&directory)?;
    Ok(Standing {
        owner: metadata.uid(),
        user: geteuid().as_raw(),
        shared: metadata.mode() & WRITABLE_BY_OTHERS != 0,
        remote: filesystem::remote(&directory)?,
    })
}

/// `fchmod(2)`: takes the rights of others away from a directory or file of this user; a link is not
/// followed.
///
/// # Errors
///
/// [`Error::Os`], with `EPERM` if it is another's.
pub fn close_to_others(path: &Path) -> Result<(), Error> {
    let flags = libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| Error::io("chmod", &error))?;
    let mode = metadata(&file)?.mode() & PRIVATE;
    let closed = file.set_permissions(fs::Permissions::from_mode(mode));
    closed.map_err(|error| Error::io("chmod", &error))
}

/// Returns the names of what is in a directory.
///
/// # Errors
///
/// [`Error::Os`], also if the listing ends in an error: what was not listed is not missing.
pub fn list(path: &Path) -> Result<Vec<OsString>, Error> {
    let entries = fs::read_dir(path);
    let names = entries.and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    names.map_err(|error| Error::io("directory", &error))
}

/// The runs of a data directory, by what may be done with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// Those that only this user can have written, with the names of the files in each.
    pub own: Vec<(RunId, Vec<OsString>)>,
    /// Those that are another's, or that others may write to. They are not to be read.
    pub foreign: Vec<RunId>,
}

/// Returns the runs of a data directory.
///
/// # Errors
///
/// [`Error::Os`]: a caller that takes what cannot be listed for what is not there forgets processes.
pub fn runs(path: &Path) -> Result<Runs, Error> {
    let failed = |error: io::Error| Error::io("directory", &error);
    let mut runs = Runs::default();
    for entry in fs::read_dir(path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let Some(id) = RunId::from_bytes(name.as_encoded_bytes()) else { continue };
        match own_files(&path.join(&name)) {
            Ok(Some(files)) => runs.own.push((id, files)),
            Ok(None) => runs.foreign.push(id),
            // Another start has removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(runs)
}

/// Returns the files of a run, if its directory and all in it are this user's to write and nobody else's.
///
/// Order: the directory first. Once nobody else can write there, nobody else can exchange the files in it
/// between this check and the time when they are read.
fn own_files(path: &Path) -> io::Result<Option<Vec<OsString>>> {
    let directory = fs::symlink_metadata(path)?;
    if !directory.is_dir() || !is_users(&directory) || is_writable(&directory) {
        return Ok(None);
    }
    // A file that others may write to is out of their reach then; DETS makes its own by the umask.
    let is_closed = directory.mode() & ENTERED_BY_OTHERS == 0;
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(file) if is_users(&file) && (is_closed || !is_writable(&file)) => {
                files.push(entry.file_name());
            }
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(files))
}

fn is_users(metadata: &Metadata) -> bool {
    metadata.uid() == geteuid().as_raw()
}

/// By others. The mode of a link says nothing, and what is written to a socket is not read from here.
fn is_writable(metadata: &Metadata) -> bool {
    let kind = metadata.file_type();
    !kind.is_symlink() && !kind.is_socket() && metadata.mode() & WRITABLE_BY_OTHERS != 0
}

fn open(path: &Path, flags: libc::c_int) -> Result<File, Error> {
    let flags = flags | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.map_err(|error| Error::io("directory", &error))
}

fn metadata(file: &File) -> Result<Metadata, Error> {
    file.metadata().map_err(|error| Error::io("directory", &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("snakepit_directory_{name}_{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            make(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_is_made_is_its_users_alone_and_what_was_there_stays_as_it_is() {
        let scratch = Scratch::new("made");
        let path = scratch.0.join("a/b");
        make(&path).unwrap();
        for one in [&scratch.0.join("a"), &path] {
            assert_eq!(fs::metadata(one).unwrap().mode() & 0o777, 0o700);
        }
        chmod(&path, 0o755);
        make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
        assert!(matches!(claim(&path), Err(Error::Os { errno: nix::errno::Errno::EEXIST, .. })));
        assert!(!inspect(&path, true).unwrap().shared);
        chmod(&path, 0o770);
        assert!(inspect(&path, true).unwrap().shared);
        close_to_others(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_run_that_others_may_write_to_is_not_read() {
        let scratch = Scratch::new("runs");
        let cases = [
            ("closed1", 0o700, 0o666, true),
            ("visible", 0o755, 0o644, true),
            ("grouped", 0o755, 0o664, false),
            ("planted", 0o777, 0o600, false),
            ("setgids", 0o2770, 0o600, false),
        ];
        for (name, mode, of_file, _own) in cases {
            let directory = scratch.0.join(name);
            claim(&directory).unwrap();
            fs::write(directory.join("journal"), b"").unwrap();
            chmod(&directory.join("journal"), of_file);
            chmod(&directory, mode);
        }
        let link = scratch.0.join("linked7");
        symlink(scratch.0.join("closed1"), &link).unwrap();
        assert!(inspect(&link, true).is_ok());
        assert!(matches!(
            inspect(&link, false),
            Err(Error::Os { errno: nix::errno::Errno::ENOTDIR, .. })
        ));
        fs::write(scratch.0.join("instance"), b"").unwrap();
        let runs = runs(&scratch.0).unwrap();
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        let own = runs.own.iter().map(|(id, _files)| id.to_string()).collect();
        assert_eq!(sorted(own), ["closed1", "visible"]);
        assert!(runs.own.iter().all(|(_id, files)| files == &["journal"]));
        let foreign = runs.foreign.iter().map(RunId::to_string).collect();
        assert_eq!(sorted(foreign), ["grouped", "linked7", "planted", "setgids"]);
    }
}
