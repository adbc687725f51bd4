//! Who is of a tree, and what its processes use.

use rustler::{Binary, NifMap};
use snakepit_core::lineage::{self, Lineage};

use crate::Answer;
use crate::terms::{Bytes, IdentityTerm, Items, PidTerm};

#[derive(NifMap)]
struct ProcessUsageTerm {
    os_pid: i32,
    parent: i32,
    name: Bytes,
    arguments: Vec<Bytes>,
    alive: bool,
    user_us: u64,
    system_us: u64,
    threads: u64,
    rss_bytes: u64,
    pss_bytes: Option<u64>,
    descriptors: Option<u64>,
    io: Option<(u64, u64, u64, u64)>,
}

/// `Snakepit.Native.process_descends/4`: whether a process is a child of the guardian or descends from it. Reads
/// `/proc` if the process has no lineage.
#[rustler::nif(schedule = "DirtyIo")]
fn process_descends(os_pid: PidTerm, leader: PidTerm, run_id: Binary, child: u64) -> Answer<bool> {
    let lineage = Lineage::new(crate::parse_run_id(run_id)?, child);
    Ok(lineage::descends(os_pid.pid()?, leader.pid()?, lineage)?)
}

/// `Snakepit.Native.tree_usage/4`: of a child and other roots of its tree, with the start of each or 0. Reads
/// some files of `/proc` for each process.
#[cfg(target_os = "linux")]
#[rustler::nif(schedule = "DirtyIo")]
fn tree_usage(
    leader: IdentityTerm,
    roots: Items<(PidTerm, u64)>,
    proportional: bool,
    arguments: bool,
) -> Answer<Vec<ProcessUsageTerm>> {
    use snakepit_core::usage::{self, Details, Root};

    let leader = leader.identity()?;
    let root = |(pid, start): &(PidTerm, u64)| {
        let pid = pid.pid().ok()?;
        Some(Root { pid, start: if pid == leader.pid { leader.start } else { *start } })
    };
    let roots: Vec<Root> = roots.0.iter().filter_map(root).collect();
    let rows = usage::of_tree(&roots, Details { proportional, arguments });
    Ok(rows.into_iter().map(ProcessUsageTerm::from).collect())
}

/// There is no guardian, and so no tree.
#[cfg(not(target_os = "linux"))]
#[rustler::nif]
fn tree_usage(
    _leader: IdentityTerm,
    _roots: Items<(PidTerm, u64)>,
    _proportional: bool,
    _arguments: bool,
) -> Answer<Vec<ProcessUsageTerm>> {
    Ok(Vec::new())
}

#[cfg(target_os = "linux")]
impl From<snakepit_core::usage::ProcessUsage> for ProcessUsageTerm {
    fn from(row: snakepit_core::usage::ProcessUsage) -> Self {
        Self {
            os_pid: row.pid,
            parent: row.parent,
            name: Bytes(row.name),
            arguments: row.arguments.into_iter().map(Bytes).collect(),
            alive: row.alive,
            user_us: row.user_us,
            system_us: row.system_us,
            threads: row.threads,
            rss_bytes: row.rss_bytes,
            pss_bytes: row.pss_bytes,
            descriptors: row.descriptors,
            io: row.io.map(|io| (io.read, io.written, io.storage_read, io.storage_written)),
        }
    }
}
