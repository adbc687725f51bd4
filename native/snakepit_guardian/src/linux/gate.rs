//! What the guardian keeps for one child: its end of the gate, what goes through it, and the output.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, recv, sendmsg};
use snakepit_core::wire::Step;
use snakepit_guardian::event::Verdict;

use super::child::Opening;
use super::image::Image;
use super::tail::Tail;

/// What belongs to one child.
pub struct Kept {
    /// Our end of the gate, until the program runs.
    pub gate: Option<OwnedFd>,
    pub payload: Option<Box<Payload>>,
    pub tail: Option<Tail>,
}

/// What goes through the gate: the image, and the descriptors that the child keeps.
pub struct Payload {
    pub image: Image,
    /// One may stand for several streams, or be every child's.
    pub streams: Vec<Rc<OwnedFd>>,
}

impl Kept {
    pub fn new(gate: OwnedFd) -> Self {
        Self { gate: Some(gate), payload: None, tail: None }
    }

    /// Opens the gate. What was packed is the child's from here on.
    pub fn release(&mut self) -> Result<(), Errno> {
        let payload = self.payload.take().ok_or(Errno::EINVAL)?;
        let gate = self.gate.as_ref().ok_or(Errno::EPIPE)?;
        let mut fds: Vec<RawFd> = payload.streams.iter().map(AsRawFd::as_raw_fd).collect();
        let content: &[u8] = match &payload.image {
            Image::Small(bytes) => bytes,
            Image::Large(file, _) => {
                fds.push(file.as_raw_fd());
                &[]
            }
        };
        let head = Opening { length: payload.image.length(), sent: content.len() }.to_bytes();
        let sent = sendmsg::<UnixAddr>(
            gate.as_raw_fd(),
            &[IoSlice::new(&head), IoSlice::new(content)],
            &[ControlMessage::ScmRights(&fds)],
            // A child that is stopped does not read; the guardian must not wait for it.
            MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
            None,
        )?;
        if sent == head.len() + content.len() { Ok(()) } else { Err(Errno::EMSGSIZE) }
    }

    /// What the released child has said; `None` if nothing yet.
    pub fn verdict(&self) -> Option<Verdict> {
        let Some(gate) = &self.gate else { return Some(Verdict::Executed) };
        let mut report = [0; 8];
        match recv(gate.as_raw_fd(), &mut report, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN | Errno::EINTR) => None,
            Ok(8) => {
                let (step, errno) = (word(&report[..4]), word(&report[4..]));
                let step = usize::try_from(step).ok().and_then(|step| Step::ALL.get(step).copied());
                Some(Verdict::Failed(step.unwrap_or(Step::Execute), errno))
            }
            _ => Some(Verdict::Executed),
        }
    }
}

fn word(bytes: &[u8]) -> i32 {
    bytes.try_into().map_or(0, i32::from_ne_bytes)
}
