//! Where the BEAM connects for piped stdio and lifelines.
//!
//! A listening socket in a directory that only this user may enter. A visitor shows a token that the
//! BEAM has made up, and must be the BEAM by the kernel's word. The connection is then handed to the
//! child that was spawned with that token.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, getsockopt, recv, sockopt};
use nix::unistd::read;

use super::guardian::{Guardian, VISITOR, add};

/// Bytes of a token.
pub const TOKEN: usize = 16;
/// Visitors that have not shown a token yet, and those that no child has been given yet, at the most
/// each. Beyond that the oldest goes.
const MAX_VISITORS: usize = 4096;
/// How many are asked whether they have left when one comes: more than one, so that they get fewer. Not
/// all, because thousands may come at once.
const ASKED_PER_VISITOR: usize = 2;

pub struct Door {
    pub listener: UnixListener,
    path: PathBuf,
    /// Whether the directory was made for it.
    is_temporary: bool,
    beam: libc::pid_t,
    /// By number, so the oldest is first.
    strangers: BTreeMap<u64, UnixStream>,
    visitors: BTreeMap<u64, ([u8; TOKEN], UnixStream)>,
    next: u64,
    /// Who was last asked whether it has left.
    asked: u64,
}

impl Door {
    /// Opens the door in the run's own directory, or, where that path is too long for a socket's
    /// address or its file system has no sockets, in a new one below the system's temporary one.
    pub fn open(beam: libc::pid_t, run_directory: &Path) -> Result<Self, Errno> {
        let own = run_directory.join("door");
        let (listener, path, is_temporary) = if let Ok(listener) = UnixListener::bind(&own) {
            (listener, own, false)
        } else {
            let directory = make_directory(&std::env::temp_dir().join("snakepit-XXXXXX"))?;
            let path = directory.join("door");
            (UnixListener::bind(&path).map_err(|error| errno(&error))?, path, true)
        };
        listener.set_nonblocking(true).map_err(|error| errno(&error))?;
        Ok(Self {
            listener,
            path,
            is_temporary,
            beam,
            strangers: BTreeMap::new(),
            visitors: BTreeMap::new(),
            next: 0,
            asked: 0,
        })
    }

    pub fn path(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    /// Lets visitors in until one is the BEAM; `None` when nobody waits. Gives its number.
    pub fn accept(&mut self) -> Option<u64> {
        loop {
            let (stream, _) = self.listener.accept().ok()?;
            let peer = getsockopt(&stream, sockopt::PeerCredentials).ok().map(|peer| peer.pid());
            if peer == Some(self.beam) && stream.set_nonblocking(true).is_ok() {
                self.next += 1;
                self.strangers.insert(self.next, stream);
                if self.strangers.len() > MAX_VISITORS {
                    self.strangers.pop_first();
                }
                return Some(self.next);
            }
        }
    }

    /// Visitors that have not shown a token yet, by number.
    pub fn strangers(&self) -> Vec<u64> {
        self.strangers.keys().copied().collect()
    }

    /// A visitor that has not shown a token yet.
    pub fn stranger(&self, number: u64) -> Option<BorrowedFd<'_>> {
        self.strangers.get(&number).map(AsFd::as_fd)
    }

    /// Reads a visitor's token. Gives the visitor if it has not shown one yet.
    pub fn hear(&mut self, number: u64) -> Option<BorrowedFd<'_>> {
        let mut token = [0; TOKEN];
        match read(self.strangers.get(&number)?, &mut token) {
            Err(Errno::EAGAIN | Errno::EINTR) => return self.stranger(number),
            Ok(TOKEN) => {
                let stream = self.strangers.remove(&number)?;
                self.see_some_off();
                self.visitors.insert(number, (token, stream));
                if self.visitors.len() > MAX_VISITORS {
                    self.visitors.pop_first();
                }
            }
            // A token comes in one piece: it is far smaller than a socket's buffer.
            _ => drop(self.strangers.remove(&number)),
        }
        None
    }

    /// Asks the next few, in turn, and drops those that have left.
    fn see_some_off(&mut self) {
        for _ in 0..ASKED_PER_VISITOR {
            let next = self.visitors.range(self.asked + 1..).next();
            let Some((&number, (_, visitor))) = next.or_else(|| self.visitors.first_key_value())
            else {
                return;
            };
            self.asked = number;
            if has_left(visitor) {
                self.visitors.remove(&number);
            }
        }
    }

    /// The connection that was opened with this token, for the child to own.
    pub fn take(&mut self, token: &[u8]) -> Option<OwnedFd> {
        let token: [u8; TOKEN] = token.try_into().ok()?;
        let number =
            self.visitors.iter().find(|(_, (shown, _))| *shown == token).map(|(n, _)| *n)?;
        let (_, stream) = self.visitors.remove(&number)?;
        // The child expects a descriptor that waits.
        stream.set_nonblocking(false).ok()?;
        Some(stream.into())
    }
}

impl Guardian {
    /// Takes all connections that wait, and the tokens of those that have shown one.
    pub(crate) fn answer_door(&mut self) {
        let Some(door) = &mut self.door else { return };
        while let Some(number) = door.accept() {
            if let Some(stranger) = door.hear(number) {
                let _ = add(&self.epoll, stranger, VISITOR | number);
            }
        }
    }

    /// Reads the tokens of those that were let in before they had shown one.
    pub(crate) fn hear_strangers(&mut self) {
        let numbers = self.door.as_ref().map(Door::strangers).unwrap_or_default();
        for number in numbers {
            self.hear_visitor(number);
        }
    }

    /// Reads the token of one of them, if it has come.
    pub(crate) fn hear_visitor(&mut self, number: u64) {
        let Some(door) = &mut self.door else { return };
        if let Some(stranger) = door.stranger(number) {
            // Before the connection changes hands: a child's copy would keep it in here.
            let _ = self.epoll.delete(stranger);
        }
        if let Some(stranger) = door.hear(number) {
            let _ = add(&self.epoll, stranger, VISITOR | number);
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        if let Some(directory) = self.path.parent().filter(|_| self.is_temporary) {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// Whether the other side has closed the connection.
fn has_left(visitor: &UnixStream) -> bool {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    recv(visitor.as_raw_fd(), &mut [0], flags) == Ok(0)
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

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
