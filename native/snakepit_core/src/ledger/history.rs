//! What is kept of a run that has ended: the sealed file `history`, which `Snakepit.Ledger.History` writes.

use std::path::Path;

use crate::external_term::Term;
use crate::ledger::seal;
use crate::obituary::Used;
use crate::{Error, private_file};

/// Many times what a run's record takes.
const MAX_BYTES: u64 = 1024 * 1024;

/// A run that was closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosedRun {
    /// Its place in the order in which runs were closed.
    pub sequence: i64,
    /// Who has ended its processes: `clean_shutdown`, `guardian`, `cleanup`, `reboot` or `elsewhere`.
    pub terminated_by: String,
    /// Whether its application had stopped in order.
    pub clean_shutdown: bool,
    /// The pid of its BEAM.
    pub beam_pid: Option<i64>,
    /// Its Erlang node.
    pub node: Option<String>,
    /// When it began, in milliseconds since the epoch.
    pub started_at: Option<i64>,
    /// When it ended.
    pub ended_at: Option<i64>,
    /// How many processes were found when it was over.
    pub found: i64,
    /// How many of them had to be killed.
    pub killed: i64,
    /// How many were gone.
    pub gone: i64,
    /// How many were left alone, because they may be others.
    pub ambiguous: i64,
    /// What its processes have used, if its guardian has counted it.
    pub used: Option<Used>,
}

impl ClosedRun {
    /// Reads the file `history` in the directory of a run; `None` for one that is damaged.
    ///
    /// # Errors
    ///
    /// As for [`private_file::read`].
    pub fn read(directory: &Path) -> Result<Option<Self>, Error> {
        let bytes = private_file::read(&directory.join("history"), MAX_BYTES)?;
        Ok(Self::parse(&bytes))
    }

    /// Returns what is in the bytes of such a file. What a later version has added is left out.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let term = seal::open(bytes)?;
        let integer = |key: &str| term.get(key).and_then(Term::integer);
        let count = |key: &str| integer(key).unwrap_or_default();
        let is_true = |key: &str| term.get(key).and_then(Term::atom) == Some("true");
        Some(Self {
            sequence: integer("sequence")?,
            terminated_by: term.get("terminated_by")?.atom()?.to_owned(),
            clean_shutdown: is_true("clean_shutdown"),
            beam_pid: integer("beam_pid"),
            node: term.get("node").and_then(Term::text).map(str::to_owned),
            started_at: integer("started_at"),
            ended_at: integer("ended_at"),
            found: count("found"),
            killed: count("killed"),
            gone: count("gone"),
            ambiguous: count("ambiguous"),
            used: term.get("usage").and_then(used),
        })
    }
}

fn used(term: &Term) -> Option<Used> {
    let number = |key| u64::try_from(term.get(key)?.integer()?).ok();
    Some(Used {
        user_us: number("user_us")?,
        system_us: number("system_us")?,
        max_rss_kb: number("max_rss_kb")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_of_earlier_versions_is_read_and_a_changed_byte_makes_it_none() {
        for run in ["layout-0/bmd45fw", "layout-1/94mgc37"] {
            let directory =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/fixtures/ledgers");
            let bytes = std::fs::read(directory.join(run).join("history")).unwrap();
            let closed = ClosedRun::parse(&bytes).unwrap();
            assert_eq!(closed.terminated_by, "clean_shutdown", "{run}");
            assert!(closed.clean_shutdown && closed.started_at < closed.ended_at);
            for index in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[index] ^= 1;
                assert_eq!(ClosedRun::parse(&damaged), None, "byte {index}");
            }
        }
    }
}
