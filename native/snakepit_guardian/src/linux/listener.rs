//! Where the BEAM connects for piped stdio and lifelines.
//!
//! A listening socket in a directory that only this user may enter. A peer must be the BEAM, by its
//! `SO_PEERCRED`, and sends a token that the BEAM has made up. The connection is then handed to the child
//! that was spawned with that token.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::Epoll;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, RecvMsg, getsockopt, recv, recvmsg, sockopt,
};
use nix::unistd::read;
use snakepit_core::error::errno;
use snakepit_core::run_directory as names;
use snakepit_core::wire::{CHANNEL_TOKEN, TERMINAL_TOKEN};
use snakepit_guardian::connections::{Connections, TOKEN};

use super::shell::{CHANNEL, CONNECTION, LISTENER, Shell, TERMINAL, add};
use super::terminals::Terminals;

/// Descriptors that come with one token, at the most.
const MAX_PASSED: usize = 3;

/// How many are checked for a closed peer when one comes: more than one, so that they get fewer.
const CHECKED_PER_CONNECTION: usize = 2;
/// How long no connection is accepted when there is no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// In the run's directory: the socket, or a link to it where it is elsewhere, so that the next guardian
    /// or start can remove it if this guardian is killed.
    own: PathBuf,
    beam: libc::pid_t,
    connections: Connections<Offer>,
    /// Connections over which descriptors are passed.
    channels: HashMap<u64, UnixStream>,
    pub(super) terminals: Terminals,
}

/// What the BEAM has offered for a child.
pub enum Offer {
    /// A connection, for both directions.
    Socket(UnixStream),
    /// Descriptors, as far as there was room for them.
    Descriptors(Vec<OwnedFd>),
}

impl Offer {
    /// Returns whether the BEAM has closed its side.
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Socket(stream) => peer_closed(stream),
            Self::Descriptors(fds) => fds.iter().all(other_end_closed),
        }
    }

    fn socket(&self) -> Option<&UnixStream> {
        match self {
            Self::Socket(stream) => Some(stream),
            Self::Descriptors(_) => None,
        }
    }
}

/// What a connection has shown.
enum Shown {
    Nothing,
    Token,
    Channel,
    Terminal,
}

impl Listener {
    /// Listens in the run's own directory, or, where that path is too long for a socket's address or its
    /// file system has no sockets, in a new one below the system's temporary one.
    pub fn open(beam: libc::pid_t, run_directory: &Path) -> Result<Self, Errno> {
        let own = run_directory.join(names::LISTENER);
        // What a guardian of this run that was killed has left.
        remove(&own);
        let (socket, path) = if let Ok(socket) = UnixListener::bind(&own) {
            (socket, own.clone())
        } else {
            let directory = make_directory(&std::env::temp_dir().join("snakepit-XXXXXX"))?;
            let path = directory.join(names::LISTENER);
            // Order: the link first. A socket that no link names would stay.
            let _ = symlink(&path, &own);
            (UnixListener::bind(&path).map_err(|error| errno(&error))?, path)
        };
        socket.set_nonblocking(true).map_err(|error| errno(&error))?;
        Ok(Self {
            socket,
            path,
            own,
            beam,
            connections: Connections::default(),
            channels: HashMap::new(),
            terminals: Terminals::default(),
        })
    }

