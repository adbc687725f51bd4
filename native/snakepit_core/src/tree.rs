//! Everything that descends from a set of processes, whatever group or session it moved to.
//!
//! One pass reads the whole process table and closes over it from the roots: reading
//! `/proc/<pid>/children` instead misses entries while processes come and go. Passes repeat until
//! one finds nothing.
//!
//! A parent that dies hands its children to another process, and with that the trace that leads to
//! them ends, unless they carry a marker or the one who asks is the subreaper that inherits them.
//! So before anything is killed the tree is *frozen*: each member is stopped, which makes a `fork`
//! under way start over and never return, until a pass finds no new member and all of them at rest.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::process::{Delivery, Found};
use crate::settle::Settling;
use crate::stop::{descriptor_budget, pause_until, refusal, wait_for_exits};
use crate::table::{self, Columns, Entry, State};
use crate::{Error, Identity, Process, Signal, protect};

/// How long a frozen tree may take to come to rest. A member that is in an uninterruptible system
/// call counts as at rest.
const FREEZE_LIMIT: Duration = Duration::from_secs(1);

/// How long it is tried to continue a frozen tree that could not be killed.
const THAW_LIMIT: Duration = Duration::from_secs(1);

/// The longest wait for one pass's victims before the next pass looks for what they left behind.
const PASS_LIMIT: Duration = Duration::from_millis(50);

/// Which processes a tree grows from.
pub struct Roots<'a> {
    /// These very processes.
    pub identities: Vec<Identity>,
    /// And those of which this is true, given `columns` of the process table.
    pub select: &'a dyn Fn(&Entry) -> bool,
    /// What `select` needs to see.
    pub columns: Columns,
    /// Stop everything before killing anything. Not needed by a subreaper: whoever loses its parent
    /// becomes its own child.
    pub freeze: bool,
}

/// What a tree kill did.
#[derive(Debug, Default)]
pub struct Report {
    /// How many were ended.
    pub killed: usize,
    /// All that were sent SIGKILL, those that are still there included.
    pub signalled: Vec<Identity>,
    /// Full passes over the process table.
    pub passes: usize,
    /// Those that are still there at the deadline, or may not be signalled.
    pub survivors: Vec<Identity>,
}

/// One member of a tree, at one pass.
struct Member {
    process: Process,
    state: State,
}

