//! What the guardian holds for one child: its end of the gate, what goes through it, and the output.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use snakepit_guardian::event::ExecResult;

use super::gate::{self, Payload};
use super::tail::Tail;

/// What belongs to one child.
pub struct ChildResources {
    /// The guardian's end of the gate, until the program runs.
    pub gate: Option<OwnedFd>,
    pub payload: Option<Box<Payload>>,
    pub tail: Option<Tail>,
}

impl ChildResources {
    pub fn new(gate: OwnedFd) -> Self {
        Self { gate: Some(gate), payload: None, tail: None }
    }

    /// Opens the gate, with what was packed.
    pub fn release(&mut self) -> Result<(), Errno> {
        let payload = self.payload.take().ok_or(Errno::EINVAL)?;
        let gate = self.gate.as_ref().ok_or(Errno::EPIPE)?;
        gate::open(gate, &payload)
    }

    /// Returns what the released child has reported; `None` if it has not yet.
    pub fn exec_result(&self) -> Option<ExecResult> {
        match &self.gate {
            Some(gate) => gate::exec_result(gate),
            None => Some(ExecResult::Executed),
        }
    }
}