    pub fn path(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    /// `accept(2)` until a peer is the BEAM. Returns its number; `EAGAIN` when no connection waits.
    fn accept(&mut self) -> Result<u64, Errno> {
        loop {
            let (stream, _) = self.socket.accept().map_err(|error| errno(&error))?;
            let peer = getsockopt(&stream, sockopt::PeerCredentials).ok().map(|peer| peer.pid());
            if peer == Some(self.beam) && stream.set_nonblocking(true).is_ok() {
                return Ok(self.connections.accept(Offer::Socket(stream)));
            }
        }
    }

    /// `read(2)` of a connection's token.
    fn read_token(&mut self, number: u64) -> Shown {
        let mut token = [0; TOKEN];
        let Some(Offer::Socket(stream)) = self.connections.get(number) else { return Shown::Token };
        match read(stream, &mut token) {
            Err(Errno::EAGAIN | Errno::EINTR) => return Shown::Nothing,
            Ok(TOKEN) if token == CHANNEL_TOKEN => {
                if let Some(Offer::Socket(stream)) = self.connections.take_pending(number) {
                    self.channels.insert(number, stream);
                }
                return Shown::Channel;
            }
            Ok(TOKEN) if token == TERMINAL_TOKEN => {
                if let Some(Offer::Socket(stream)) = self.connections.take_pending(number) {
                    self.terminals.insert(number, stream);
                }
                return Shown::Terminal;
            }
            Ok(TOKEN) => {
                self.drop_some_closed();
                self.connections.authenticate(number, token);
            }
            // A token comes in one piece: it is far smaller than a socket's buffer.
            _ => self.connections.drop_pending(number),
        }
        Shown::Token
    }

    /// `recvmsg(2)` of what has been passed over a channel. Returns whether there may be more later.
    fn receive(&mut self, number: u64) -> bool {
        loop {
            let Some(channel) = self.channels.get(&number) else { return false };
            let mut token = [0; TOKEN];
            let mut space = nix::cmsg_space!([RawFd; MAX_PASSED]);
            let mut parts = [IoSliceMut::new(&mut token)];
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
            let received = recvmsg::<()>(channel.as_raw_fd(), &mut parts, Some(&mut space), flags);
            let fds = match received {
                Ok(message) if message.bytes == TOKEN => passed(&message),
                Err(Errno::EAGAIN | Errno::EINTR) => return true,
                // The BEAM, or the run, is gone; or something else than the BEAM speaks.
                _ => {
                    self.channels.remove(&number);
                    return false;
                }
            };
            self.drop_some_closed();
            let offer = self.connections.accept(Offer::Descriptors(fds));
            self.connections.authenticate(offer, token);
        }
    }

    /// Reads a token, and has `epoll` report what comes next.
    fn read_token_and_watch(&mut self, epoll: &Epoll, number: u64) {
        let (watched, kind) = match self.read_token(number) {
            Shown::Token => return,
            Shown::Nothing => (self.connections.get(number).and_then(Offer::socket), CONNECTION),
            Shown::Channel => (self.channels.get(&number), CHANNEL),
            Shown::Terminal => (self.terminals.connection(number), TERMINAL),
        };
        if let Some(stream) = watched {
            let _ = add(epoll, stream.as_fd(), kind | number);
        }
    }

    fn drop_some_closed(&mut self) {
        for _ in 0..CHECKED_PER_CONNECTION {
            let Some((number, offer)) = self.connections.next_to_check() else { return };
            if offer.is_abandoned() {
                self.connections.drop_authenticated(number);
            }
        }
    }

    /// Returns what was offered with this token, for the child to own.
    pub fn take(&mut self, token: &[u8]) -> Option<Offer> {
        let offer = self.connections.take(token)?;
        if let Offer::Socket(stream) = &offer {
            // The child expects a descriptor that waits.
            stream.set_nonblocking(false).ok()?;
        }
        Some(offer)
    }
}

/// The descriptors that came with a message.
pub(super) fn passed(message: &RecvMsg<()>) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    for part in message.cmsgs().into_iter().flatten() {
        if let ControlMessageOwned::ScmRights(raw) = part {
            // SAFETY: the kernel has just made them for this process.
            fds.extend(raw.into_iter().map(|raw| unsafe { OwnedFd::from_raw_fd(raw) }));
        }
    }
    fds
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Shell {
    /// Accepts all connections that wait, and reads the tokens of those that have sent one.
    pub(super) fn accept(&mut self) {
        let now = self.now();
        let Some(listener) = &mut self.listener else { return };
        loop {
            match listener.accept() {
                Ok(number) => {
                    listener.read_token_and_watch(&self.epoll, number);
                }
                // The connection goes on waiting, and `epoll` would report it again and again.
                Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS)
                    if self.accepts_at.is_none() =>
                {
                    let _ = self.epoll.delete(listener.as_fd());
                    self.accepts_at = Some(now + ACCEPT_PAUSE);
                    return;
                }
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(_none_waits) => return,
            }
        }
    }

