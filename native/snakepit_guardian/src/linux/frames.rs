//! Frames to and from the BEAM's port: four bytes of length, then the message.
//!
//! Neither direction ever blocks. What the BEAM does not read at once is queued here, so a BEAM that is
//! stopped or busy does not keep the guardian from reaping.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::unistd::{read, write};
use serde_bytes::ByteBuf;
use snakepit_core::wire::{self, Event, MAX_FRAME, MAX_SKIPPED, Request};
use tracing::error;

/// How much is read at a time, and how much memory is kept for the next time.
const CHUNK: usize = 16_384;

/// How many bytes may wait for a BEAM that does not read before log lines are dropped, and before the output
/// of ended children is. All else is bounded by how many children there are.
const MAX_WITH_LOG: usize = 256 * 1024;
const MAX_WITH_OUTPUT: usize = 4 * 1024 * 1024;

/// The guardian's side of the port.
pub struct Frames {
    pub input: OwnedFd,
    pub output: OwnedFd,
    incoming: Vec<u8>,
    /// Whether there has been a message.
    greeted: bool,
    /// How much of a frame that is too long is still to come.
    skip: usize,
    outgoing: VecDeque<u8>,
}

/// What a read returned.
pub enum Incoming {
    /// These, in order; more may follow.
    Requests(Vec<Request>),
    /// The BEAM has closed its end.
    Closed,
    /// Something that is no frame. What follows it cannot be understood either.
    Garbage(&'static str),
}

impl Frames {
    pub fn new(input: OwnedFd, output: OwnedFd) -> Self {
        Self {
            input,
            output,
            incoming: Vec::new(),
            greeted: false,
            skip: 0,
            outgoing: VecDeque::new(),
        }
    }

    /// `read(2)`, once; returns the requests that are complete.
    pub fn receive(&mut self) -> Incoming {
        let mut chunk = [0; CHUNK];
        match read(&self.input, &mut chunk) {
            Ok(0) => return Incoming::Closed,
            Ok(count) => {
                let skipped = count.min(self.skip);
                self.skip -= skipped;
                self.incoming.extend_from_slice(&chunk[skipped..count]);
            }
            Err(Errno::EAGAIN | Errno::EINTR) => return Incoming::Requests(Vec::new()),
            Err(_) => return Incoming::Closed,
        }
        let mut requests = Vec::new();
        let mut start = 0;
        while let Some((length, rest)) = self.incoming[start..].split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            if length > MAX_SKIPPED || (length > MAX_FRAME && !self.greeted) {
                return Incoming::Garbage("a frame is longer than any message");
            }
            if length > MAX_FRAME {
                // The BEAM refuses such a request where it is made, so no caller waits for an answer.
                error!(length, "skipped a frame of the BEAM's that is longer than any message");
                let here = rest.len().min(length);
                self.skip = length - here;
                start += 4 + here;
                continue;
            }
            let Some(frame) = rest.get(..length) else { break };
            match wire::decode(frame) {
                Some(request) => {
                    self.greeted = true;
                    requests.push(request);
                }
                None => return Incoming::Garbage("a frame is not a message"),
            }
            start += 4 + length;
        }
        self.incoming.drain(..start);
        if self.incoming.is_empty() {
            // The memory that a large frame needed is freed.
            self.incoming.shrink_to(CHUNK);
        }
        Incoming::Requests(requests)
    }

    /// Queues an event; less of it, or nothing, if the BEAM has not read for long.
    pub fn send(&mut self, event: &Event) {
        let waiting = self.outgoing.len();
        let message = match event {
            Event::Log { .. } if waiting > MAX_WITH_LOG => return,
            Event::Exited { id, exit, .. } if waiting > MAX_WITH_OUTPUT => {
                wire::encode(&Event::Exited { id: *id, exit: exit.clone(), tail: ByteBuf::new() })
            }
            event => wire::encode(event),
        };
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        self.outgoing.extend(length.to_be_bytes());
        self.outgoing.extend(message);
    }

    /// `write(2)` of what the BEAM takes. Returns whether something is left.
    pub fn flush(&mut self) -> bool {
        while !self.outgoing.is_empty() {
            let (front, _) = self.outgoing.as_slices();
            match write(&self.output, front) {
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return true,
                // The BEAM is gone; its end of input says so too.
                Err(_) => self.outgoing.clear(),
            }
        }
        self.outgoing.shrink_to(CHUNK);
        false
    }
}
