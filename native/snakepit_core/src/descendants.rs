//! The children of this very process, and what is below them.
//!
//! A parent that has one thread and reaps its children itself knows them exactly. Its own list,
//! `/proc/self/task/<tid>/children`, loses an entry only when it waits for that child, and the children
//! of a process that dies below a subreaper are added at the end before the death can be waited for. And
//! the pid of a child cannot change hands before the child is reaped, so nothing has to be compared before
//! it is signalled.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::time::Duration;

use nix::errno::Errno;

use crate::process::Delivery;
use crate::table::{self, Columns, Entry};
use crate::{Error, Pid, Signal, os, proc_text, protect};

/// The list of this process's own children.
#[derive(Debug)]
pub struct OwnChildren {
    /// `None` where the kernel has no such list: then the process table is searched.
    file: Option<File>,
    text: Vec<u8>,
}

impl OwnChildren {
    /// Opens `/proc/self/task/<tid>/children` of this thread, which must be the only one.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the list cannot be opened for any other reason than that there is none.
    pub fn open() -> Result<Self, Error> {
        let own = Pid::current();
        let file = match File::open(format!("/proc/{own}/task/{own}/children")) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(Error::io("list of children", &error)),
        };
        Ok(Self { file, text: Vec::new() })
    }

    /// Whether the kernel keeps such lists.
    pub fn is_listed(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the pids of the children that there are now. If no child was reaped since the last time,
    /// `only_new` leaves out those that were there then, which costs the kernel next to nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Os`].
    pub fn read(&mut self, only_new: bool) -> Result<Vec<i32>, Error> {
        let Some(file) = &mut self.file else { return search_table() };
        self.text.clear();
        // Children are added at the end, and the file goes on where it was read to.
        let begin = if only_new { Ok(0) } else { file.seek(SeekFrom::Start(0)) };
        begin
            .and_then(|_| file.read_to_end(&mut self.text))
            .map_err(|error| Error::io("list of children", &error))?;
        Ok(proc_text::pids(&self.text).collect())
    }
}

fn search_table() -> Result<Vec<i32>, Error> {
    let own = Pid::current().as_raw();
    let table = table::read(Columns::default())?;
    Ok(table.iter().filter(|entry| entry.parent == own).map(|entry| entry.pid.as_raw()).collect())
}

/// `kill(2)` of a child that this process has not reaped: nobody else can have its pid. Needs no
/// descriptor, so it works also where there is none left.
///
/// # Errors
///
/// [`Error::Signal`] if the kernel refuses.
pub fn signal_child(child: Pid, signal: Signal) -> Result<Delivery, Error> {
    protect::process(child)?;
    kill(child, child.as_raw(), signal)
}

/// `kill(2)` of the group that a child of this process leads, as the leader of a session always
/// does. While it has not been reaped neither its pid nor the group can be another's.
///
/// # Errors
///
/// [`Error::Signal`] if the kernel refuses for every member.
pub fn signal_group(child: Pid, signal: Signal) -> Result<Delivery, Error> {
    protect::group(child)?;
    kill(child, -child.as_raw(), signal)
}

#[expect(clippy::disallowed_methods, reason = "an unreaped child, or its group")]
fn kill(child: Pid, target: libc::pid_t, signal: Signal) -> Result<Delivery, Error> {
    // SAFETY: integers only.
    let result = unsafe { libc::kill(target, signal.as_raw()) };
    delivery(child, signal, Errno::result(result).map(drop))
}

fn delivery(pid: Pid, signal: Signal, result: Result<(), Errno>) -> Result<Delivery, Error> {
    match result {
        Ok(()) => Ok(Delivery::Sent),
        Err(Errno::ESRCH) => Ok(Delivery::Gone),
        Err(errno) => Err(Error::Signal { pid, signal, errno }),
    }
}

/// A process below a child, held: what is sent to it reaches it or nobody.
#[derive(Debug)]
pub struct Descendant {
    reference: os::Reference,
    /// Its line of the process table.
    pub entry: Entry,
}

impl Descendant {
    /// As [`crate::Process::signal`].
    ///
    /// # Errors
    ///
    /// As for [`crate::Process::signal`].
    pub fn signal(&self, signal: Signal) -> Result<Delivery, Error> {
        let pid = self.reference.pid();
        protect::process(pid)?;
        delivery(pid, signal, self.reference.send(signal))
    }
}

/// Returns how long ago the process of an entry was started.
pub fn age(entry: &Entry) -> Option<Duration> {
    os::age(entry.start)
}

/// Returns everything below these children, parents first, as far as it can be seen while it may change.
/// Those for which there is no descriptor are left out.
pub fn find(roots: &[Pid]) -> Vec<Descendant> {
    let mut found: Vec<Descendant> = Vec::new();
    let mut lists = Lists::default();
    for root in roots {
        for pid in lists.children_of(*root) {
            found.extend(open_child(pid, *root));
        }
    }
    let mut next = 0;
    while next < found.len() {
        let parent = found[next].reference.pid();
        let children: Vec<Descendant> = lists
            .children_of(parent)
            .into_iter()
            .filter_map(|pid| open_child(pid, parent))
            .collect();
        // Order: after its children were read. If the parent still has its pid, they were its own.
        if found[next].reference.holds_its_pid() {
            found.extend(children);
        }
        next += 1;
    }
    found
}

/// `pidfd_open(2)`; `None` if the process does not have this parent.
fn open_child(pid: i32, parent: Pid) -> Option<Descendant> {
    let pid = Pid::new(pid.into())?;
    let reference = os::Reference::open(pid).ok()??;
    let entry = os::inspect(pid, Columns::default()).ok()??;
    // Order: read while the process was held, so what was read is its own if it still has its pid.
    let same = entry.parent == parent.as_raw() && reference.holds_its_pid();
    same.then_some(Descendant { reference, entry })
}

/// Looks up the children of any process: from the kernel's lists, or from one pass over the process table.
#[derive(Default)]
pub(crate) struct Lists {
    table: Option<HashMap<i32, Vec<i32>>>,
}

impl Lists {
    pub(crate) fn children_of(&mut self, pid: Pid) -> Vec<i32> {
        if self.table.is_none() {
            match os::children_of(pid) {
                Ok(Some(children)) => return children,
                Ok(None) => self.table = Some(children_by_parent()),
                Err(_) => return Vec::new(),
            }
        }
        let table = self.table.as_ref();
        table.and_then(|table| table.get(&pid.as_raw())).cloned().unwrap_or_default()
    }
}

fn children_by_parent() -> HashMap<i32, Vec<i32>> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in table::read(Columns::default()).unwrap_or_default() {
        children.entry(entry.parent).or_default().push(entry.pid.as_raw());
    }
    children
}