    /// Watches the listener again, if there was no descriptor for a connection a while ago.
    pub(super) fn resume_accepting(&mut self) {
        if self.accepts_at.is_some_and(|at| at <= self.now()) {
            self.accepts_at = None;
            if let Some(listener) = &self.listener {
                let _ = add(&self.epoll, listener.as_fd(), LISTENER);
            }
        }
    }

    /// Reads the tokens of connections that were accepted before they had sent one.
    pub(super) fn read_tokens(&mut self) {
        let numbers = self.listener.as_ref().map(|one| one.connections.pending());
        for number in numbers.unwrap_or_default() {
            self.read_token(number);
        }
    }

    /// Reads the token of one connection, if it has come.
    pub(super) fn read_token(&mut self, number: u64) {
        let Some(listener) = &mut self.listener else { return };
        if let Some(Offer::Socket(connection)) = listener.connections.get(number) {
            // Order: before the connection changes hands. A child's copy would keep it in here.
            let _ = self.epoll.delete(connection);
        }
        listener.read_token_and_watch(&self.epoll, number);
    }

    /// Receives what was passed over a channel.
    pub(super) fn receive_passed(&mut self, number: u64) {
        if let Some(listener) = &mut self.listener {
            listener.receive(number);
        }
    }

    /// Receives what the BEAM says of a terminal.
    pub(super) fn receive_of_terminal(&mut self, number: u64) {
        if let Some(listener) = &mut self.listener {
            listener.terminals.receive(number);
        }
    }

    /// Restores the terminals that the BEAM has left in raw mode: those of which it has told, if only a moment
    /// before it died.
    pub(super) fn restore_terminals(&mut self) {
        self.accept();
        self.read_tokens();
        if let Some(listener) = &mut self.listener {
            listener.terminals.restore_all();
        }
    }

    /// Receives what was passed over any channel.
    pub(super) fn receive_all_passed(&mut self) {
        let Some(listener) = &mut self.listener else { return };
        let numbers: Vec<u64> = listener.channels.keys().copied().collect();
        for number in numbers {
            listener.receive(number);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        remove(&self.own);
        // The link may be gone with the run's directory.
        if self.path != self.own {
            remove_with_directory(&self.path);
        }
    }
}

/// `unlink(2)` of a socket, or of a link to one and what was made for it.
fn remove(own: &Path) {
    if let Ok(socket) = fs::read_link(own) {
        remove_with_directory(&socket);
    }
    let _ = fs::remove_file(own);
}

fn remove_with_directory(socket: &Path) {
    let _ = fs::remove_file(socket);
    let _ = socket.parent().map(fs::remove_dir);
}

/// `recv(2)` with `MSG_PEEK`: whether the other side has closed the connection.
fn peer_closed(connection: &UnixStream) -> bool {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    recv(connection.as_raw_fd(), &mut [0], flags) == Ok(0)
}

/// `poll(2)`: whether nobody has the other end of this pipe or terminal any more.
fn other_end_closed(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::empty())];
    let closed = PollFlags::POLLERR | PollFlags::POLLHUP;
    poll(&mut fds, PollTimeout::ZERO).is_ok()
        && fds[0].revents().is_some_and(|events| events.intersects(closed))
}

/// `mkdtemp(3)`: a new directory with mode 0700.
fn make_directory(template: &Path) -> Result<PathBuf, Errno> {
    let template = CString::new(template.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let mut template = template.into_bytes_with_nul();
    // SAFETY: the buffer ends with a NUL and is changed in place, its length kept.
    let made = unsafe { libc::mkdtemp(template.as_mut_ptr().cast()) };
    if made.is_null() {
        return Err(Errno::last());
    }
    template.pop();
    Ok(PathBuf::from(std::ffi::OsString::from_vec(template)))
}
