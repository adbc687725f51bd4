//! Which processes there are: the guardian's own children, and what is below them.

use nix::unistd::{getpgid, getsid};
use snakepit_core::descendants::{self, Descendant};
use snakepit_core::lineage::Lineage;
use snakepit_core::run_id::RunId;
use snakepit_core::table::{self, Columns, Entry, Environment, ProcessState};
use snakepit_core::{Pid, Process};
use snakepit_guardian::Event;
use snakepit_guardian::event::{Adoptee, Member, Purpose, Time};

use super::shell::Shell;

impl Shell {
    /// Reads the list of children, and dispatches [`Event::Adopted`] for each in it that is not known.
    pub(super) fn list(&mut self) {
        let only_new = !std::mem::take(&mut self.reaped_since_list);
        let Ok(pids) = self.own_children.read(only_new) else {
            self.reaped_since_list = true;
            self.dispatch(Event::ListFailed);
            return;
        };
        for pid in pids {
            if !self.machine.knows(pid) {
                self.dispatch(Event::Adopted(observe(self.now(), pid, self.run_id, true)));
            }
        }
        self.dispatch(Event::Listed);
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

/// Returns what tells whose a process is that has become a child.
pub(super) fn observe(now: Time, pid: i32, run_id: RunId, alive: bool) -> Adoptee {
    let Some(pid) = Pid::new(pid.into()) else { return unknown(pid) };
    let lineage = Lineage::of(pid).ok().flatten();
    let own = lineage.is_some_and(|lineage| lineage.run_id == run_id);
    let marked = if own { None } else { marked_child(pid, run_id) };
    let process = if alive { Process::open(pid).ok().flatten() } else { None };
    Adoptee {
        member: child(now, pid),
        session: getsid(Some(raw(pid))).map_or(0, nix::unistd::Pid::as_raw),
        lineage,
        child: marked,
        identity: process.map(|process| process.identity().clone()),
    }
}

fn unknown(pid: i32) -> Adoptee {
    let member = Member { pid, start: 0, group: 0, started: None, at_rest: true };
    Adoptee { member, session: 0, lineage: None, child: None, identity: None }
}

/// Returns the child that the environment names, for a process without a lineage: where the hard limit
/// leaves no room for one, or the process has set its own.
fn marked_child(pid: Pid, run_id: RunId) -> Option<u64> {
    let columns = Columns { markers: true, ..Columns::default() };
    let entry = table::read_one(pid, columns).ok().flatten()?;
    let Environment::Read(markers) = entry.environment else { return None };
    markers.child.filter(|_| markers.is_of_run(run_id))
}

fn raw(pid: Pid) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(pid.as_raw())
}
