//! All trees, and the adopted processes in them.
//!
//! The guardian is a subreaper: whoever below it loses its parent becomes its child. The kernel hands the
//! children of a dying process over before it tells of the death, and takes a child out of the guardian's
//! list only when the guardian waits for it. So once a death has been reaped, whatever the dead process
//! has left behind is in the list or below something that is, and a tree of which nobody is in the list
//! is gone.
//!
//! Whose an adopted process is says the lineage that it inherited, which neither `setsid` nor an emptied
//! environment removes, and failing that its markers, session or group.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use snakepit_core::Signal;
use snakepit_core::lineage::Lineage;
use snakepit_core::run_id::RunId;
use snakepit_core::wire::{Exit, KillMode, Scope, StopPolicy};
use tracing::{debug, info, warn};

use crate::event::{Action, Actions, Member, Purpose, Seen, Target, Time};
use crate::tree::{ASK_REST_AFTER, Asked, CHASE, Killing, PERIOD, Phase, Tree};

/// The tree of those that nobody's lineage, marker, session or group claims. No child has this number.
pub const NOBODY: u64 = 0;

/// A process that became the guardian's child.
#[derive(Debug)]
struct Adopted {
    owner: u64,
    member: Member,
    /// Whether it has had the stop signal, or is not to have it.
    asked: bool,
    killed: bool,
}

/// A tree that has come to its end, or will not.
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

/// Whose a reaped process was.
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
    adopted: HashMap<i32, Adopted>,
    /// The trees by the number that their lineage carries, which is shorter.
    lineages: HashMap<u32, u64>,
    timers: BTreeSet<(Time, u64)>,
    touched: Vec<u64>,
}

impl Trees {
    /// None yet. `default_grace` is for those that have none of their own.
    pub fn new(run_id: RunId, default_grace: Duration) -> Self {
        let (by_id, adopted, lineages) = Default::default();
        let (timers, touched) = Default::default();
        Self { run_id, default_grace, by_id, adopted, lineages, timers, touched }
    }

    /// A child may execute its program from now on.
    pub fn plant(&mut self, id: u64, leader: i32, worker_id: Box<str>, policy: StopPolicy) {
        self.lineages.insert(Lineage::new(self.run_id, id).child, id);
        self.by_id.insert(id, Tree::new(leader, worker_id, policy));
    }

    /// A child did not execute its program: there is no tree.
    pub fn uproot(&mut self, id: u64) {
        self.remove(id);
    }

