//! All trees, and the adopted processes in them.
//!
//! The guardian is a subreaper: a process below it that loses its parent becomes its child. The kernel hands the
//! children of a dying process over before it reports the death, and takes a child out of the guardian's
//! list only when the guardian waits for it. So once a death has been reaped, whatever the dead process
//! has left behind is in the list or below something that is, and a tree of which no process is in the list
//! is gone.
//!
//! Which tree an adopted process is of shows in the lineage that it inherited, which neither `setsid` nor an
//! emptied environment removes, and failing that in its markers, session or group.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use snakepit_core::Signal;
use snakepit_core::lineage::Lineage;
use snakepit_core::run_id::RunId;
use snakepit_core::wire::{self, Exit, KillMode, Scope, StopPolicy};
use tracing::info;

use crate::event::{Action, Actions, Adoptee, Member, Purpose, Time};
use crate::phase::{Asked, Phase};
use crate::tree::{Adopted, Adoptions, Ask, Tree};

/// The tree of processes that have no known lineage, marker, session or group. No child has this id.
pub const UNCLAIMED: u64 = 0;

/// A tree that is gone, or was given up.
#[derive(Debug, PartialEq, Eq)]
pub struct Finished {
    /// The child's number.
    pub id: u64,
    /// How many descendants had to be killed.
    pub killed: u64,
    /// Those that are still there.
    pub survivors: Vec<i32>,
    /// Whether the BEAM is to be told.
    pub announced: bool,
}

/// A reaped process, and the tree that it was of.
#[derive(Debug, PartialEq, Eq)]
pub struct Death {
    /// The tree.
    pub tree: u64,
    /// The worker.
    pub worker_id: String,
    /// Whether it died of the guardian's SIGKILL.
    pub killed: bool,
}

/// All trees.
#[derive(Debug)]
pub struct Trees {
    run_id: RunId,
    default_grace: Duration,
    by_id: HashMap<u64, Tree>,
    adopted: Adoptions,
    /// The trees by the number that their lineage carries, which is shorter.
    lineages: HashMap<u32, u64>,
    timers: BTreeSet<(Time, u64)>,
    touched: Vec<u64>,
}

impl Trees {
    /// Returns no trees yet. `default_grace` is for those that have none of their own.
    pub fn new(run_id: RunId, default_grace: Duration) -> Self {
        let (by_id, adopted, lineages) = Default::default();
        let (timers, touched) = Default::default();
        Self { run_id, default_grace, by_id, adopted, lineages, timers, touched }
    }

    /// Adds the tree of a child that may execute its program from now on.
    pub fn insert(&mut self, id: u64, leader: i32, worker_id: Box<str>, policy: StopPolicy) {
        self.lineages.insert(Lineage::new(self.run_id, id).child, id);
        self.by_id.insert(id, Tree::new(leader, worker_id, policy));
    }

    /// Removes the tree of a child that did not execute its program.
    pub fn discard(&mut self, id: u64) {
        self.remove(id);
    }

    fn remove(&mut self, id: u64) -> Option<Tree> {
        let lineage = Lineage::new(self.run_id, id).child;
        if self.lineages.get(&lineage) == Some(&id) {
            self.lineages.remove(&lineage);
        }
        let tree = self.by_id.remove(&id)?;
        if let Some(at) = tree.armed {
            self.timers.remove(&(at, id));
        }
        Some(tree)
    }

    /// Whether there is such a tree.
    pub fn contains(&self, id: u64) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Whether this pid is an adopted process's.
    pub fn knows(&self, pid: i32) -> bool {
        self.adopted.contains_key(&pid)
    }

    /// How many processes are adopted.
    pub fn adopted(&self) -> usize {
        self.adopted.len()
    }

    /// The numbers of all trees.
    pub fn ids(&self) -> Vec<u64> {
        self.by_id.keys().copied().collect()
    }

    /// Whether there is any process to look after.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the survivors of a tree that was given up.
    pub fn survivors(&self, id: u64) -> Option<Finished> {
        let tree = self.by_id.get(&id).filter(|tree| matches!(tree.phase, Phase::Survived))?;
        let announced = tree.announced;
        Some(Finished { id, killed: tree.killed, survivors: tree.roots(), announced })
    }

    /// Returns the guardian's children in a tree, which may be gone.
    pub fn roots_of(&self, id: u64) -> Vec<i32> {
        self.by_id.get(&id).map(Tree::roots).unwrap_or_default()
    }

    /// Returns the answer for one who wants to look at a tree, which may be gone.
    pub fn describe_roots(&self, id: u64) -> wire::Event {
        let Some(tree) = self.by_id.get(&id) else {
            return wire::Event::Roots { id, roots: Vec::new(), user_us: 0, system_us: 0 };
        };
        let start = |pid| self.adopted.get(&pid).map_or(0, |adopted| adopted.member.start);
        let roots = tree.roots().into_iter().map(|pid| (pid.into(), start(pid))).collect();
        wire::Event::Roots { id, roots, user_us: tree.ended_us.0, system_us: tree.ended_us.1 }
    }

