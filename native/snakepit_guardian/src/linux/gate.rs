//! From the gate to the program: releases, and what comes of them.

use std::os::fd::AsFd;
use std::time::Instant;

use snakepit_core::wire::{Event, Step};
use tracing::warn;

use super::children::{State, Verdict};
use super::guardian::{GATE, Guardian, add};
use super::trees::PERIOD;

impl Guardian {
    /// Opens the gate; the child says through it how that went.
    pub(crate) fn release(&mut self, id: u64) {
        let Some(mut child) = self.children.get_mut(id) else { return };
        match child.state {
            State::Assigned(_) => {}
            // Being ended, and whoever asks has not heard of it yet.
            State::Discarded => {
                let (step, errno) = (Step::Fork, libc::ESRCH);
                self.frames.send(&Event::Failed { id, step, errno });
                return;
            }
            _ => {
                warn!(id, "asked to release a child that does not wait for it");
                return;
            }
        }
        // Order: watched before it may say something. Unwatched it would run, and nobody be told.
        let watched = match &child.gate {
            Some(gate) => add(&self.epoll, gate.as_fd(), GATE | id),
            None => Ok(()),
        };
        let result = watched.and_then(|()| child.release());
        drop(child);
        if let Err(errno) = result {
            self.fail(id, Step::Descriptors, errno as i32);
        }
    }

    /// The child is told to go and the BEAM that it did not run.
    pub(crate) fn fail(&mut self, id: u64, step: Step, errno: i32) {
        if let Some(mut child) = self.children.get_mut(id) {
            child.discard();
            child.tail = None;
        }
        self.frames.send(&Event::Failed { id, step, errno });
    }

    /// What a released child says: nothing yet, that its program runs, or why it does not.
    pub(crate) fn hear_gate(&mut self, id: u64) {
        let verdict = match self.children.get(id) {
            Some(child) if matches!(child.state, State::Released) => child.verdict(),
            _ => return,
        };
        match verdict {
            Verdict::Pending => {}
            Verdict::Executed => self.executed(id),
            Verdict::Failed(step, errno) => self.fail(id, step, errno),
        }
    }

    /// The last that a child says through its gate, which has ended. That it has executed its program
    /// shows in the end of the gate, and not even then: a sibling that was forked a moment ago, and has
    /// not had a processor since, holds a copy of it. But who could not execute has said so.
    pub(crate) fn hear_last(&mut self, id: u64) {
        self.hear_gate(id);
        if self.children.get(id).is_some_and(|child| matches!(child.state, State::Released)) {
            self.executed(id);
        }
    }

    fn executed(&mut self, id: u64) {
        if let Some(mut child) = self.children.get_mut(id) {
            child.gate = None;
            child.state = State::Running;
        }
        self.frames.send(&Event::Started { id });
        self.trees.look_within(Instant::now() + PERIOD);
    }
}