    fn remove(&mut self, id: u64) -> Option<Tree> {
        let lineage = Lineage::new(self.run_id, id).child;
        if self.lineages.get(&lineage) == Some(&id) {
            self.lineages.remove(&lineage);
        }
        let tree = self.by_id.remove(&id)?;
        if let Some(at) = tree.timer {
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

    /// Those of a tree that was given up.
    pub fn survivors(&self, id: u64) -> Option<Finished> {
        let tree = self.by_id.get(&id).filter(|tree| matches!(tree.phase, Phase::Survived))?;
        Some(Finished { id, killed: tree.killed, survivors: tree.roots(), announced: false })
    }

    /// Whether each tree that is left was given up.
    pub fn only_survivors_left(&self) -> bool {
        self.by_id.values().all(|tree| matches!(tree.phase, Phase::Survived))
    }

    /// The guardian's children in all trees.
    pub fn roots(&self) -> Vec<i32> {
        self.by_id.values().flat_map(Tree::roots).collect()
    }

    /// When the next tree has something to do.
    pub fn deadline(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Whether the list of children is to be read: something ended, or has something to do.
    pub fn wants_list(&mut self, now: Time) -> bool {
        while let Some((at, id)) = self.timers.first().copied() {
            if at > now {
                break;
            }
            self.set_timer(id, None);
            self.touch(id);
        }
        !self.touched.is_empty()
    }

    fn set_timer(&mut self, id: u64, at: Option<Time>) {
        let Some(tree) = self.by_id.get_mut(&id) else { return };
        if let Some(before) = std::mem::replace(&mut tree.timer, at) {
            self.timers.remove(&(before, id));
        }
        if let Some(at) = at {
            self.timers.insert((at, id));
        }
    }

    fn touch(&mut self, id: u64) {
        if let Some(tree) = self.by_id.get_mut(&id).filter(|tree| !tree.touched) {
            tree.touched = true;
            self.touched.push(id);
        }
    }

    /// A process has become the guardian's child. Returns whose it is.
    pub fn adopt(&mut self, now: Time, seen: Seen, out: &mut Actions) -> u64 {
        let pid = seen.member.pid;
        let owner = self.owner_of(&seen).unwrap_or(NOBODY);
        let tree = self.by_id.entry(owner).or_insert_with(Tree::without_leader);
        let asked = match &tree.phase {
            Phase::Asked(asked) => !asked.concerns(now, tree.leader, &seen.member),
            _ => false,
        };
        tree.members.push(pid);
        let doomed = matches!(tree.phase, Phase::Killing(_) | Phase::Survived);
        self.adopted.insert(pid, Adopted { owner, member: seen.member, asked, killed: false });
        // Order: known before it is written down, which may take a while. One that is being killed is not
        // worth it.
        if let Some(identity) = seen.identity.filter(|_| !doomed) {
            info!(pid, child = owner, "adopted");
            out.push(Action::Note(identity));
        }
        if !self.is_running(owner) {
            self.touch(owner);
        }
        owner
    }

    /// Whether nobody has asked this tree to end.
    pub fn is_running(&self, id: u64) -> bool {
        matches!(self.by_id.get(&id).map(|tree| &tree.phase), Some(Phase::Running))
    }

    /// The trees that nobody has asked to end.
    pub fn running(&self) -> Vec<u64> {
        let running = |tree: &Tree| matches!(tree.phase, Phase::Running);
        self.by_id.iter().filter(|(_, tree)| running(tree)).map(|(id, _)| *id).collect()
    }

    fn owner_of(&self, seen: &Seen) -> Option<u64> {
        if let Some(lineage) = seen.lineage.filter(|lineage| lineage.run_id == self.run_id) {
            return self.lineages.get(&lineage.child).copied();
        }
        let of = |tree: &Tree| {
            tree.leader != 0
                && (seen.session == tree.leader
                    || seen.member.group == tree.leader
                    || seen.worker_id.as_deref().is_some_and(|id| *id == *tree.worker_id))
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
                let asked = Asked::new(now, tree.signal(), tree.grace(default), true);
                tree.phase = Phase::Asked(Box::new(asked));
            }
            Phase::Asked(asked) => asked.leader_has_ended(now, mode),
            Phase::Killing(_) | Phase::Survived => tree.take_heart(now),
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
        tree.take_heart(now);
        // Its children are the guardian's from now on. A tree that ends wants to know at once.
        let worker_id = tree.worker_id.to_string();
        if !matches!(tree.phase, Phase::Running) || tree.is_gone() {
            self.touch(id);
        }
        Some(Death { tree: id, worker_id, killed })
    }

    /// Ends a tree: the signal now, SIGKILL after `grace`.
    pub fn stop(&mut self, now: Time, id: u64, signal: Signal, grace: Duration, out: &mut Actions) {
        let Some(tree) = self.by_id.get_mut(&id) else { return };
        let grace = if signal == Signal::KILL { Duration::ZERO } else { grace };
        let again = match &mut tree.phase {
            Phase::Running => true,
            Phase::Asked(asked) => {
                asked.kill_at = asked.kill_at.min(now.saturating_add(grace));
                asked.signal != signal && signal != Signal::KILL && !asked.leader_ended
            }
            Phase::Killing(_) | Phase::Survived => return,
        };
        if again {
            let kill_at = match &tree.phase {
                Phase::Asked(asked) => asked.kill_at,
                _ => now.saturating_add(grace),
            };
            let asked = Asked::new(now, signal, kill_at.saturating_sub(now), !tree.leader_is_there);
            tree.phase = Phase::Asked(Box::new(asked));
            tree.members.iter().for_each(|pid| {
                if let Some(one) = self.adopted.get_mut(pid) {
                    one.asked = false;
                }
            });
            if signal != Signal::KILL {
                self.ask_first(now, id, out);
            }
        }
        self.advance(now, id, out);
    }

    /// As its policy has it. `strict` is a grace period for all.
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
        self.stop(now, id, signal, if strict { grace } else { own }, out);
    }

    /// The first to be asked, by the mode of the tree; the others are when the leader is gone.
    fn ask_first(&mut self, now: Time, id: u64, out: &mut Actions) {
        let Some(tree) = self.by_id.get_mut(&id) else { return };
        let (mode, leader) = (tree.policy.mode, tree.leader);
        let Phase::Asked(asked) = &mut tree.phase else { return };
        if !tree.leader_is_there {
            return;
        }
        let target = if mode == KillMode::Leader {
            Target::Child(leader)
        } else {
            asked.group = true;
            Target::Group(leader)
        };
        request(target, asked.signal, out);
        if mode == KillMode::Tree {
            asked.everyone = true;
            asked.walk_at = Some(now + ASK_REST_AFTER);
        }
        for pid in &tree.members {
            if let Some(one) = self.adopted.get_mut(pid) {
                one.asked = asked.group && one.member.group == leader;
            }
        }
    }

    /// The list of children was read after everything that was reaped. Trees that are gone are returned,
    /// and those that will not go.
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
            self.advance(now, id, out);
            finished.extend(self.give_up(now, id, out));
        }
        finished
    }