impl Roots<'_> {
    /// The live members now, children before their parents. Waits for the end of a clock tick where
    /// the kernel has no handles and a member is that young.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the process table cannot be read.
    pub fn list(&self) -> Result<Vec<Identity>, Error> {
        let mut members = Settling::new();
        self.for_each_member(|member| {
            members.add(member.process, ());
            Ok(())
        })?;
        Ok(members.identities())
    }

    /// One pass. Each member is opened only while `visit` has it, so the number of descriptors does
    /// not limit the number of members.
    fn for_each_member(
        &self,
        mut visit: impl FnMut(Member) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // More than one may have had a pid.
        let mut roots: HashMap<i32, Vec<&Identity>> = HashMap::new();
        for identity in &self.identities {
            roots.entry(identity.pid.as_raw()).or_default().push(identity);
        }
        let table = table::read(self.columns)?;
        // Order: the table first. A root that is still there now had its pid during the whole pass,
        // so the entry with that pid is the root's, and those that name it as parent descend from it.
        let mut present = HashSet::new();
        let mut listed = HashSet::new();
        for entry in &table {
            listed.insert(entry.pid.as_raw());
            for root in noted(&roots, entry) {
                if matches!(Process::reopen(root, None)?, Found::Same(_)) {
                    present.insert(entry.pid.as_raw());
                }
            }
        }
        let hidden = self.hidden(&listed)?;
        let unlisted = hidden.iter().map(|one| one.pid.as_raw()).collect();
        for entry in self.closure(&table, &present, &unlisted)? {
            if let Some(process) = self.confirm(entry, &roots)? {
                visit(Member { process, state: entry.state })?;
            }
        }
        // Whether one that is hidden has come to rest cannot be seen.
        for one in hidden {
            if let Found::Same(process) = Process::reopen(one, None)? {
                visit(Member { process, state: State::Uninterruptible })?;
            }
        }
        Ok(())
    }

    /// The roots that are there and that the table does not show (`hidepid`). What cannot be seen is not
    /// gone, and its pidfd reaches it all the same.
    fn hidden(&self, listed: &HashSet<i32>) -> Result<Vec<&Identity>, Error> {
        let mut hidden: Vec<&Identity> = Vec::new();
        for root in self.identities.iter().filter(|root| !listed.contains(&root.pid.as_raw())) {
            let known = hidden.iter().any(|one| one.pid == root.pid);
            if known || protect::process(root.pid).is_err() {
                continue;
            }
            if let Found::Same(process) = Process::reopen(root, None)? {
                if process.is_alive()? {
                    hidden.push(root);
                }
            }
        }
        Ok(hidden)
    }

    /// The entries that are a root or descend from one, deepest first. Of roots that are `unlisted` the
    /// table has the children at most.
    fn closure<'t>(
        &self,
        table: &'t [Entry],
        roots: &HashSet<i32>,
        unlisted: &HashSet<i32>,
    ) -> Result<Vec<&'t Entry>, Error> {
        let mut children: HashMap<i32, Vec<&Entry>> = HashMap::new();
        for entry in table {
            children.entry(entry.parent).or_default().push(entry);
        }
        let is_root = |entry: &Entry| roots.contains(&entry.pid.as_raw()) || (self.select)(entry);
        let is_first = |entry: &&Entry| is_root(entry) || unlisted.contains(&entry.parent);
        let mut found: Vec<&Entry> = table.iter().filter(is_first).collect();
        let mut seen: HashSet<i32> = found.iter().map(|entry| entry.pid.as_raw()).collect();
        let mut next = 0;
        while let Some(entry) = found.get(next) {
            next += 1;
            let Some(below) = children.get(&entry.pid.as_raw()) else { continue };
            if is_anothers_by_now(entry)? {
                continue;
            }
            for child in below {
                if seen.insert(child.pid.as_raw()) {
                    found.push(child);
                }
            }
        }
        found.retain(|entry| entry.is_alive() && protect::process(entry.pid).is_ok());
        found.reverse();
        Ok(found)
    }

    /// Opens the process behind an entry and asks again whether it is the one that was listed.
    fn confirm(
        &self,
        entry: &Entry,
        roots: &HashMap<i32, Vec<&Identity>>,
    ) -> Result<Option<Process>, Error> {
        let process = match Process::open(entry.pid) {
            Ok(Some(process)) => process,
            Ok(None) | Err(Error::Ambiguous(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(now) = process.inspect(self.columns)? else { return Ok(None) };
        if now.start != entry.start || !now.is_alive() {
            return Ok(None);
        }
        // Same pid, same start time: on one clock tick that can be two processes. It is the one
        // that was listed if its kernel handle is a root's, or it carries the marker, or it has the
        // listed parent (then it descends from a root itself), or the tick had passed.
        let handles: Vec<_> = noted(roots, entry).filter_map(|root| root.handle.as_ref()).collect();
        let known = process.identity().handle.as_ref().is_some_and(|own| handles.contains(&own));
        let likely = handles.is_empty() && (entry.settled || now.parent == entry.parent);
        let same = known || likely || (self.select)(&now);
        Ok(same.then_some(process))
    }
}

/// Whether the pid of a listed process belongs to another one. If it changed hands while the table was
/// read, those that name it as their parent may be the other's.
fn is_anothers_by_now(entry: &Entry) -> Result<bool, Error> {
    let now = table::read_one(entry.pid, Columns::default())?;
    Ok(now.is_some_and(|now| now.start != entry.start))
}

/// The roots that an entry may be. One of another start time is another process, which had this pid
/// before, and says nothing of it.
fn noted<'r>(
    roots: &'r HashMap<i32, Vec<&Identity>>,
    entry: &Entry,
) -> impl Iterator<Item = &'r Identity> + use<'r> {
    let (pid, start) = (entry.pid.as_raw(), entry.start);
    // It may have been hidden when it was noted; then its handle tells.
    let fits = move |root: &&Identity| root.start == start || root.start == 0;
    roots.get(&pid).into_iter().flatten().copied().filter(fits)
}

/// Kills the tree: pass after pass until one finds nothing, or `deadline` has come.
///
/// # Errors
///
/// [`Error::Os`] if the process table cannot be read. Whoever was stopped by then runs again: nobody will
/// come to kill it.
pub fn kill(roots: &Roots, deadline: Instant) -> Result<Report, Error> {
    let mut stopped = HashSet::new();
    kill_noting(roots, deadline, &mut stopped).inspect_err(|_| thaw(stopped))
}

/// Continues those that were stopped. What made the killing fail may keep this from being done as well, a
/// want of descriptors say: then it is tried for a while.
fn thaw(mut stopped: HashSet<Identity>) {
    let deadline = Instant::now() + THAW_LIMIT;
    loop {
        stopped.retain(|identity| match Process::reopen(identity, None) {
            Ok(Found::Same(process)) => {
                // Who may not be continued may not have been stopped.
                let _ = process.signal(Signal::CONT);
                false
            }
            Ok(_) => false,
            Err(_) => true,
        });
        if stopped.is_empty() || !pause_until(deadline) {
            return;
        }
    }
}

fn kill_noting(
    roots: &Roots,
    deadline: Instant,
    stopped: &mut HashSet<Identity>,
) -> Result<Report, Error> {
    let mut report = Report::default();
    // A pass is no photograph. One that is forked behind its back, by a parent that is gone before the
    // pass gets there, escapes it; a second pass finds it. A subreaper need not look twice: to it, the
    // escaped one turns up as a child.
    let enough = if roots.freeze { 2 } else { 1 };
    let mut empty = 0;
    if roots.freeze {
        let frozen = freeze(roots, deadline.min(Instant::now() + FREEZE_LIMIT), stopped)?;
        report.passes += frozen.passes;
        empty += usize::from(frozen.members == 0);
        // Out of time before they have come to rest: those that were stopped stay so, and whoever
        // calls again goes on from there. Killing now would let the others fork anew.
        if !frozen.at_rest && Instant::now() >= deadline {
            report.survivors = roots.list()?;
            return Ok(report);
        }
    }
    // What was met is a root from then on: its parent may be gone before it is.
    let mut roots = Roots { identities: roots.identities.clone(), ..*roots };
    let mut signalled: HashSet<Identity> = HashSet::new();
    loop {
        report.passes += 1;
        let mut sent = Vec::new();
        let mut held = Vec::new();
        let mut refused = Settling::new();
        signal_each(&roots, Signal::KILL, |process, is_sent| {
            if !is_sent {
                refused.add(process, ());
                return;
            }
            sent.push(process.identity().clone());
            if held.len() < descriptor_budget() {
                held.push(process);
            }
        })?;
        let refused = refused.identities();
        signalled.extend(sent.iter().cloned().map(once));
        empty = if sent.is_empty() { empty + 1 } else { 0 };
        let done = if sent.is_empty() { empty >= enough } else { Instant::now() >= deadline };
        if done {
            report.killed = signalled.len() - sent.len();
            report.signalled = signalled.into_iter().collect();
            report.survivors = [sent, refused].concat();
            return Ok(report);
        }
        roots.identities.extend(sent);
        roots.identities.extend(refused);
        let references: Vec<_> = held.iter().map(Process::reference).collect();
        let pause = deadline.min(Instant::now() + PASS_LIMIT);
        wait_for_exits(&references, pause)?;
        // Whoever was struck in its first tick and is still there has an identity that counts by now.
        let young = held.iter().filter(|one| !one.identity().is_exact());
        roots.identities.extend(young.filter_map(Process::settled_identity));
    }
}

/// The same at each pass, for counting: a process settles, and may change its user.
fn once(identity: Identity) -> Identity {
    Identity { settled: true, uid: None, ..identity }
}

/// Whom one pass met.
#[derive(Debug, Default)]
pub struct Struck {
    /// Those that were signalled.
    pub sent: Vec<Identity>,
    /// Those that this process may not signal.
    pub refused: Vec<Identity>,
}

/// One pass: sends `signal` to every member and hands each to `keep`. Waits for nobody.
///
/// # Errors
///
/// [`Error::Os`] if the process table cannot be read.
pub fn strike(
    roots: &Roots,
    signal: Signal,
    mut keep: impl FnMut(Process),
) -> Result<Struck, Error> {
    let mut struck = Struck::default();
    signal_each(roots, signal, |process, is_sent| {
        let identity = process.identity().clone();
        if is_sent {
            struck.sent.push(identity);
            keep(process);
        } else {
            struck.refused.push(identity);
        }
    })?;
    Ok(struck)
}

/// One pass: hands over each member that is there, and whether the signal was sent or refused.
fn signal_each(
    roots: &Roots,
    signal: Signal,
    mut visit: impl FnMut(Process, bool),
) -> Result<(), Error> {
    roots.for_each_member(|member| {
        match member.process.signal(signal) {
            Ok(Delivery::Sent) => visit(member.process, true),
            Ok(Delivery::Gone) => {}
            Err(error) => {
                refusal(&error).ok_or(error)?;
                visit(member.process, false);
            }
        }
        Ok(())
    })
}

/// How far a tree was stopped.
struct Frozen {
    passes: usize,
    /// How many members the last pass found.
    members: usize,
    /// Whether the last pass found all of them stopped, and none new.
    at_rest: bool,
}

/// Stops members until a pass finds all of them at rest and none new.
fn freeze(
    roots: &Roots,
    deadline: Instant,
    stopped: &mut HashSet<Identity>,
) -> Result<Frozen, Error> {
    let mut passes = 0;
    loop {
        passes += 1;
        let mut members = 0;
        let mut at_rest = true;
        roots.for_each_member(|member| {
            members += 1;
            let new = stopped.insert(once(member.process.identity().clone()));
            if new || member.state == State::Alive {
                match member.process.signal(Signal::STOP) {
                    Ok(delivery) => at_rest &= delivery == Delivery::Gone,
                    // It cannot be killed either, which is where it is reported.
                    Err(error) => drop(refusal(&error).ok_or(error)?),
                }
            }
            Ok(())
        })?;
        // Never fewer than these: one to stop them, one to see what they forked meanwhile, one to see
        // that they rest. A pass may take longer than all the time there is.
        let tried = passes >= 3 && Instant::now() >= deadline;
        if at_rest || tried {
            return Ok(Frozen { passes, members, at_rest });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// The pids below this test's own process, if `change` was made to its entry after it was read.
    fn below_this_process(change: impl Fn(&mut Entry)) -> Vec<i32> {
        let own = crate::Pid::current();
        let mut table = table::read(Columns::default()).unwrap();
        let entry = table.iter_mut().find(|entry| entry.pid == own).unwrap();
        change(entry);
        let roots = Roots {
            identities: Vec::new(),
            select: &|entry| entry.pid == own,
            columns: Columns::default(),
            freeze: false,
        };
        let closure = roots.closure(&table, &HashSet::new(), &HashSet::new()).unwrap();
        closure.iter().map(|entry| entry.pid.as_raw()).collect()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn children_of_one_whose_pid_changed_hands_are_left_alone() {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let listed = below_this_process(|_| {});
        let another = below_this_process(|entry| entry.start -= 1);
        end(child);
        assert!(listed.contains(&pid));
        assert!(!another.contains(&pid));
    }
}