    /// Returns the worker of a tree.
    pub fn worker_id(&self, id: u64) -> &str {
        self.by_id.get(&id).map_or("", |tree| &tree.worker_id)
    }

    /// Returns whether each tree that is left was given up.
    pub fn only_survivors_left(&self) -> bool {
        self.by_id.values().all(|tree| matches!(tree.phase, Phase::Survived))
    }

    /// Returns the guardian's children in all trees.
    pub fn roots(&self) -> Vec<i32> {
        self.by_id.values().flat_map(Tree::roots).collect()
    }

    /// Returns when the next tree has something to do.
    pub fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns whether the list of children is to be read: a tree has lost a process, or has something to do.
    pub fn wants_list(&mut self, now: Time) -> bool {
        while let Some((at, id)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.with(id, |tree, _| tree.timer = None);
            self.touch(id);
        }
        !self.touched.is_empty()
    }

    /// Calls `act` with a tree, and arms its timer afterwards.
    fn with<R>(&mut self, id: u64, act: impl FnOnce(&mut Tree, &mut Adoptions) -> R) -> Option<R> {
        let tree = self.by_id.get_mut(&id)?;
        let result = act(tree, &mut self.adopted);
        if tree.timer != tree.armed {
            if let Some(before) = std::mem::replace(&mut tree.armed, tree.timer) {
                self.timers.remove(&(before, id));
            }
            if let Some(at) = tree.timer {
                self.timers.insert((at, id));
            }
        }
        Some(result)
    }

    fn touch(&mut self, id: u64) {
        if let Some(tree) = self.by_id.get_mut(&id).filter(|tree| !tree.touched) {
            tree.touched = true;
            self.touched.push(id);
        }
    }

    /// Adds a process that has become the guardian's child. Returns its tree.
    pub fn adopt(&mut self, adoptee: Adoptee, out: &mut Actions) -> u64 {
        let pid = adoptee.member.pid;
        let owner = self.owner_of(&adoptee).unwrap_or(UNCLAIMED);
        let tree = self.by_id.entry(owner).or_insert_with(Tree::without_leader);
        let asked = match &tree.phase {
            Phase::Asked(asked) => !asked.should_ask(tree.leader, &adoptee.member),
            _ => false,
        };
        tree.members.push(pid);
        let doomed = matches!(tree.phase, Phase::Killing(_) | Phase::Survived);
        self.adopted.insert(pid, Adopted { owner, member: adoptee.member, asked, killed: false });
        // Order: added before it is recorded, which may take a while. One that is being killed is not recorded.
        if let Some(identity) = adoptee.identity.filter(|_| !doomed) {
            info!(pid, child = owner, "adopted a process whose parent has ended");
            out.push(Action::RecordAdopted(identity));
        }
        if !self.is_running(owner) {
            self.touch(owner);
        }
        owner
    }

    /// Returns whether this tree has not been asked to end.
    pub fn is_running(&self, id: u64) -> bool {
        matches!(self.by_id.get(&id).map(|tree| &tree.phase), Some(Phase::Running))
    }

    fn owner_of(&self, adoptee: &Adoptee) -> Option<u64> {
        if let Some(lineage) = adoptee.lineage.filter(|lineage| lineage.run_id == self.run_id) {
            return self.lineages.get(&lineage.child).copied();
        }
        // Not the worker's id, which the next worker of that name has too.
        if let Some(child) = adoptee.child.filter(|child| self.by_id.contains_key(child)) {
            return Some(child);
        }
        let of = |tree: &Tree| {
            tree.leader != 0
                && (adoptee.session == tree.leader || adoptee.member.group == tree.leader)
        };
        self.by_id.iter().find(|(_, tree)| of(tree)).map(|(id, _)| *id)
    }

    /// The leader has ended by itself or otherwise, and is reaped. What it leaves behind is asked to end.
    pub fn leader_reaped(&mut self, now: Time, id: u64, exit: &Exit) -> Option<Death> {
        let default = self.default_grace;
        let tree = self.by_id.get_mut(&id)?;
        tree.leader_is_there = false;
        let killed = died_of_kill(exit) && matches!(tree.phase, Phase::Killing(_));
        let mode = tree.policy.mode;
        match &mut tree.phase {
            Phase::Running => {
                let grace =
                    if mode == KillMode::Mixed { Duration::ZERO } else { tree.grace(default) };
                let asked = Asked::new(now, tree.signal(), grace, true);
                tree.phase = Phase::Asked(Box::new(asked));
            }
            Phase::Asked(asked) => asked.leader_has_ended(now, mode),
            Phase::Killing(_) | Phase::Survived => tree.resume_killing(now),
        }
        let worker_id = tree.worker_id.to_string();
        self.touch(id);
        Some(Death { tree: id, worker_id, killed })
    }