    /// Nobody could be seen. The time in which that is so counts for nobody.
    pub fn not_listed(&mut self, now: Time, pause: Duration) {
        for id in std::mem::take(&mut self.touched) {
            if let Some(tree) = self.by_id.get_mut(&id) {
                tree.touched = false;
                if let Phase::Killing(killing) = &mut tree.phase {
                    killing.since = now;
                }
            }
            self.set_timer(id, Some(now + pause));
        }
    }

    /// What a tree has to do now, and when the next time is.
    fn advance(&mut self, now: Time, id: u64, out: &mut Actions) {
        let Some(tree) = self.by_id.get_mut(&id) else { return };
        if matches!(&tree.phase, Phase::Asked(asked) if asked.kill_at <= now) {
            if tree.leader_is_there {
                out.signal(Target::Group(tree.leader), Signal::KILL);
            }
            tree.phase = Phase::Killing(Box::new(Killing::new(now)));
        }
        match &tree.phase {
            Phase::Running => {}
            Phase::Asked(_) => self.ask_on(now, id, out),
            Phase::Killing(_) => self.kill_on(now, id, out),
            // Whatever kept them may have passed.
            Phase::Survived => {
                for pid in tree.roots() {
                    out.signal(Target::Child(pid), Signal::KILL);
                }
                self.set_timer(id, Some(now + PERIOD));
            }
        }
    }

    /// Asks those that have not been asked, if it is their turn.
    fn ask_on(&mut self, now: Time, id: u64, out: &mut Actions) {
        let Some(tree) = self.by_id.get_mut(&id) else { return };
        let roots = tree.roots();
        let Phase::Asked(asked) = &mut tree.phase else { return };
        if asked.everyone {
            let mut fresh = false;
            for pid in &tree.members {
                let Some(one) = self.adopted.get_mut(pid).filter(|one| !one.asked) else {
                    continue;
                };
                one.asked = true;
                fresh = true;
                asked.reached.insert(one.member.pid, one.member.start);
                request(Target::Child(*pid), asked.signal, out);
            }
            let due = asked.walk_at.is_some_and(|at| at <= now);
            if due || (fresh && asked.walk_at.is_none()) {
                asked.walk_at = None;
                out.push(Action::Walk { tree: id, purpose: Purpose::Ask, roots });
            }
        }
        let next = asked.walk_at.unwrap_or(asked.kill_at).min(asked.kill_at);
        self.set_timer(id, Some(next));
    }

    /// Kills those that have come to light since, or stops everyone if that goes on for too long.
    fn kill_on(&mut self, now: Time, id: u64, out: &mut Actions) {
        let Some(tree) = self.by_id.get_mut(&id) else { return };
        let (adopted, members) = (&self.adopted, &tree.members);
        let new = members.iter().any(|pid| adopted.get(pid).is_some_and(|one| !one.killed));
        let roots = tree.roots();
        let Phase::Killing(killing) = &mut tree.phase else { return };
        let endless = new && killing.freeze.is_none() && killing.another_round();
        if killing.freeze.is_some() || endless {
            killing.freeze.get_or_insert_default();
            out.push(Action::Walk { tree: id, purpose: Purpose::Freeze, roots });
        } else if now >= killing.next || (new && killing.rounds > 1) {
            killing.wait(now);
            self.kill_new(id, out);
            out.push(Action::Walk { tree: id, purpose: Purpose::Kill, roots });
        } else {
            self.kill_new(id, out);
        }
        let Some(Phase::Killing(killing)) = self.by_id.get(&id).map(|tree| &tree.phase) else {
            return;
        };
        let next = killing.next.max(now);
        self.set_timer(id, Some(next));
    }

    /// Kills the members that have not been killed.
    fn kill_new(&mut self, id: u64, out: &mut Actions) {
        let Some(tree) = self.by_id.get(&id) else { return };
        for pid in &tree.members {
            let Some(one) = self.adopted.get_mut(pid).filter(|one| !one.killed) else { continue };
            one.killed = true;
            out.signal(Target::Child(*pid), Signal::KILL);
        }
    }

