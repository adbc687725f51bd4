//! Connections over which the BEAM passes descriptors to the guardian (`SCM_RIGHTS`).
//!
//! The BEAM makes the pipes of a program and passes the program's ends, over a socket that stays open for as long as
//! the guardian lives. A terminal that is to be restored has a connection of its own.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, sendmsg, socket,
};
use nix::unistd::write;
use rustler::types::atom;
use rustler::{Binary, Encoder, Env, ResourceArc, Term};
use snakepit_core::Error;
use snakepit_core::wire::{CHANNEL_TOKEN, TERMINAL_TOKEN};

use crate::Answer;
use crate::pipe::new;
use crate::terms::Bytes;

/// A guardian that is gone must not end the BEAM, which ignores SIGPIPE wherever there is no such flag.
#[cfg(not(target_os = "macos"))]
const NO_SIGNAL: MsgFlags = MsgFlags::MSG_NOSIGNAL;
#[cfg(target_os = "macos")]
const NO_SIGNAL: MsgFlags = MsgFlags::empty();

/// A connection over which descriptors go to the guardian.
pub struct Channel(OwnedFd);

#[rustler::resource_impl]
impl rustler::Resource for Channel {}

impl Channel {
    /// `write(2)`.
    pub fn say(&self, bytes: &[u8]) -> Result<usize, Errno> {
        write(&self.0, bytes)
    }

    /// `sendmsg(2)`: passes descriptors, with this token or other message.
    pub fn pass(&self, message: &[u8], fds: &[RawFd]) -> Result<(), Errno> {
        let message = [std::io::IoSlice::new(message)];
        let rights = [ControlMessage::ScmRights(fds)];
        sendmsg::<()>(self.0.as_raw_fd(), &message, &rights, NO_SIGNAL, None)?;
        Ok(())
    }
}

/// `Snakepit.Native.channel_open/1`: connects to the guardian's listener. Never waits.
#[rustler::nif]
fn channel_open(path: Bytes) -> Answer<ResourceArc<Channel>> {
    let opened = connect_to(&path.0, CHANNEL_TOKEN).map_err(Error::os("channel"))?;
    Ok(ResourceArc::new(Channel(opened)))
}

/// `Snakepit.Native.guard_open/1`: the same, for a terminal that the guardian is to restore.
#[rustler::nif]
fn guard_open(path: Bytes) -> Answer<ResourceArc<Channel>> {
    let opened = connect_to(&path.0, TERMINAL_TOKEN).map_err(Error::os("guard"))?;
    Ok(ResourceArc::new(Channel(opened)))
}

/// Connects to the guardian's listener; by its first words the guardian knows what it is for.
fn connect_to(path: &[u8], token: [u8; 16]) -> Result<OwnedFd, Errno> {
    let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None)?;
    fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    fcntl(&fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    write(&fd, &token)?;
    Ok(fd)
}

#[cfg(not(target_os = "macos"))]
fn new_pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    nix::unistd::pipe2(OFlag::O_CLOEXEC)
}

#[cfg(target_os = "macos")]
fn new_pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let (reader, writer) = nix::unistd::pipe()?;
    fcntl(&reader, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    fcntl(&writer, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok((reader, writer))
}

fn term_or_nil(env: Env<'_>, fd: Option<OwnedFd>) -> Term<'_> {
    fd.map_or_else(|| atom::nil().encode(env), |fd| new(env, fd))
}

/// `Snakepit.Native.pipes_pass/3`: makes a pipe for each of standard input, output and error that is wanted, and
/// passes the program's ends to the guardian, in that order, by this token. Never waits.
#[rustler::nif]
fn pipes_pass<'a>(
    env: Env<'a>,
    channel: ResourceArc<Channel>,
    token: Binary,
    wanted: (bool, bool, bool),
) -> Answer<(Term<'a>, Term<'a>, Term<'a>)> {
    let made = || -> Result<[Option<OwnedFd>; 3], Errno> {
        let mut own = [None, None, None];
        let mut programs = Vec::with_capacity(3);
        let wanted = [wanted.0, wanted.1, wanted.2];
        for (stream, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
            let (reader, writer) = new_pipe()?;
            let (own_end, program_end) =
                if stream == 0 { (writer, reader) } else { (reader, writer) };
            // Only this end: a program expects to wait.
            fcntl(&own_end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
            own[stream] = Some(own_end);
            programs.push(program_end);
        }
        let fds: Vec<RawFd> = programs.iter().map(AsRawFd::as_raw_fd).collect();
        channel.pass(&token, &fds)?;
        Ok(own)
    };
    let [input, output, error] = made().map_err(Error::os("pipes"))?;
    Ok((term_or_nil(env, input), term_or_nil(env, output), term_or_nil(env, error)))
}
