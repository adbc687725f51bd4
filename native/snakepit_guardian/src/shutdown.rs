//! The end of all trees: because the BEAM asked for it, or because the BEAM is gone.

use std::collections::{BTreeMap, HashSet};

use snakepit_core::obituary::{Ended, Obituary, Used};
use snakepit_core::wire;

use crate::event::Time;
use crate::trees::{Death, Finished};

/// A `StopAll` of the BEAM: every tree that there was is to end. Those that come later are not its concern.
#[derive(Debug, Default)]
pub struct StopAll {
    left: HashSet<u64>,
    stopped: u64,
    killed: u64,
    /// Trees that were given up.
    given_up: HashSet<u64>,
}

impl StopAll {
    /// Adds trees that are to end.
    pub fn add(&mut self, trees: impl IntoIterator<Item = u64>) {
        self.left.extend(trees);
    }

    /// Counts a process that has ended.
    pub fn record_death(&mut self, death: &Death) {
        if self.left.contains(&death.tree) {
            *if death.killed { &mut self.killed } else { &mut self.stopped } += 1;
        }
    }

    /// Records a tree that is gone, or was given up.
    pub fn finish(&mut self, finished: &Finished) {
        if self.left.remove(&finished.id) && !finished.survivors.is_empty() {
            self.given_up.insert(finished.id);
        }
    }

    /// Returns whether all of them are gone, or were given up.
    pub fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// Returns the answer for the BEAM. `survivors` returns those of a tree that was given up.
    pub fn answer(&self, survivors: impl Fn(u64) -> Vec<i32>) -> wire::Event {
        let survivors = self.given_up.iter().flat_map(|id| survivors(*id)).map(i64::from).collect();
        wire::Event::AllGone { stopped: self.stopped, killed: self.killed, survivors }
    }
}

/// The BEAM is gone: everything ends, and the obituary says how.
#[derive(Debug)]
pub struct Shutdown {
    /// How it was noticed.
    by: &'static str,
    detected_at: i64,
    /// When it was noticed.
    pub since: Time,
    ended: Vec<Ended>,
    /// Processes that were there at first, below a child of the guardian, with their workers. If their own
    /// parent reaps them, the guardian does not see their end.
    descendants: BTreeMap<i32, String>,
}

impl Shutdown {
    /// Begins now.
    pub fn new(now: Time, by: &'static str, detected_at: i64) -> Self {
        Self { by, detected_at, since: now, ended: Vec::new(), descendants: BTreeMap::new() }
    }

    /// Records processes below a child of the guardian.
    pub fn add_descendants(&mut self, worker_id: &str, pids: impl Iterator<Item = i32>) {
        self.descendants.extend(pids.map(|pid| (pid, worker_id.to_owned())));
    }

    /// Records a process that has ended.
    pub fn record_death(&mut self, now: Time, pid: i32, death: &Death, used: Used) {
        let after_ms = milliseconds(now.saturating_sub(self.since));
        let worker_id = death.worker_id.clone();
        self.descendants.remove(&pid);
        self.ended.push(Ended { worker_id, pid: pid.into(), killed: death.killed, after_ms, used });
    }

    /// Returns what is to be written when nothing is left but these.
    pub fn obituary(
        self,
        now: Time,
        run_id: String,
        beam_pid: i64,
        survivors: Vec<i64>,
        used: Used,
    ) -> Obituary {
        let duration_ms = milliseconds(now.saturating_sub(self.since));
        let mut processes = self.ended;
        // With no survivor nothing is below one.
        if survivors.is_empty() {
            processes.extend(self.descendants.into_iter().map(|(pid, worker_id)| Ended {
                worker_id,
                pid: pid.into(),
                killed: false,
                after_ms: duration_ms,
                used: Used::default(),
            }));
        }
        Obituary {
            run_id,
            beam_pid,
            detected_at: self.detected_at,
            detected_by: self.by.to_owned(),
            duration_ms,
            processes,
            survivors,
            used,
        }
    }
}

fn milliseconds(duration: Time) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
