//! What a child will run, and where its streams lead.

use std::collections::VecDeque;
use std::ffi::OsStr;
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
use snakepit_core::wire::{Input, Output, Spawn, Stdio, Step};

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
            Stdio::Streams { input, output, error, token } => {
                let mut passed = self.passed(token.as_ref().map(|token| token.as_slice()))?;
                let mut tail = None;
                let input = match input {
                    Input::Null => self.null()?,
                    Input::Inherit => duplicate(&std::io::stdin())?,
                    Input::Passed => passed.next()?,
                };
                let output = self.output(output, &std::io::stdout(), &mut passed, &mut tail)?;
                let error = match error {
                    Output::Merged => output.clone(),
                    error => self.output(error, &std::io::stderr(), &mut passed, &mut tail)?,
                };
                Ok((vec![input, output, error], tail.map(|(tail, _writer)| tail)))
            }
            Stdio::Terminal(token) => {
                Ok((vec![self.passed(Some(token.as_slice()))?.next()?; 3], None))
            }
        }
    }

    /// Returns standard output or error; `own` is the BEAM's, and `tail` what the guardian keeps if there is
    /// one already.
    fn output(
        &mut self,
        output: &Output,
        own: &impl AsFd,
        passed: &mut Passed,
        tail: &mut Option<(Tail, Rc<OwnedFd>)>,
    ) -> Result<Rc<OwnedFd>, Errno> {
        match output {
            Output::Tail => {
                let (_tail, writer) = match tail {
                    Some(tail) => tail,
                    None => tail.insert(self.tail()?),
                };
                Ok(writer.clone())
            }
            Output::Null => self.null(),
            Output::Inherit => duplicate(own),
            Output::Passed => passed.next(),
            Output::Merged => Err(Errno::EINVAL),
            Output::File { path, truncate } => {
                open_file(Path::new(OsStr::from_bytes(path)), *truncate).map(Rc::new)
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

    fn tail(&self) -> Result<(Tail, Rc<OwnedFd>), Errno> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        // Only this end: a program that writes expects to wait.
        fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        Ok((Tail::new(reader, self.tail_bytes), Rc::new(writer)))
    }

    fn passed(&mut self, token: Option<&[u8]>) -> Result<Passed, Errno> {
        let Some(token) = token else { return Ok(Passed::Each(VecDeque::new())) };
        Ok(match self.offer(token)? {
            Offer::Socket(stream) => Passed::All(Rc::new(stream.into())),
            Offer::Descriptors(fds) => Passed::Each(fds.into()),
        })
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
            Offer::Descriptors(_) => Err(Errno::ENOTSOCK),
        }
    }
}

/// What came with a token.
enum Passed {
    /// A connection, which is all streams.
    All(Rc<OwnedFd>),
    /// One for each stream.
    Each(VecDeque<OwnedFd>),
}

impl Passed {
    fn next(&mut self) -> Result<Rc<OwnedFd>, Errno> {
        match self {
            Self::All(connection) => Ok(connection.clone()),
            // The kernel drops descriptors for which there is no room.
            Self::Each(fds) => fds.pop_front().map(Rc::new).ok_or(Errno::EMFILE),
        }
    }
}

/// `open(2)` with `O_NONBLOCK`: a FIFO without a reader is an error, and does not block the guardian.
fn open_file(path: &Path, truncate: bool) -> Result<OwnedFd, Errno> {
    let flags = if truncate { libc::O_NONBLOCK | libc::O_TRUNC } else { libc::O_NONBLOCK };
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o644).custom_flags(flags);
    let file: File = options.open(path).map_err(|error| errno(&error))?;
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file.into())
}

fn duplicate(fd: &impl AsFd) -> Result<Rc<OwnedFd>, Errno> {
    fd.as_fd().try_clone_to_owned().map(Rc::new).map_err(|error| errno(&error))
}
