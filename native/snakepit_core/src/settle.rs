//! The first clock tick of a process, on kernels without handles.
//!
//! There a process is known by its pid and start time, and start times are ticks of 10 ms. An identity
//! that is taken within the first tick fits a successor with the same pid too. A process that still
//! holds its pid when the tick is over has no such successor any more: its identity is *settled*. So
//! a caller that may wait holds the process for the rest of its tick before it hands out its identity.

use std::time::{Duration, Instant};

use crate::{Identity, Process, os};

/// Longer than any tick. Only where the clock cannot be read does nothing ever settle.
const LIMIT: Duration = Duration::from_millis(50);
/// How often to read the clock.
const PAUSE: Duration = Duration::from_millis(1);
/// How many to hold at a time: descriptors may be scarce. Further ones cost another wait, though seldom,
/// since the tick of those that were started meanwhile is over with it too.
const HELD: usize = 16;

/// Sleeps until no process can get this start time any more.
pub(crate) fn wait_for_tick(start: u64) {
    let deadline = Instant::now() + LIMIT;
    while !os::start_is_past(start) && Instant::now() < deadline {
        std::thread::sleep(PAUSE);
    }
}

/// Processes that are found one after the other, and what was found with each. All that are in their
/// first tick are held and share one wait.
pub(crate) struct Settling<T> {
    known: Vec<(Known, T)>,
    held: usize,
}

enum Known {
    Settled(Identity),
    Unsettled(Process),
    Gone,
}

impl<T> Settling<T> {
    pub(crate) fn new() -> Self {
        Self { known: Vec::new(), held: 0 }
    }

    pub(crate) fn add(&mut self, process: Process, with: T) {
        let known = match process.settled_identity() {
            Some(identity) => Known::Settled(identity),
            None => Known::Unsettled(process),
        };
        self.held += usize::from(matches!(known, Known::Unsettled(_)));
        self.known.push((known, with));
        if self.held >= HELD {
            self.settle();
        }
    }

    fn settle(&mut self) {
        let start = |one: &(Known, T)| match &one.0 {
            Known::Unsettled(process) => Some(process.identity().start),
            _ => None,
        };
        if let Some(latest) = self.known.iter().filter_map(start).max() {
            wait_for_tick(latest);
        }
        for (known, _) in &mut self.known {
            if let Known::Unsettled(process) = known {
                *known = process.settled_identity().map_or(Known::Gone, Known::Settled);
            }
        }
        self.held = 0;
    }

    /// Returns all in the order in which they were found, without those that are gone by now.
    pub(crate) fn finish(mut self) -> Vec<(Identity, T)> {
        self.settle();
        let settled = |(known, with)| match known {
            Known::Settled(identity) => Some((identity, with)),
            Known::Unsettled(_) | Known::Gone => None,
        };
        self.known.into_iter().filter_map(settled).collect()
    }
}

impl Settling<()> {
    /// As [`Settling::finish`], of those with which nothing was found.
    pub(crate) fn identities(self) -> Vec<Identity> {
        self.finish().into_iter().map(|(identity, ())| identity).collect()
    }
}