    /// An adopted process has been reaped.
    pub fn member_reaped(&mut self, now: Time, pid: i32, exit: &Exit) -> Option<Death> {
        let adopted = self.adopted.remove(&pid)?;
        let id = adopted.owner;
        let tree = self.by_id.get_mut(&id)?;
        tree.members.retain(|member| *member != pid);
        let killed = died_of_kill(exit) && matches!(tree.phase, Phase::Killing(_));
        tree.killed += u64::from(killed);
        tree.ended_us.0 += exit.user_us;
        tree.ended_us.1 += exit.system_us;
        tree.resume_killing(now);
        // Its children are the guardian's from now on. In a tree that ends they are signalled at once.
        let worker_id = tree.worker_id.to_string();
        if !matches!(tree.phase, Phase::Running) || tree.is_gone() {
            self.touch(id);
        }
        Some(Death { tree: id, worker_id, killed })
    }

    /// Ends a tree: the signal now, SIGKILL when its time is over.
    pub fn stop(&mut self, now: Time, id: u64, ask: Ask, out: &mut Actions) {
        self.with(id, |tree, adopted| {
            tree.stop(now, ask, adopted, out);
            if !matches!(tree.phase, Phase::Killing(_) | Phase::Survived) {
                tree.advance(id, now, adopted, out);
            }
        });
    }

    /// Ends a tree by its policy; with `strict`, with this grace period for all, and no more.
    pub fn stop_by_policy(
        &mut self,
        now: Time,
        id: u64,
        grace: Duration,
        strict: bool,
        out: &mut Actions,
    ) {
        let Some(tree) = self.by_id.get(&id) else { return };
        let (signal, own) = (tree.signal(), tree.grace(grace));
        let grace = if strict { grace } else { own };
        self.stop(now, id, Ask { signal, grace, aborts: !strict }, out);
    }

    /// Has a tree that was asked to end not killed before this moment.
    pub fn extend(&mut self, id: u64, until: Time) {
        self.with(id, |tree, _| tree.extend(until));
    }

    /// Returns the trees that are gone, and those that were given up, now that the list of children was read
    /// after everything that was reaped.
    pub fn listed(&mut self, now: Time, out: &mut Actions) -> Vec<Finished> {
        let mut finished = Vec::new();
        for id in std::mem::take(&mut self.touched) {
            let Some(tree) = self.by_id.get_mut(&id) else { continue };
            tree.touched = false;
            if tree.is_gone() {
                let Some(tree) = self.remove(id) else { continue };
                let announced = tree.announced && !matches!(tree.phase, Phase::Survived);
                let (killed, survivors) = (tree.killed, Vec::new());
                finished.push(Finished { id, killed, survivors, announced });
                continue;
            }
            let gave_up = self.with(id, |tree, adopted| {
                tree.advance(id, now, adopted, out);
                tree.try_giving_up(now, out)
            });
            if gave_up == Some(true) {
                finished.extend(self.survivors(id));
            }
        }
        finished
    }

    /// Tries again later: the list could not be read. The time in which that is so counts for no tree.
    pub fn not_listed(&mut self, now: Time, pause: Duration) {
        for id in std::mem::take(&mut self.touched) {
            self.with(id, |tree, _| {
                tree.touched = false;
                if let Phase::Killing(killing) = &mut tree.phase {
                    killing.since = now;
                }
                tree.timer = Some(now + pause);
            });
        }
    }

    /// Signals what a walk has found.
    pub fn walked(
        &mut self,
        now: Time,
        id: u64,
        purpose: Purpose,
        members: &[Member],
        out: &mut Actions,
    ) {
        self.with(id, |tree, adopted| tree.walked(now, purpose, members, adopted, out));
    }

    /// Sends a signal to a child, its group or its tree.
    pub fn signal(&self, id: u64, signal: Signal, scope: Scope, out: &mut Actions) {
        if let Some(tree) = self.by_id.get(&id) {
            tree.signal_scope(id, signal, scope, out);
        }
    }

    /// Records that the kernel does not let the guardian signal this process.
    pub fn refused(&mut self, now: Time, pid: i32, errno: i32) {
        let leads = |tree: &Tree| tree.leader_is_there && tree.leader == pid;
        let leader = || self.by_id.iter().find(|(_, tree)| leads(tree)).map(|(id, _)| *id);
        if let Some(id) = self.adopted.get(&pid).map(|one| one.owner).or_else(leader) {
            self.with(id, |tree, _| tree.refused(now, pid, errno));
        }
    }
}

fn died_of_kill(exit: &Exit) -> bool {
    exit.signal == Some(Signal::KILL.as_raw())
}
