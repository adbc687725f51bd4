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
use snakepit_core::error::errno;
use snakepit_core::wire::{Spawn, Stdio, Step};

use super::gate::Payload;
use super::image;
use super::listener::Offer;
use super::shell::{Shell, add};
use super::tail::Tail;

/// How many images are kept in memory until their child is released.
const MAX_IN_MEMORY: usize = 16;

/// What a child gets, and what stays here.
type Streams = (Vec<Rc<OwnedFd>>, Option<Tail>);

impl Shell {
    /// Prepares the payload of a waiting child. It goes through the gate with the release.
    pub(super) fn pack(&mut self, spawn: &Spawn) -> Result<(), (Step, Errno)> {
        // The guardian could not end it, nor would the kernel end it with the guardian.
        if !self.rights.can_signal(spawn.uid) {
            return Err((Step::Rights, Errno::EPERM));
        }
        let as_file = self.packed >= MAX_IN_MEMORY;
        let image = image::build(spawn, &self.environment, as_file)
            .map_err(|errno| (Step::Execute, errno))?;
        let (mut streams, tail) =
            self.streams(&spawn.stdio).map_err(|errno| (Step::Stdio, errno))?;
        if let Some(token) = &spawn.lifeline {
            streams.push(Rc::new(self.lifeline(token).map_err(|errno| (Step::Stdio, errno))?));
        }
        if let Some(tail) = &tail {
            // If nothing reads it, its pipe fills up, and the program waits forever.
            let watched = add(&self.tails, tail.output.as_fd(), spawn.id);
            watched.map_err(|errno| (Step::Stdio, errno))?;
        }
        let resources = self.resources.get_mut(&spawn.id).ok_or((Step::Fork, Errno::ESRCH))?;
        resources.payload = Some(Box::new(Payload { image, streams }));
        resources.tail = tail;
        self.packed += 1;
        Ok(())
    }

    /// Returns standard input, output and error, and the reading end of what the guardian keeps.
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
                let (input, output) = self.offered(token)?;
                let (tail, error) = self.tail()?;
                Ok((vec![input, output, Rc::new(error)], Some(tail)))
            }
            Stdio::Stream(token) => {
                let (input, output) = self.offered(token)?;
                Ok((vec![input, output.clone(), output], None))
            }
        }
    }

    /// `open(2)` of `/dev/null`, once for all children.
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

    /// Returns standard input and output: pipes, or one connection for both.
    fn offered(&mut self, token: &[u8]) -> Result<(Rc<OwnedFd>, Rc<OwnedFd>), Errno> {
        match self.offer(token)? {
            Offer::Socket(stream) => {
                let both = Rc::new(OwnedFd::from(stream));
                Ok((both.clone(), both))
            }
            Offer::Pipes(mut fds) => {
                // The kernel drops descriptors for which there is no room.
                let output = Rc::new(fds.pop().ok_or(Errno::EMFILE)?);
                let input = fds.pop().map(Rc::new);
                Ok((input.map_or_else(|| self.null(), Ok)?, output))
            }
        }
    }

    /// Returns what the BEAM has offered with this token. It does so before it asks for the child, so both are
    /// there, if only in a queue.
    fn offer(&mut self, token: &[u8]) -> Result<Offer, Errno> {
        self.accept();
        self.read_tokens();
        self.receive_all_passed();
        let listener = self.listener.as_mut().ok_or(Errno::ENOTCONN)?;
        listener.take(token).ok_or(Errno::ENOTCONN)
    }

    fn lifeline(&mut self, token: &[u8]) -> Result<OwnedFd, Errno> {
        match self.offer(token)? {
            Offer::Socket(stream) => Ok(stream.into()),
            Offer::Pipes(_) => Err(Errno::ENOTSOCK),
        }
    }
}

/// `open(2)` with `O_NONBLOCK`: a FIFO without a reader is an error, and does not block the guardian.
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
