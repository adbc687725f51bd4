//! A mark that descendants cannot lose by accident.
//!
//! Environment markers end with `env -i`, process groups and sessions with `setsid`. Resource limits
//! are inherited through all of that, and one of them, `RLIMIT_LOCKS`, has had no effect since Linux
//! 2.6 and is set by no program. So each child of the guardian gets a number of its own as its soft
//! limit, which names the run and the child; `/proc/<pid>/limits` shows it for every process, also
//! one of another user. The hard limit is left alone: a Snakepit inside a Snakepit sets its own.
//!
//! Linux only; elsewhere no process has a lineage.

use crate::run_id::RunId;
use crate::table::{self, Columns};
use crate::{Error, Pid, os};

/// Bits of a mark that count the children of a run. The others hold the run id, which is below 2³⁷.
const CHILD_BITS: u32 = 26;

/// How many children of a run have lineages that differ.
pub const CHILDREN: u64 = 1 << CHILD_BITS;

/// The run and the child that a process descends from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lineage {
    /// The run.
    pub run_id: RunId,
    /// The guardian's number of the child, modulo 2²⁶.
    pub child: u32,
}

impl Lineage {
    /// The lineage of a guardian's child.
    pub fn new(run_id: RunId, child: u64) -> Self {
        let child = u32::try_from(child % CHILDREN).unwrap_or_default();
        Self { run_id, child }
    }

    /// Returns the soft limit that carries it.
    pub fn to_limit(self) -> u64 {
        (self.run_id.to_number() << CHILD_BITS) | u64::from(self.child)
    }

    /// Returns the lineage that a soft limit carries; `None` for most, "unlimited" among them.
    pub fn from_limit(limit: u64) -> Option<Self> {
        let child = u32::try_from(limit % CHILDREN).ok()?;
        Some(Self { run_id: RunId::from_number(limit >> CHILD_BITS)?, child })
    }

    /// `prlimit(2)`: the lineage of a process that is there.
    ///
    /// # Errors
    ///
    /// [`Error::Os`].
    pub fn of(pid: Pid) -> Result<Option<Self>, Error> {
        let limit = os::lock_limit(pid).map_err(Error::os("resource limits"))?;
        Ok(limit.and_then(Self::from_limit))
    }
}

/// How far up the parents of a process are looked at: farther than anyone nests.
const MOST_PARENTS: usize = 256;

/// Returns whether a process is that child of a guardian, or descends from it: by its lineage, or, as it may
/// have set one of its own, by its parents. One that is gone does not.
///
/// # Errors
///
/// [`Error::Os`].
pub fn descends(pid: Pid, child: Pid, lineage: Lineage) -> Result<bool, Error> {
    if pid == child || Lineage::of(pid)? == Some(lineage) {
        return Ok(true);
    }
    let mut next = Some(pid);
    for _ in 0..MOST_PARENTS {
        let Some(pid) = next else { return Ok(false) };
        let Some(entry) = table::read_one(pid, Columns::default())? else { return Ok(false) };
        next = Pid::new(entry.parent.into());
        if next == Some(child) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lineage_survives_the_trip_through_a_limit() {
        for id in [b"0000000", b"k3x9a2p", b"zzzzzzz"] {
            for child in [0, 1, (1 << 26) - 1] {
                let lineage = Lineage::new(RunId::from_bytes(id).unwrap(), child);
                assert_eq!(Lineage::from_limit(lineage.to_limit()), Some(lineage));
            }
        }
    }

    #[test]
    fn a_process_descends_from_its_parent_without_a_lineage_too() {
        let lineage = Lineage::new(RunId::from_bytes(b"k3x9a2p").unwrap(), 1);
        let parent = Pid::new(nix::unistd::getppid().as_raw().into()).unwrap();
        assert!(descends(Pid::current(), parent, lineage).unwrap());
        assert!(descends(Pid::current(), Pid::current(), lineage).unwrap());
        assert!(!descends(parent, Pid::current(), lineage).unwrap());
    }

    #[test]
    fn unlimited_is_no_lineage() {
        assert_eq!(Lineage::from_limit(u64::MAX), None);
        assert_eq!(Lineage::of(Pid::current()).unwrap(), None);
    }
}
