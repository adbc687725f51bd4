//! Everything that descends from a set of processes, whatever group or session it moved to.
//!
//! One pass reads the whole process table and closes over it from the roots: reading
//! `/proc/<pid>/children` instead misses entries while processes come and go. Passes repeat until
//! one finds nothing.
//!
//! A parent that dies hands its children to another process, and with that the trace that leads to
//! them ends, unless they carry a marker or the caller is the subreaper that inherits them.
//! So before anything is killed the tree is *frozen*: each member is stopped, once a `fork` that is under
//! way has returned or started over, until two passes in a row find no new member and all of them at rest.

use std::collections::{HashMap, HashSet};

use crate::process::Found;
use crate::settle::Settling;
use crate::table::{self, Columns, Entry, ProcessState};
use crate::{Error, Identity, Process, protect};

mod kill;

pub use kill::{KillReport, kill};

/// The processes that a tree descends from.
pub struct Roots<'a> {
    /// These very processes.
    pub identities: Vec<Identity>,
    /// And those of which this is true, given `columns` of the process table.
    pub select: &'a dyn Fn(&Entry) -> bool,
    /// What `select` needs to see.
    pub columns: Columns,
    /// Stop everything before killing anything. A subreaper does not need that: a process that loses its parent
    /// becomes its child.
    pub freeze: bool,
}

/// A member of a tree, held during one pass.
struct OpenMember {
    process: Process,
    state: ProcessState,
}

impl Roots<'_> {
    /// Returns the live members now, children before their parents. Waits for the end of a clock tick where
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

    /// Makes one pass over the process table. Each member is opened only while `visit` has it, so the number of descriptors does
    /// not limit the number of members.
    fn for_each_member(
        &self,
        mut visit: impl FnMut(OpenMember) -> Result<(), Error>,
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
            for root in candidates(&roots, entry) {
                if matches!(Process::reopen(root, None)?, Found::Same(_)) {
                    present.insert(entry.pid.as_raw());
                }
            }
        }
        let hidden = self.hidden(&listed)?;
        let unlisted = hidden.iter().map(|one| one.pid.as_raw()).collect();
        for entry in self.closure(&table, &present, &unlisted)? {
            if let Some(process) = self.confirm(entry, &roots)? {
                visit(OpenMember { process, state: entry.state })?;
            }
        }
        // Whether one that is hidden has come to rest cannot be seen.
        for one in hidden {
            if let Found::Same(process) = Process::reopen(one, None)? {
                visit(OpenMember { process, state: ProcessState::Uninterruptible })?;
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
            if pid_was_reused(entry)? {
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

    /// Opens the process of an entry; `None` if it is not the one that was listed.
    fn confirm(
        &self,
        entry: &Entry,
        roots: &HashMap<i32, Vec<&Identity>>,
    ) -> Result<Option<Process>, Error> {
        let is_listed = |process: &Process, now: &Entry| {
            // Same pid, same start time: on one clock tick that can be two processes. It is the one
            // that was listed if its kernel handle is a root's, or it carries the marker, or it has the
            // listed parent (then it descends from a root itself), or the tick had passed.
            let handles: Vec<_> =
                candidates(roots, entry).filter_map(|root| root.handle.as_ref()).collect();
            let own = process.identity().handle.as_ref();
            let known = own.is_some_and(|own| handles.contains(&own));
            let likely = handles.is_empty() && (entry.settled || now.parent == entry.parent);
            now.start == entry.start && (known || likely || (self.select)(now))
        };
        match Process::open_if(entry.pid, self.columns, is_listed) {
            Err(Error::Ambiguous(_)) => Ok(None),
            opened => opened,
        }
    }
}

/// Returns whether the pid of a listed process belongs to another one by now. If it changed hands while
/// the table was read, those that name it as their parent may be the other's.
fn pid_was_reused(entry: &Entry) -> Result<bool, Error> {
    let now = table::read_one(entry.pid, Columns::default())?;
    Ok(now.is_some_and(|now| now.start != entry.start))
}

/// Returns the roots that an entry may be. One of another start time is another process, which had this pid
/// before, and says nothing of it.
fn candidates<'r>(
    roots: &'r HashMap<i32, Vec<&Identity>>,
    entry: &Entry,
) -> impl Iterator<Item = &'r Identity> + use<'r> {
    let (pid, start) = (entry.pid.as_raw(), entry.start);
    // It may have been hidden when it was noted; then its handle tells.
    let fits = move |root: &&Identity| root.start == start || root.start == 0;
    roots.get(&pid).into_iter().flatten().copied().filter(fits)
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
