//! What descends from the children: who has lost its parent, whose it is, and when it is gone.
//!
//! The guardian is a subreaper, so whoever loses its parent becomes its child. A child that it did
//! not fork is *adopted*. Whose it is says the lineage that it inherited, which neither `setsid` nor
//! an emptied environment removes, and failing that its markers, session or group.
//!
//! A look is one pass over the process table. Looks are taken when a child has ended, while
//! something is being killed, and once a second to note what was adopted; never more often than lets
//! the guardian do other things most of the time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use snakepit_core::adopted;
use snakepit_core::lineage::Lineage;
use snakepit_core::table::{self, Columns, Entry, Environment};
use snakepit_core::tree::{self, Roots};
use snakepit_core::wire::Event;
use snakepit_core::{Identity, Pid, Process};
use tracing::{debug, info, warn};

use super::guardian::Guardian;

/// How often to look for adopted processes while children run.
pub const PERIOD: Duration = Duration::from_secs(1);
/// How often to look while something is being killed.
const CHASE: Duration = Duration::from_millis(10);
/// How long one attempt to kill may keep the loop from everything else.
const PATIENCE: Duration = Duration::from_millis(40);
/// How long a killed tree may take to vanish before it is reported as surviving.
const GIVE_UP: Duration = Duration::from_secs(15);
/// How long the file of adopted processes may get before it is looked through: some hundred notes.
const NOTES_LIMIT: u64 = 16 * 1024;

/// A process that became the guardian's child.
struct Adopted {
    start: u64,
    identity: Identity,
    /// The child whose descendant it is.
    owner: Option<Lineage>,
}

/// A child that has been reaped while its tree may go on.
struct Lingering {
    pid: i32,
    since: Instant,
    killed: usize,
    /// How many times its tree was found alive.
    attempts: u32,
}

#[derive(Default)]
pub struct Trees {
    adopted: HashMap<i32, Adopted>,
    lingering: HashMap<u64, Lingering>,
    look_at: Option<Instant>,
    last_look: Option<(Instant, Duration)>,
    /// How long the file of adopted processes was when it was last looked through.
    noted: u64,
}

impl Trees {
    /// A child has been reaped: what is left of its tree is to be ended.
    pub fn linger(&mut self, id: u64, pid: i32) {
        self.lingering.insert(id, Lingering { pid, since: Instant::now(), killed: 0, attempts: 0 });
        self.look_soon();
    }

    pub fn forget(&mut self, pid: i32) {
        self.adopted.remove(&pid);
        if !self.lingering.is_empty() {
            self.look_soon();
        }
    }

    /// The guardian has no child at all, so there is no descendant either.
    pub fn nobody_left(&mut self) {
        self.adopted.clear();
    }

    pub fn adopted(&self) -> usize {
        self.adopted.len()
    }

    pub fn is_quiet(&self) -> bool {
        self.adopted.is_empty() && self.lingering.is_empty()
    }

    pub fn lingers(&self, id: u64) -> bool {
        self.lingering.contains_key(&id)
    }

    pub fn next_look(&self) -> Option<Instant> {
        self.look_at
    }

    /// As soon as looking leaves four fifths of the time for everything else.
    pub fn look_soon(&mut self) {
        let earliest = self.last_look.map_or_else(Instant::now, |(then, cost)| then + 5 * cost);
        self.look_within(earliest);
    }

    pub fn look_within(&mut self, at: Instant) {
        self.look_at = Some(self.look_at.map_or(at, |look_at| look_at.min(at)));
    }

    /// Only for those that have no lineage: a child keeps its session and group numbers reserved.
    fn owner_by_session(&self, entry: &Entry) -> Option<u64> {
        let of = |pid: i32| entry.session == pid || entry.group == pid;
        self.lingering.iter().find(|(_, one)| of(one.pid)).map(|(id, _)| *id)
    }
}

impl Guardian {
    /// One pass over the process table, and what follows from it.
    pub(crate) fn look(&mut self) {
        let begun = Instant::now();
        self.trees.look_at = None;
        match table::read(Columns::default()) {
            Ok(table) => self.update_adopted(&table),
            Err(error) => warn!("cannot read the process table: {error}"),
        }
        self.end_lingering_trees();
        self.kill_overdue();
        let cost = begun.elapsed();
        self.trees.last_look = Some((Instant::now(), cost));
        if !self.trees.lingering.is_empty() || self.is_chasing() {
            self.trees.look_within(Instant::now() + CHASE);
        } else if self.children.counts().out > 0 || !self.trees.adopted.is_empty() {
            self.trees.look_within(Instant::now() + PERIOD.max(20 * cost));
        }
    }

    fn update_adopted(&mut self, table: &[Entry]) {
        let own = Pid::current().as_raw();
        let is_adopted = |entry: &&Entry| {
            entry.parent == own
                && entry.is_alive()
                && self.children.id_of(entry.pid.as_raw()).is_none()
        };
        let now: HashMap<i32, &Entry> =
            table.iter().filter(is_adopted).map(|entry| (entry.pid.as_raw(), entry)).collect();
        self.trees
            .adopted
            .retain(|pid, one| now.get(pid).is_some_and(|entry| entry.start == one.start));
        for (pid, entry) in now {
            if self.trees.adopted.contains_key(&pid) {
                continue;
            }
            let Ok(Some(process)) = Process::open(entry.pid) else { continue };
            let owner = self.owner_of(entry);
            let identity = process.identity().clone();
            info!(pid, child = owner.map(|owner| owner.child), "adopted");
            self.note_adopted(&identity);
            self.trees.adopted.insert(pid, Adopted { start: entry.start, identity, owner });
        }
    }

