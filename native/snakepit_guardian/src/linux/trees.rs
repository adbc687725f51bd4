//! What descends from the children: who has lost its parent, whose it is, and when it is gone.
//!
//! The guardian is a subreaper, so whoever loses its parent becomes its child. A child that it did
//! not fork is *adopted*. Whose it is says the lineage that it inherited, which neither `setsid` nor
//! an emptied environment removes, and failing that its markers, session or group.
//!
//! A look is one pass over the process table. Looks are taken when a child has ended, while
//! something is being killed, and once a second to note what was adopted; never more often than lets
//! the guardian do other things most of the time.
//!
//! A look is no photograph, and may fail. What it leaves open is noted ([`Doubts`]), so that nobody is
//! said to be gone because of what could not be seen.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use snakepit_core::adopted;
use snakepit_core::lineage::Lineage;
use snakepit_core::table::{self, Columns, Entry, Environment};
use snakepit_core::tree::{self, Roots};
use snakepit_core::wire::Event;
use snakepit_core::{Error, Identity, Pid, Process};
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

/// What the last look leaves open.
#[derive(Default)]
struct Doubts {
    /// Something could not be read: whoever it is may be anybody's.
    of_all: bool,
    /// One of theirs was found dying. What it had forked is the guardian's child by now, but may be where
    /// the look had been before: pids start over, so a child need not come after its parent.
    of: HashSet<Lineage>,
}

impl Doubts {
    fn any(&self) -> bool {
        self.of_all || !self.of.is_empty()
    }
}

#[derive(Default)]
pub struct Trees {
    adopted: HashMap<i32, Adopted>,
    doubts: Doubts,
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
        self.doubts = Doubts::default();
    }

    pub fn adopted(&self) -> usize {
        self.adopted.len()
    }

    pub fn is_quiet(&self) -> bool {
        self.adopted.is_empty() && self.lingering.is_empty() && !self.doubts.any()
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
        self.trees.doubts = table::read(Columns::default())
            .and_then(|table| self.update_adopted(&table))
            .unwrap_or_else(|error| {
                // Once: the next look is a moment later.
                if !self.trees.doubts.of_all {
                    warn!("cannot see what is there: {error}");
                }
                Doubts { of_all: true, of: HashSet::new() }
            });
        self.end_lingering_trees();
        self.kill_overdue();
        let cost = begun.elapsed();
        self.trees.last_look = Some((Instant::now(), cost));
        let open = self.ending.is_some() && self.trees.doubts.any();
        if open || !self.trees.lingering.is_empty() || self.is_chasing() {
            self.trees.look_within(Instant::now() + CHASE);
        } else if self.children.counts().out > 0 || !self.trees.adopted.is_empty() {
            self.trees.look_within(Instant::now() + PERIOD.max(20 * cost));
        }
    }

    /// Notes who has become a child of this process, and whose it is.
    fn update_adopted(&mut self, table: &[Entry]) -> Result<Doubts, Error> {
        let own = Pid::current().as_raw();
        let is_adopted = |entry: &&Entry| {
            entry.parent == own && self.children.id_of(entry.pid.as_raw()).is_none()
        };
        let (living, dying): (Vec<&Entry>, Vec<&Entry>) =
            table.iter().filter(is_adopted).partition(|entry| entry.is_alive());
        let now: HashMap<i32, &Entry> =
            living.into_iter().map(|entry| (entry.pid.as_raw(), entry)).collect();
        self.trees
            .adopted
            .retain(|pid, one| now.get(pid).is_some_and(|entry| entry.start == one.start));
        let mut doubts = Doubts::default();
        for entry in dying {
            doubts.of.extend(self.owner_of(entry)?);
        }
        for (pid, entry) in now {
            if self.trees.adopted.contains_key(&pid) {
                continue;
            }
            let owner = self.owner_of(entry)?;
            let process = match Process::open(entry.pid) {
                Ok(Some(process)) => process,
                Ok(None) | Err(Error::Ambiguous(_)) => {
                    doubts.of.extend(owner);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let identity = process.identity().clone();
            info!(pid, child = owner.map(|owner| owner.child), "adopted");
            self.note_adopted(&identity);
            self.trees.adopted.insert(pid, Adopted { start: entry.start, identity, owner });
        }
        Ok(doubts)
    }

    fn owner_of(&self, entry: &Entry) -> Result<Option<Lineage>, Error> {
        let by_lineage = Lineage::of(entry.pid)?;
        if let Some(lineage) = by_lineage.filter(|lineage| lineage.run_id == self.run_id) {
            return Ok(Some(lineage));
        }
        let id = match self.owner_by_marker(entry)? {
            None => self.trees.owner_by_session(entry),
            id => id,
        };
        Ok(id.map(|id| Lineage::new(self.run_id, id)))
    }

    fn owner_by_marker(&self, entry: &Entry) -> Result<Option<u64>, Error> {
        let columns = Columns { markers: true, ..Columns::default() };
        let Some(entry) = table::read_one(entry.pid, columns)? else { return Ok(None) };
        let Environment::Read(markers) = entry.environment else { return Ok(None) };
        let worker = markers.worker_id.filter(|_| markers.run_id == Some(self.run_id));
        let Some(worker) = worker else { return Ok(None) };
        let mut children = self.children.iter();
        Ok(children.find(|(_, child)| child.worker_id.as_bytes() == worker).map(|(id, _)| id))
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
        if self.trees.doubts.of_all {
            // The time in which nothing can be seen or done counts for nobody.
            let now = Instant::now();
            self.trees.lingering.values_mut().for_each(|one| one.since = now);
            return;
        }
        let ids: Vec<u64> = self.trees.lingering.keys().copied().collect();
        for id in ids {
            let left = self.adopted_of(id);
            let doubtful = self.trees.doubts.of.contains(&Lineage::new(self.run_id, id));
            let Some(lingering) = self.trees.lingering.get_mut(&id) else { continue };
            let gone = left.is_empty() && !doubtful;
            if gone || lingering.since.elapsed() > GIVE_UP {
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
            // Who cannot be asked is not killed for another's sake.
            _ => self.owner_of(entry).unwrap_or_default(),
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
