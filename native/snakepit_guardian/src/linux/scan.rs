//! Which processes there are: the guardian's own children, and what is below them.

use std::collections::HashMap;
use std::time::Duration;

use nix::unistd::{getpgid, getsid};
use snakepit_core::descendants::{self, Descendant};
use snakepit_core::lineage::Lineage;
use snakepit_core::marker::Markers;
use snakepit_core::run_id::RunId;
use snakepit_core::table::{self, Arguments, Columns, Entry, Environment, ProcessState};
use snakepit_core::{Pid, Process};
use snakepit_guardian::Event;
use snakepit_guardian::event::{Adoptee, Member, Purpose, Time};

use super::shell::Shell;

/// How long a process may seem to be in the midst of `execve(2)` before it is taken for one that has neither arguments
/// nor environment.
const EXECUTION_LIMIT: Duration = Duration::from_secs(10);

impl Shell {
    /// Reads the list of children, and dispatches [`Event::Adopted`] for each in it that is not known.
    pub(super) fn list(&mut self) {
        let only_new = !std::mem::take(&mut self.reaped_since_list);
        let Ok(pids) = self.own_children.read(only_new) else {
            self.reaped_since_list = true;
            self.dispatch(Event::ListFailed);
            return;
        };
        let mut executing = HashMap::new();
        for pid in pids {
            if self.machine.knows(pid) {
                continue;
            }
            let now = self.now();
            match observe(now, pid, self.run_id, true) {
                Observed::Executing(adoptee) => {
                    let since = self.executing.get(&pid).copied().unwrap_or(now);
                    if now.saturating_sub(since) < EXECUTION_LIMIT && !self.machine.beam_is_gone() {
                        executing.insert(pid, since);
                    } else {
                        self.dispatch(Event::Adopted(adoptee));
                    }
                }
                Observed::Whole(adoptee) => self.dispatch(Event::Adopted(adoptee)),
            }
        }
        let is_whole = executing.is_empty();
        self.executing = executing;
        // Whose they are is not known, so no tree is known to be gone.
        self.reaped_since_list |= !is_whole;
        self.dispatch(if is_whole { Event::Listed } else { Event::ListUnsettled });
    }

    /// Finds what is below children. What it finds is held until all actions are carried out.
    pub(super) fn walk(&mut self, tree: u64, purpose: Purpose, roots: &[i32]) {
        let pids: Vec<Pid> = roots.iter().filter_map(|pid| Pid::new((*pid).into())).collect();
        if purpose == Purpose::Count {
            // None is held: there may be more than there are descriptors. And none is counted where that
            // takes a pass over the whole process table for each tree.
            let listed = self.own_children.is_listed();
            let found = if listed { descendants::find(&pids) } else { Vec::new() };
            let now = self.now();
            let members = found.iter().map(|descendant| member(now, descendant)).collect();
            self.dispatch(Event::Walked { tree, purpose, members });
            return;
        }
        let mut members: Vec<Member> = pids.iter().map(|pid| child(self.now(), *pid)).collect();
        for descendant in descendants::find(&pids) {
            members.push(member(self.now(), &descendant));
            self.held.insert(descendant.entry.pid.as_raw(), descendant);
        }
        self.dispatch(Event::Walked { tree, purpose, members });
    }
}

fn member(now: Time, descendant: &Descendant) -> Member {
    from_entry(now, descendant.entry.pid, Some(&descendant.entry))
}

fn child(now: Time, pid: Pid) -> Member {
    let entry = table::read_one(pid, Columns::default()).ok().flatten();
    from_entry(now, pid, entry.as_ref())
}

/// Returns a member. Of a child that is hidden no more is known than what the kernel tells its parent.
fn from_entry(now: Time, pid: Pid, entry: Option<&Entry>) -> Member {
    let group = || getpgid(Some(raw(pid))).map_or(0, nix::unistd::Pid::as_raw);
    Member {
        pid: pid.as_raw(),
        start: entry.map_or(0, |entry| entry.start),
        group: entry.map_or_else(group, |entry| entry.group),
        // Order: the age is measured after `now`. A wait in between makes it seem older, never younger.
        started: entry.and_then(descendants::age).map(|age| now.saturating_sub(age)),
        at_rest: entry.is_none_or(|entry| entry.state != ProcessState::Alive),
    }
}

/// A process that has become a child.
pub(super) enum Observed {
    /// All that tells whose it is.
    Whole(Adoptee),
    /// It is in the midst of `execve(2)`, where `/proc` shows neither arguments nor environment.
    Executing(Adoptee),
}

impl Observed {
    /// Returns what there is to see.
    pub fn adoptee(self) -> Adoptee {
        match self {
            Self::Whole(adoptee) | Self::Executing(adoptee) => adoptee,
        }
    }
}

/// Returns what tells whose a process is that has become a child.
pub(super) fn observe(now: Time, pid: i32, run_id: RunId, alive: bool) -> Observed {
    let Some(pid) = Pid::new(pid.into()) else { return Observed::Whole(unknown(pid)) };
    let lineage = Lineage::of(pid).ok().flatten();
    let own = lineage.is_some_and(|lineage| lineage.run_id == run_id);
    let entry = if own { None } else { read_markers(pid) };
    let process = if alive { Process::open(pid).ok().flatten() } else { None };
    let adoptee = Adoptee {
        member: child(now, pid),
        session: getsid(Some(raw(pid))).map_or(0, nix::unistd::Pid::as_raw),
        lineage,
        child: entry.as_ref().and_then(|entry| marked_child(entry, run_id)),
        identity: process.map(|process| process.identity().clone()),
    };
    if entry.is_some_and(|entry| is_executing(&entry)) {
        Observed::Executing(adoptee)
    } else {
        Observed::Whole(adoptee)
    }
}

fn unknown(pid: i32) -> Adoptee {
    let member = Member { pid, start: 0, group: 0, started: None, at_rest: true };
    Adoptee { member, session: 0, lineage: None, child: None, identity: None }
}

/// Returns what the environment tells of a process without a lineage: where the hard limit leaves no room for
/// one, or the process has set its own.
fn read_markers(pid: Pid) -> Option<Entry> {
    let columns = Columns { arguments: true, markers: true, ..Columns::default() };
    let read = || table::read_one(pid, columns).ok().flatten();
    let entry = read()?;
    // Its `execve(2)` may have begun after the arguments were read. They show it now, or it is over.
    if has_markers(&entry) { Some(entry) } else { read() }
}

fn has_markers(entry: &Entry) -> bool {
    entry.environment != Environment::Read(Markers::default())
}

/// Returns the child that the environment names.
fn marked_child(entry: &Entry, run_id: RunId) -> Option<u64> {
    let Environment::Read(markers) = &entry.environment else { return None };
    markers.child.filter(|_| markers.is_of_run(run_id))
}

fn is_executing(entry: &Entry) -> bool {
    entry.is_alive() && entry.arguments == Arguments::default() && !has_markers(entry)
}

fn raw(pid: Pid) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(pid.as_raw())
}