    fn owner_of(&self, entry: &Entry) -> Option<Lineage> {
        let by_lineage = Lineage::of(entry.pid).ok().flatten();
        if let Some(lineage) = by_lineage.filter(|lineage| lineage.run_id == self.run_id) {
            return Some(lineage);
        }
        let by_marker = || {
            let columns = Columns { markers: true, ..Columns::default() };
            let entry = table::read_one(entry.pid, columns).ok().flatten()?;
            let Environment::Read(markers) = entry.environment else { return None };
            let worker = markers.worker_id.filter(|_| markers.run_id == Some(self.run_id))?;
            let mut children = self.children.iter();
            children.find(|(_, child)| child.worker_id.as_bytes() == worker).map(|(id, _)| id)
        };
        let id = by_marker().or_else(|| self.trees.owner_by_session(entry))?;
        Some(Lineage::new(self.run_id, id))
    }

    /// Within a second of its adoption, so that the next start can end it if this guardian and its
    /// BEAM should die together.
    fn note_adopted(&mut self, identity: &Identity) {
        let directory = self.run_directory();
        match adopted::append(&directory, identity) {
            Ok(length) if length > 2 * self.trees.noted + NOTES_LIMIT => {
                // Tried again when it is twice as long, whatever comes of it: a file that is too long is
                // better than a guardian that does nothing else.
                self.trees.noted = adopted::compact(&directory).unwrap_or(length);
            }
            Ok(_) => {}
            Err(error) => warn!("cannot note an adopted process: {error}"),
        }
    }

    /// Ends what is left of trees whose leader is gone, and says so once nothing is.
    fn end_lingering_trees(&mut self) {
        let ids: Vec<u64> = self.trees.lingering.keys().copied().collect();
        for id in ids {
            let left = self.adopted_of(id);
            let Some(lingering) = self.trees.lingering.get_mut(&id) else { continue };
            if left.is_empty() || lingering.since.elapsed() > GIVE_UP {
                let killed = lingering.killed as u64;
                let survivors = left.iter().map(|one| one.pid.as_raw().into()).collect();
                self.trees.lingering.remove(&id);
                self.frames.send(&Event::TreeGone { id, killed, survivors });
                continue;
            }
            lingering.attempts += 1;
            let attempts = lingering.attempts;
            let killed = self.kill_tree(id, Vec::new(), attempts);
            if let Some(lingering) = self.trees.lingering.get_mut(&id) {
                lingering.killed += killed;
            }
        }
    }

    /// Kills what descends from a child: the given processes, what was adopted of it so far, and what
    /// is adopted while this goes on. Gives how many.
    pub(crate) fn kill_tree(&self, id: u64, roots: Vec<Identity>, attempts: u32) -> usize {
        let own = Pid::current().as_raw();
        let lineage = Some(Lineage::new(self.run_id, id));
        let select = |entry: &Entry| {
            entry.parent == own
                && self.children.id_of(entry.pid.as_raw()).is_none()
                && self.known_or_found_owner(entry) == lineage
        };
        kill(&Roots {
            identities: roots,
            select: &select,
            columns: Columns::default(),
            freeze: freezes(attempts),
        })
        .len()
    }

    fn known_or_found_owner(&self, entry: &Entry) -> Option<Lineage> {
        match self.trees.adopted.get(&entry.pid.as_raw()) {
            Some(known) if known.start == entry.start => known.owner,
            _ => self.owner_of(entry),
        }
    }

    /// The adopted processes that descend from this child.
    pub(crate) fn adopted_of(&self, id: u64) -> Vec<Identity> {
        let lineage = Some(Lineage::new(self.run_id, id));
        let of = |one: &&Adopted| one.owner == lineage;
        self.trees.adopted.values().filter(of).map(|one| one.identity.clone()).collect()
    }
}

/// Kills a tree, for as long as the loop can wait. Gives those that were signalled.
///
/// Nobody gets away for good: whoever loses its parent becomes this process's child. But one that
/// forks faster than it is killed has to be stopped first, which is for the second attempt.
pub fn kill(roots: &Roots) -> Vec<Identity> {
    match tree::kill(roots, Instant::now() + PATIENCE) {
        Ok(report) => {
            let (killed, left) = (report.killed, report.survivors.len());
            debug!(freeze = roots.freeze, passes = report.passes, killed, left, "killed");
            report.signalled
        }
        Err(error) => {
            warn!("cannot kill a tree: {error}");
            Vec::new()
        }
    }
}

/// Whether this attempt stops a tree before it kills it. The first does not need to, as a rule; and a
/// tree that will not come to rest is killed as it is.
pub fn freezes(attempt: u32) -> bool {
    (2..100).contains(&attempt)
}
