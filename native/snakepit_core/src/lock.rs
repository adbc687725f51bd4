//! A lock that the kernel lets go of when its holder dies, however it dies.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::Error;

/// `flock(2)` on a file, held until it is dropped or its process is gone.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// `flock(2)`, on a file that is made if need be. `None` if someone else holds it.
    ///
    /// Close-on-exec matters: a descriptor that a child inherits would keep the lock alive with it.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if there is no such directory, or no rights.
    pub fn take(path: &Path) -> Result<Option<Self>, Error> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW)
            .open(path)
            .map_err(|error| Error::io("lock", &error))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Some(Self { _file: file })),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(Error::Os { call: "flock", errno }),
        }
    }
}
