//! The gate: a socket pair between the guardian and a child that has not executed its program yet. Both ends
//! of its protocol are here.
//!
//! ```text
//!  guardian                                          child
//!     │                                                 │ receive: blocks
//!     │── opening, image, descriptors ─────────────────▶│
//!     │   open                                          │ load_image, set up, execve
//!     │◀── step and errno, or nothing: end of file ─────│ fail, or `execve` closes its end
//!     │   exec_result                                   │
//! ```
//!
//! A child whose gate closes instead of opening exits: it has run nothing. The child's half allocates nothing,
//! takes no lock, and calls nothing of Rust's runtime; see `child`.

// Numbers cross between Rust's types and the kernel's here; each is small.
#![allow(clippy::cast_possible_truncation)]

use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, recv, sendmsg,
    socketpair,
};
use snakepit_core::wire::Step;
use snakepit_guardian::event::ExecResult;

use super::image::{Header, Image};

/// Room for an image that comes through the gate, on the child's stack. A larger one is a file.
pub const ROOM: usize = 8192;
/// The most descriptors that travel with the opening of the gate: three streams, lifeline, image.
pub const MAX_DESCRIPTORS: usize = 5;

/// The head of what comes through the gate when it opens. Behind it come the first `sent` bytes of the
/// image, which are all or none: if none, the last descriptor is a file that holds it.
#[derive(Clone, Copy)]
struct Opening {
    /// Of the image.
    length: usize,
    sent: usize,
}

impl Opening {
    fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        let (length, sent) = bytes.split_at_mut(size_of::<usize>());
        length.copy_from_slice(&self.length.to_ne_bytes());
        sent.copy_from_slice(&self.sent.to_ne_bytes());
        bytes
    }
}

/// What goes through the gate: the image, and the descriptors that the child keeps.
pub struct Payload {
    pub image: Image,
    /// One may stand for several streams, or be every child's.
    pub streams: Vec<Rc<OwnedFd>>,
}

/// `socketpair(2)`: the guardian's end and the child's.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)
}

/// The guardian's `sendmsg(2)` that opens the gate. What it sends is the child's from here on.
pub fn open(gate: &OwnedFd, payload: &Payload) -> Result<(), Errno> {
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

/// The guardian's `recv(2)` of what a released child has reported; `None` if it has not yet.
pub fn exec_result(gate: &OwnedFd) -> Option<ExecResult> {
    let mut report = [0; 8];
    match recv(gate.as_raw_fd(), &mut report, MsgFlags::MSG_DONTWAIT) {
        Err(Errno::EAGAIN | Errno::EINTR) => None,
        Ok(8) => {
            let (step, errno) = (word(&report[..4]), word(&report[4..]));
            let step = usize::try_from(step).ok().and_then(|step| Step::ALL.get(step).copied());
            Some(ExecResult::Failed(step.unwrap_or(Step::Execute), errno))
        }
        _ => Some(ExecResult::Executed),
    }
}

fn word(bytes: &[u8]) -> i32 {
    bytes.try_into().map_or(0, i32::from_ne_bytes)
}

/// What came through the gate: descriptors, how much there is of the image, and how much of it is
/// in the child's room already.
pub struct Received {
    pub fds: [RawFd; MAX_DESCRIPTORS],
    count: usize,
    opening: Opening,
    here: usize,
}

/// The child's `recvmsg(2)`: blocks until the gate opens, and exits if it closes. As much of the image as
/// there is room for comes along.
///
/// # Safety
///
/// Only in a child between `fork` and `execve`.
pub unsafe fn receive(gate: RawFd, room: &mut [u64]) -> Received {
    let mut fds = [-1; MAX_DESCRIPTORS];
    // As `to_bytes` lays it out.
    let mut opening = [0_usize; 2];
    let size = size_of_val(&opening);
    // Room for the descriptors and their header, aligned as the kernel wants it.
    let mut control = [0_u64; 8];
    let mut parts = [
        libc::iovec { iov_base: opening.as_mut_ptr().cast(), iov_len: size },
        libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: size_of_val(room) },
    ];
    // SAFETY: `message` points to locals that live as long as the call; what is read back was
    // written by the kernel.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let received = loop {
            let received = libc::recvmsg(gate, &raw mut message, libc::MSG_CMSG_CLOEXEC);
            if received >= 0 || *libc::__errno_location() != libc::EINTR {
                break received;
            }
        };
        let control = libc::CMSG_FIRSTHDR(&raw const message);
        let here = usize::try_from(received).ok().and_then(|received| received.checked_sub(size));
        let Some(here) = here.filter(|_| !control.is_null()) else { libc::_exit(0) };
        let bytes =
            (*control).cmsg_len as usize - (libc::CMSG_DATA(control) as usize - control as usize);
        let count = (bytes / size_of::<RawFd>()).min(MAX_DESCRIPTORS);
        std::ptr::copy_nonoverlapping(libc::CMSG_DATA(control).cast(), fds.as_mut_ptr(), count);
        let opening = Opening { length: opening[0], sent: opening[1] };
        Received { fds, count, opening, here }
    }
}

/// The child's `read(2)` of the rest of the image into the room that there is, or `mmap(2)` of the file that
/// holds it.
///
/// # Safety
///
/// As for [`receive`], with what that has returned.
pub unsafe fn load_image(gate: RawFd, received: &Received, room: &mut [u64]) -> *const Header {
    let Received { fds, count, opening, here } = received;
    // SAFETY: a new mapping; into the room, no more is read than fits.
    unsafe {
        if opening.sent == 0 {
            let image = libc::mmap(
                std::ptr::null_mut(),
                opening.length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE,
                fds[count - 1],
                0,
            );
            if image == libc::MAP_FAILED {
                fail(gate, Step::Descriptors);
            }
            return image.cast();
        }
        let image = room.as_mut_ptr().cast::<u8>();
        let mut done = *here;
        while done < opening.sent.min(size_of_val(room)) {
            let count = libc::read(gate, image.add(done).cast(), opening.sent - done);
            match usize::try_from(count) {
                // Closed in the midst of it: the guardian is gone.
                Ok(0) => libc::_exit(0),
                Ok(count) => done += count,
                Err(_) if *libc::__errno_location() == libc::EINTR => {}
                Err(_) => fail(gate, Step::Descriptors),
            }
        }
        image.cast()
    }
}

/// Fails, if a system call of the child has returned an error.
///
/// # Safety
///
/// As for [`receive`].
pub unsafe fn check(gate: RawFd, step: Step, result: libc::c_int) {
    if result < 0 {
        // SAFETY: never returns.
        unsafe { fail(gate, step) }
    }
}

/// As [`fail_with`], with this thread's errno.
///
/// # Safety
///
/// As for [`receive`].
pub unsafe fn fail(gate: RawFd, step: Step) -> ! {
    // SAFETY: errno is this thread's own.
    unsafe { fail_with(gate, step, *libc::__errno_location()) }
}

/// The child's `write(2)` of the step that failed and why, and its `_exit(2)`.
///
/// # Safety
///
/// As for [`receive`].
pub unsafe fn fail_with(gate: RawFd, step: Step, errno: libc::c_int) -> ! {
    let report = [step as i32, errno];
    // SAFETY: writes a local. Should it fail, the guardian sees an exit status of 127.
    unsafe {
        libc::write(gate, report.as_ptr().cast(), size_of_val(&report));
        libc::_exit(127)
    }
}
