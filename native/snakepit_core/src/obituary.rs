//! What the guardian leaves in the run's directory when the BEAM died before it.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::run_directory::{NEW_OBITUARY, OBITUARY};
use crate::wire;

/// In [`Obituary::detected_by`]: it was written by the command `reap`, which found what no guardian was left to end.
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

/// Returns the obituary of a run; `None` if there is none that can be read.
pub fn read(directory: &Path) -> Option<Obituary> {
    wire::decode(&fs::read(directory.join(OBITUARY)).ok()?)
}