    /// What a walk has found.
    pub fn below(
        &mut self,
        now: Time,
        id: u64,
        purpose: Purpose,
        members: &[Member],
        out: &mut Actions,
    ) {
        let Some(tree) = self.by_id.get_mut(&id) else { return };
        let leader = tree.leader;
        match (purpose, &mut tree.phase) {
            (Purpose::Ask, Phase::Asked(asked)) => {
                for member in members {
                    let root = member.pid == leader || self.adopted.contains_key(&member.pid);
                    if !root && asked.concerns(now, leader, member) {
                        asked.reached.insert(member.pid, member.start);
                        request(Target::Member(member.pid), asked.signal, out);
                    }
                }
            }
            (Purpose::Send(signal), _) => {
                for member in members {
                    out.signal(Target::Member(member.pid), signal);
                }
            }
            (Purpose::Kill, Phase::Killing(_)) => kill_members(members, out),
            (Purpose::Freeze, Phase::Killing(killing)) => {
                let mut freeze = killing.freeze.take().unwrap_or_default();
                if let Some(stop) = freeze.pass(members) {
                    for pid in stop {
                        out.signal(Target::Member(pid), Signal::STOP);
                    }
                    killing.freeze = Some(freeze);
                    killing.next = now;
                } else {
                    debug!(child = id, members = members.len(), "stopped, and killed");
                    kill_members(members, out);
                    for member in members {
                        if let Some(one) = self.adopted.get_mut(&member.pid) {
                            one.killed = true;
                        }
                    }
                    // One that slips through begins anew, with a walk.
                    killing.rounds = 1;
                    killing.wait(now);
                }
                let next = killing.next;
                self.set_timer(id, Some(next));
            }
            _ => {}
        }
    }

    /// Sends a signal to a child, its group or its tree.
    pub fn signal(&self, id: u64, signal: Signal, scope: Scope, out: &mut Actions) {
        let Some(tree) = self.by_id.get(&id).filter(|tree| tree.leader_is_there) else { return };
        match scope {
            Scope::Process => out.signal(Target::Child(tree.leader), signal),
            Scope::Group => out.signal(Target::Group(tree.leader), signal),
            Scope::Tree => {
                let (purpose, roots) = (Purpose::Send(signal), tree.roots());
                out.push(Action::Walk { tree: id, purpose, roots });
            }
        }
    }

    /// The kernel does not let the guardian signal this process.
    pub fn refused(&mut self, now: Time, pid: i32, errno: i32) {
        let leads = |tree: &Tree| tree.leader_is_there && tree.leader == pid;
        let leader = || self.by_id.iter().find(|(_, tree)| leads(tree)).map(|(id, _)| *id);
        let id = self.adopted.get(&pid).map(|one| one.owner).or_else(leader);
        let Some((id, tree)) = id.and_then(|id| Some((id, self.by_id.get_mut(&id)?))) else {
            return;
        };
        let Phase::Killing(killing) = &mut tree.phase else { return };
        if killing.refused.insert(pid) {
            warn!(pid, child = id, "the kernel refuses SIGKILL: errno {errno}");
        }
        let roots = tree.roots();
        if let Phase::Killing(killing) = &tree.phase {
            let next = killing.give_up_at(&roots).max(now).min(killing.next.max(now));
            self.set_timer(id, Some(next));
        }
    }

    fn give_up(&mut self, now: Time, id: u64, out: &mut Actions) -> Option<Finished> {
        let tree = self.by_id.get_mut(&id)?;
        let roots = tree.roots();
        let Phase::Killing(killing) = &mut tree.phase else { return None };
        if now < killing.give_up_at(&roots) {
            return None;
        }
        if !std::mem::replace(&mut killing.last_try, true) {
            for pid in roots {
                out.signal(Target::Child(pid), Signal::KILL);
            }
            self.set_timer(id, Some(now + CHASE));
            return None;
        }
        warn!(child = id, pids = ?roots, "cannot be ended; looked at once a second from now on");
        tree.phase = Phase::Survived;
        let announced = tree.announced;
        let killed = tree.killed;
        self.set_timer(id, Some(now + PERIOD));
        Some(Finished { id, killed, survivors: roots, announced })
    }
}

/// The signal, and SIGCONT: a stopped process acts on nothing but SIGKILL until it is continued.
fn request(target: Target, signal: Signal, out: &mut Actions) {
    out.signal(target, signal);
    if signal != Signal::KILL && signal != Signal::STOP {
        out.signal(target, Signal::CONT);
    }
}

fn kill_members(members: &[Member], out: &mut Actions) {
    for member in members {
        out.signal(Target::Member(member.pid), Signal::KILL);
    }
}

fn died_of_kill(exit: &Exit) -> bool {
    exit.signal == Some(Signal::KILL.as_raw())
}
