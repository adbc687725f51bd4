//! What a child will run, and where its streams lead.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;
use snakepit_core::wire::{Spawn, Stdio, Step};

use super::gate::Payload;
use super::image;
use super::shell::{Shell, add};
use super::tail::Tail;

/// How many images are kept in memory until their child is released.
const MAX_KEPT: usize = 16;

/// What a child gets, and what stays here.
type Streams = (Vec<Rc<OwnedFd>>, Option<Tail>);

impl Shell {
    /// Packs what a waiting child is to run. It goes through the gate with the release.
    pub(super) fn pack(&mut self, spawn: &Spawn) -> Result<(), (Step, Errno)> {
        // Nobody could end it, and the kernel would not end it with the guardian.
        if !self.rights.reach(spawn.uid) {
            return Err((Step::Rights, Errno::EPERM));
        }
        let sparing = self.packed >= MAX_KEPT;
        let image = image::build(spawn, &self.environment, sparing)
            .map_err(|errno| (Step::Execute, errno))?;
        let (mut streams, tail) =
            self.streams(&spawn.stdio).map_err(|errno| (Step::Stdio, errno))?;
        if let Some(token) = &spawn.lifeline {
            streams.push(Rc::new(self.connection(token).map_err(|errno| (Step::Stdio, errno))?));
        }
        if let Some(tail) = &tail {
            // Unwatched its pipe would become full, and the program wait for ever.
            let watched = add(&self.tails, tail.output.as_fd(), spawn.id);
            watched.map_err(|errno| (Step::Stdio, errno))?;
        }
        let kept = self.kept.get_mut(&spawn.id).ok_or((Step::Fork, Errno::ESRCH))?;
        kept.payload = Some(Box::new(Payload { image, streams }));
        kept.tail = tail;
        self.packed += 1;
        Ok(())
    }

    /// Standard input, output and error, and the reading end of what the guardian keeps.
    fn streams(&mut self, stdio: &Stdio) -> Result<Streams, Errno> {
        match stdio {
            Stdio::Tail => {
                let (tail, output) = self.tail()?;
                let output = Rc::new(output);
                Ok((vec![self.null()?, output.clone(), output], Some(tail)))
            }
            Stdio::Null => Ok((vec![self.null()?; 3], None)),
            Stdio::Inherit => {
                let inherited = [
                    duplicate(&std::io::stdin())?,
                    duplicate(&std::io::stdout())?,
                    duplicate(&std::io::stderr())?,
                ];
                Ok((inherited.map(Rc::new).into(), None))
            }
            Stdio::File(path) => {
                let output = Rc::new(append_to(Path::new(std::ffi::OsStr::from_bytes(path)))?);
                Ok((vec![self.null()?, output.clone(), output], None))
            }
            Stdio::Pipe(token) => {
                let both = Rc::new(self.connection(token)?);
                let (tail, error) = self.tail()?;
                Ok((vec![both.clone(), both, Rc::new(error)], Some(tail)))
            }
            Stdio::Stream(token) => {
                let all = Rc::new(self.connection(token)?);
                Ok((vec![all.clone(), all.clone(), all], None))
            }
        }
    }

    /// Opened once: nobody can tell one from another.
    fn null(&mut self) -> Result<Rc<OwnedFd>, Errno> {
        if let Some(null) = &self.null {
            return Ok(null.clone());
        }
        let file = OpenOptions::new().read(true).write(true).open("/dev/null");
        let null = Rc::new(OwnedFd::from(file.map_err(|error| errno(&error))?));
        self.null = Some(null.clone());
        Ok(null)
    }

    fn tail(&self) -> Result<(Tail, OwnedFd), Errno> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        // Only this end: a program that writes expects to wait.
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok((Tail::new(reader, self.tail_bytes), writer))
    }

    /// The BEAM connects and shows its token before it asks, so both are there, if only in a queue.
    fn connection(&mut self, token: &[u8]) -> Result<OwnedFd, Errno> {
        self.accept();
        self.read_tokens();
        let listener = self.listener.as_mut().ok_or(Errno::ENOTCONN)?;
        listener.take(token).ok_or(Errno::ENOTCONN)
    }
}

/// Opened without waiting: a FIFO without a reader is an error, not a halt of the guardian.
fn append_to(path: &Path) -> Result<OwnedFd, Errno> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o644).custom_flags(libc::O_NONBLOCK);
    let file: File = options.open(path).map_err(|error| errno(&error))?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file.into())
}

fn duplicate(fd: &impl AsFd) -> Result<OwnedFd, Errno> {
    fd.as_fd().try_clone_to_owned().map_err(|error| errno(&error))
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
