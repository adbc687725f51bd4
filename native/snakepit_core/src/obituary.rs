//! What the guardian leaves in the run's directory when the BEAM died before it.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::run_directory::{NEW_OBITUARY, OBITUARY};
use crate::wire;

/// In [`Obituary::detected_by`]: it was written by whoever found what no guardian was left to end: a start, or the
/// command `reap`.
pub const BY_REAP: &str = "reap";

/// The end of a run, as its guardian saw it. Times are milliseconds since the epoch, for people;
/// durations are measured on the monotonic clock. What was added later is missing in what earlier guardians wrote,
/// and stands at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Obituary {
    /// The run.
    pub run_id: String,
    /// The BEAM that died.
    pub beam_pid: i64,
    /// When its death was noticed.
    pub detected_at: i64,
    /// How that was noticed: `port`, `pidfd` or `thread`; or [`BY_REAP`].
    pub detected_by: String,
    /// From then until nothing was left.
    pub duration_ms: u64,
    /// Each process that was there when the BEAM died, and each that the guardian has reaped since.
    pub processes: Vec<Ended>,
    /// Pids that are still there.
    pub survivors: Vec<i64>,
    /// What all processes have used that this guardian has waited for, while the BEAM lived too.
    #[serde(default)]
    pub used: Used,
}

/// What the kernel has counted for processes that have ended, and for those that they had waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Microseconds of processor time in user mode.
    pub user_us: u64,
    /// Microseconds of processor time in the kernel.
    pub system_us: u64,
    /// The most memory that one of them had, in kilobytes.
    pub max_rss_kb: u64,
}

impl Used {
    /// Adds a process that has ended.
    pub fn add(&mut self, exit: &wire::Exit) {
        self.user_us = self.user_us.saturating_add(exit.user_us);
        self.system_us = self.system_us.saturating_add(exit.system_us);
        self.max_rss_kb = self.max_rss_kb.max(exit.max_rss_kb);
    }
}

/// How one process ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// Its worker; empty for an adopted process of no known tree.
    pub worker_id: String,
    /// Its pid.
    pub pid: i64,
    /// Whether SIGTERM was not enough.
    pub killed: bool,
    /// From the death of the BEAM until it was gone; until all were, if its own parent has reaped it.
    pub after_ms: u64,
    /// What it has used; nothing, if its own parent has reaped it.
    #[serde(default)]
    pub used: Used,
}

/// `rename(2)` of a whole file into place. It is not synced: after a power loss nothing reads it, because no
/// process can have survived that.
///
/// # Errors
///
/// The error of `write(2)` or `rename(2)`.
pub fn write(directory: &Path, obituary: &Obituary) -> io::Result<()> {
    let temporary = directory.join(NEW_OBITUARY);
    fs::write(&temporary, wire::encode(obituary))?;
    fs::rename(temporary, directory.join(OBITUARY))
}

/// What somebody has ended of a dead run that had no guardian any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// The run.
    pub run_id: String,
    /// The BEAM that died.
    pub beam_pid: i64,
    /// When the run was heard of last, in milliseconds since the epoch.
    pub last_heard_at: i64,
    /// When this was done.
    pub reaped_at: i64,
    /// How long it took.
    pub duration_ms: u64,
    /// Worker, pid, and whether it had to be killed.
    pub processes: Vec<(String, i64, bool)>,
    /// Pids that are still there.
    pub survivors: Vec<i64>,
}

/// Adds to the obituary of a run what was reaped; it is the first one if its guardian had no time to write.
///
/// # Errors
///
/// As for [`write`].
pub fn add_reaped(directory: &Path, reaped: Reaped) -> io::Result<()> {
    let mut obituary = read(directory).unwrap_or_else(|| Obituary {
        run_id: reaped.run_id,
        beam_pid: reaped.beam_pid,
        detected_at: reaped.last_heard_at,
        detected_by: BY_REAP.into(),
        ..Obituary::default()
    });
    let after_ms = u64::try_from(reaped.reaped_at - obituary.detected_at).unwrap_or_default();
    let ended = reaped.processes.into_iter().map(|(worker_id, pid, killed)| {
        let used = Used::default();
        Ended { worker_id, pid, killed, after_ms, used }
    });
    obituary.processes.extend(ended);
    obituary.duration_ms = obituary.duration_ms.max(reaped.duration_ms);
    obituary.survivors = reaped.survivors;
    write(directory, &obituary)
}

/// Returns the obituary of a run; `None` if there is none that can be read.
pub fn read(directory: &Path) -> Option<Obituary> {
    wire::decode(&fs::read(directory.join(OBITUARY)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reaped_is_added_to_what_the_guardian_has_said() {
        let directory =
            std::env::temp_dir().join(format!("snakepit_obituary_{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let reaped = Reaped {
            run_id: "k3x9a2p".into(),
            beam_pid: 7,
            last_heard_at: 1000,
            reaped_at: 1500,
            duration_ms: 20,
            processes: vec![("w".into(), 8, true)],
            survivors: vec![9],
        };
        add_reaped(&directory, reaped.clone()).unwrap();
        let first = read(&directory).unwrap();
        assert_eq!((first.detected_by.as_str(), first.detected_at), (BY_REAP, 1000));
        assert_eq!((first.processes[0].after_ms, first.survivors), (500, vec![9]));

        let again = Reaped { processes: vec![("x".into(), 9, false)], survivors: vec![], ..reaped };
        write(&directory, &Obituary { detected_by: "port".into(), ..read(&directory).unwrap() })
            .unwrap();
        add_reaped(&directory, again).unwrap();
        let second = read(&directory).unwrap();
        assert_eq!(second.detected_by, "port");
        assert_eq!(second.processes.len(), 2);
        assert!(second.survivors.is_empty());
        fs::remove_dir_all(&directory).unwrap();
    }
}
