//! The end of everything: because somebody asked for it, or because the BEAM is gone.

use std::collections::{BTreeMap, HashSet};

use snakepit_core::obituary::{Ended, Obituary};
use snakepit_core::wire;

use crate::event::Time;
use crate::trees::{Death, Finished};

/// Every tree that there was is to end, and somebody waits for that. Those that come later are not its
/// business.
#[derive(Debug, Default)]
pub struct StopAll {
    left: HashSet<u64>,
    stopped: u64,
    killed: u64,
    /// Trees that were given up.
    given_up: HashSet<u64>,
}

impl StopAll {
    /// These are to end, too.
    pub fn add(&mut self, trees: impl IntoIterator<Item = u64>) {
        self.left.extend(trees);
    }

    /// A process has ended.
    pub fn note(&mut self, death: &Death) {
        if self.left.contains(&death.tree) {
            *if death.killed { &mut self.killed } else { &mut self.stopped } += 1;
        }
    }

    /// A tree is gone, or will not go.
    pub fn finish(&mut self, finished: &Finished) {
        if self.left.remove(&finished.id) && !finished.survivors.is_empty() {
            self.given_up.insert(finished.id);
        }
    }

    /// Whether all of them are gone, or will not go.
    pub fn is_over(&self) -> bool {
        self.left.is_empty()
    }

    /// What to tell those who wait. `survivors` are those of a tree that was given up.
    pub fn answer(&self, survivors: impl Fn(u64) -> Vec<i32>) -> wire::Event {
        let survivors = self.given_up.iter().flat_map(|id| survivors(*id)).map(i64::from).collect();
        wire::Event::AllGone { stopped: self.stopped, killed: self.killed, survivors }
    }
}

/// The BEAM is gone, and so is everything that it asked for, soon.
#[derive(Debug)]
pub struct Mourning {
    /// What gave it away.
    by: &'static str,
    detected_at: i64,
    /// When it was noticed.
    pub since: Time,
    ended: Vec<Ended>,
    /// Those that were there at first, below a child of the guardian, and their workers. If their own
    /// parent reaps them, nobody else sees their end.
    below: BTreeMap<i32, String>,
}

impl Mourning {
    /// From now on.
    pub fn new(now: Time, by: &'static str, detected_at: i64) -> Self {
        Self { by, detected_at, since: now, ended: Vec::new(), below: BTreeMap::new() }
    }

    /// These are there, below a child.
    pub fn count(&mut self, worker_id: &str, below: impl Iterator<Item = i32>) {
        self.below.extend(below.map(|pid| (pid, worker_id.to_owned())));
    }

    /// A process has ended.
    pub fn note(&mut self, now: Time, pid: i32, death: &Death) {
        let after_ms = milliseconds(now.saturating_sub(self.since));
        let worker_id = death.worker_id.clone();
        self.below.remove(&pid);
        self.ended.push(Ended { worker_id, pid: pid.into(), killed: death.killed, after_ms });
    }

    /// What is to be written when nothing is left but these.
    pub fn obituary(
        self,
        now: Time,
        run_id: String,
        beam_pid: i64,
        survivors: Vec<i64>,
    ) -> Obituary {
        let duration_ms = milliseconds(now.saturating_sub(self.since));
        let mut processes = self.ended;
        // With no survivor nothing is below one.
        if survivors.is_empty() {
            processes.extend(self.below.into_iter().map(|(pid, worker_id)| Ended {
                worker_id,
                pid: pid.into(),
                killed: false,
                after_ms: duration_ms,
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
        }
    }
}

fn milliseconds(duration: Time) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}
