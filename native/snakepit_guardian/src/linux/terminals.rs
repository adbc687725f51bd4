//! The terminals of people who are attached to a worker's.
//!
//! The BEAM sets such a terminal to raw mode. If it is killed then, nobody but the guardian knows what it was set
//! to before.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recvmsg};
use nix::sys::termios::{SetArg, tcgetattr, tcsetattr};
use snakepit_core::terminal::Settings;

use super::listener::passed;

/// More than encoded settings take.
const MAX_MESSAGE: usize = 512;
/// The most that are kept.
const MAX: usize = 64;

/// By the numbers of the connections over which they came.
#[derive(Default)]
pub struct Terminals(HashMap<u64, Terminal>);

struct Terminal {
    connection: UnixStream,
    /// Once the BEAM has handed it over.
    held: Option<(OwnedFd, Settings)>,
}

/// What a connection says.
enum Said {
    Nothing,
    /// This is a terminal, and what it is set to.
    Held(OwnedFd, Settings),
    /// It is what it was.
    Done,
    /// The BEAM is gone.
    Closed,
}

impl Terminals {
    /// Adds a connection over which a terminal will come.
    pub fn insert(&mut self, number: u64, connection: UnixStream) {
        if self.0.len() < MAX {
            self.0.insert(number, Terminal { connection, held: None });
        }
    }

    /// Returns a connection.
    pub fn connection(&self, number: u64) -> Option<&UnixStream> {
        self.0.get(&number).map(|terminal| &terminal.connection)
    }

    /// Receives what the BEAM says of a terminal.
    pub fn receive(&mut self, number: u64) {
        let Some(terminal) = self.0.get_mut(&number) else { return };
        loop {
            match terminal.receive() {
                Said::Nothing => return,
                Said::Held(fd, settings) => terminal.held = Some((fd, settings)),
                Said::Done => break,
                Said::Closed => {
                    terminal.restore();
                    break;
                }
            }
        }
        self.0.remove(&number);
    }

    /// Restores all of them, because the BEAM is gone.
    pub fn restore_all(&mut self) {
        let numbers: Vec<u64> = self.0.keys().copied().collect();
        for number in numbers {
            self.receive(number);
        }
        for (_number, mut terminal) in self.0.drain() {
            terminal.restore();
        }
    }
}

impl Terminal {
    /// `recvmsg(2)`.
    fn receive(&self) -> Said {
        let mut bytes = [0; MAX_MESSAGE];
        let mut space = nix::cmsg_space!([RawFd; 1]);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
        let (length, fds) = {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let fd = self.connection.as_raw_fd();
            match recvmsg::<()>(fd, &mut parts, Some(&mut space), flags) {
                Ok(message) => (message.bytes, passed(&message)),
                Err(Errno::EAGAIN | Errno::EINTR) => return Said::Nothing,
                Err(_closed) => return Said::Closed,
            }
        };
        let Some(bytes) = bytes.get(..length).filter(|bytes| !bytes.is_empty()) else {
            return Said::Closed;
        };
        // Without a descriptor it is `TERMINAL_DONE`.
        let terminal = fds.into_iter().next().zip(Settings::decode(bytes));
        terminal.map_or(Said::Done, |(fd, settings)| Said::Held(fd, settings))
    }

    /// `tcsetattr(3)`, unless somebody has set it to something else since. This process does not belong to the
    /// terminal, so the kernel does not ask who is in front.
    fn restore(&mut self) {
        let Some((fd, settings)) = self.held.take() else { return };
        let Ok(mut modes) = tcgetattr(&fd) else { return };
        if settings.became_raw(&modes) {
            settings.apply(&mut modes);
            let _ = tcsetattr(&fd, SetArg::TCSANOW, &modes);
        }
    }
}
