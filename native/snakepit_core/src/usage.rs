//! What the processes of one tree use: processor time, memory, threads, descriptors, input and output.
//!
//! The kernel is asked about the tree alone, from its roots down, and not about every process of the host. A
//! process is read through one descriptor of its directory in `/proc`, which belongs to it and not to its pid. So
//! one row never mixes two processes. What comes and goes during the pass may be missing.

use std::os::fd::OwnedFd;

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat};

use crate::descendants::Lists;
use crate::table::{Arguments, Entry};
use crate::{Pid, os, proc_text};

/// Microseconds in the kernel's unit of processor time.
const TICK_US: u64 = 10_000;
/// How much of a command line is read.
const ARGUMENTS_LIMIT: usize = 4096;

/// A process that everything else of the tree descends from.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    /// Its pid.
    pub pid: Pid,
    /// When it started, by which it is told from a later one with its pid; 0 if that is not known.
    pub start: u64,
}

/// What to read that takes longer than the rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Details {
    /// The share of memory that counts for a process alone. The kernel looks at each of its pages for that.
    pub proportional: bool,
    /// The beginning of the command line.
    pub arguments: bool,
}

/// What one process uses. `None` is what this user may not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Its pid.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// What it calls itself.
    pub name: Vec<u8>,
    /// Its command line, if asked for.
    pub arguments: Vec<Vec<u8>>,
    /// Whether it can still run: one that has ended and was not waited for has counted its time.
    pub alive: bool,
    /// Microseconds of processor time in user mode, of the children that it has waited for too.
    pub user_us: u64,
    /// The same in the kernel.
    pub system_us: u64,
    /// Its threads.
    pub threads: u64,
    /// Memory that is in RAM.
    pub rss_bytes: u64,
    /// Of that, what it shares counts in part, if asked for.
    pub pss_bytes: Option<u64>,
    /// Open descriptors.
    pub descriptors: Option<u64>,
    /// Input and output, of the children that it has waited for too.
    pub io: Option<Io>,
}

/// Bytes of input and output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// Read by system calls, from files, pipes and terminals.
    pub read: u64,
    /// Written by system calls.
    pub written: u64,
    /// Fetched from storage.
    pub storage_read: u64,
    /// Sent to storage, or about to be.
    pub storage_written: u64,
}

/// Returns what the roots and everything below them use, parents first.
pub fn of_tree(roots: &[Root], details: Details) -> Vec<ProcessUsage> {
    let mut lists = Lists::default();
    let mut rows = Vec::new();
    let mut next: Vec<(Pid, Expected)> =
        roots.iter().rev().map(|root| (root.pid, Expected::Start(root.start))).collect();
    while let Some((pid, expected)) = next.pop() {
        let Some((process, entry, row)) = read(pid, expected, details) else { continue };
        let children = lists.children_of(pid);
        // Order: after its children were read. If it is still there, they were its own.
        if !children.is_empty() && os::reads_stat(&process) {
            let parent = entry.pid.as_raw();
            let pids = children.into_iter().rev().filter_map(|child| Pid::new(child.into()));
            next.extend(pids.map(|child| (child, Expected::Parent(parent))));
        }
        rows.push(row);
    }
    rows
}

/// What tells a process from another one with its pid.
#[derive(Clone, Copy)]
enum Expected {
    Start(u64),
    Parent(i32),
}

impl Expected {
    fn is_met(self, entry: &Entry) -> bool {
        match self {
            Self::Start(start) => start == 0 || entry.start == start,
            Self::Parent(parent) => entry.parent == parent,
        }
    }
}

fn read(pid: Pid, expected: Expected, details: Details) -> Option<(OwnedFd, Entry, ProcessUsage)> {
    let process = os::open_directory(pid).ok()?;
    let mut buffer = Vec::with_capacity(4096);
    os::read_of(&process, c"stat", usize::MAX, &mut buffer).ok()?;
    let entry = proc_text::stat(&buffer).filter(|entry| expected.is_met(entry))?;
    let mut row = parse_stat(&buffer)?;
    (row.pid, row.parent, row.alive) = (entry.pid.as_raw(), entry.parent, entry.is_alive());
    if !row.alive {
        row.threads = 0;
        return Some((process, entry, row));
    }
    row.descriptors = descriptors(&process);
    if os::read_of(&process, c"io", usize::MAX, &mut buffer).is_ok() {
        row.io = parse_io(&buffer);
    }
    if details.proportional
        && os::read_of(&process, c"smaps_rollup", usize::MAX, &mut buffer).is_ok()
    {
        row.pss_bytes = field(&buffer, b"Pss:").map(|kilobytes| kilobytes * 1024);
    }
    if details.arguments && os::read_of(&process, c"cmdline", ARGUMENTS_LIMIT, &mut buffer).is_ok()
    {
        let arguments = Arguments::from_nul_separated(&buffer);
        row.arguments = arguments.iter().map(<[u8]>::to_vec).collect();
    }
    Some((process, entry, row))
}

/// Since Linux 6.2 the size of the directory says how many there are; before, it is 0 and they are counted.
fn descriptors(process: &OwnedFd) -> Option<u64> {
    let size = fstatat(process, c"fd", AtFlags::empty()).ok()?.st_size;
    if size > 0 {
        return u64::try_from(size).ok();
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut listing = Dir::from_fd(openat(process, c"fd", flags, Mode::empty()).ok()?).ok()?;
    let is_number = |name: &[u8]| name.iter().all(u8::is_ascii_digit);
    let found = listing.iter().flatten().filter(|one| is_number(one.file_name().to_bytes()));
    Some(found.count() as u64)
}

/// The name and the numbers of `stat` that say what is used.
pub fn parse_stat(line: &[u8]) -> Option<ProcessUsage> {
    let open = line.iter().position(|byte| *byte == b'(')?;
    let close = line.iter().rposition(|byte| *byte == b')').filter(|close| *close > open)?;
    let mut fields = line.get(close + 1..)?.trim_ascii().split(|byte| *byte == b' ');
    let mut number = |skip: usize| -> Option<u64> {
        let value: i64 = std::str::from_utf8(fields.nth(skip)?).ok()?.parse().ok()?;
        Some(u64::try_from(value).unwrap_or_default())
    };
    let (user, system) = (number(11)?, number(0)?);
    let (children_user, children_system) = (number(0)?, number(0)?);
    let threads = number(2)?;
    let pages = number(3)?;
    let us = |own: u64, children: u64| own.saturating_add(children).saturating_mul(TICK_US);
    Some(ProcessUsage {
        name: line.get(open + 1..close)?.to_vec(),
        user_us: us(user, children_user),
        system_us: us(system, children_system),
        threads,
        rss_bytes: pages.saturating_mul(page_size()),
        ..ProcessUsage::default()
    })
}

/// The numbers of `io`; `None` if one of them is missing.
pub fn parse_io(text: &[u8]) -> Option<Io> {
    Some(Io {
        read: field(text, b"rchar:")?,
        written: field(text, b"wchar:")?,
        storage_read: field(text, b"read_bytes:")?,
        storage_written: field(text, b"write_bytes:")?,
    })
}

/// The number behind a label that begins a line.
fn field(text: &[u8], label: &[u8]) -> Option<u64> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let rest = lines.find_map(|line| line.strip_prefix(label))?;
    let digits = rest.trim_ascii_start().split(|byte| *byte == b' ').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn page_size() -> u64 {
    // SAFETY: an integer only.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_behind_the_name_whatever_that_is() {
        let tail = "S 17 42 43 0 -1 4194304 1 2 3 4 500 60 7 8 20 0 3 0 987654 1 25 3";
        for name in ["sleep", ") R 1 1 1", "\n)\n(", ""] {
            let row = parse_stat(format!("4711 ({name}) {tail}\n").as_bytes()).unwrap();
            assert_eq!(row.name, name.as_bytes());
            assert_eq!((row.user_us, row.system_us), (5_070_000, 680_000));
            assert_eq!((row.threads, row.rss_bytes), (3, 25 * page_size()));
        }
        assert_eq!(parse_stat(b"4711 (x) S 17 42"), None);
        assert_eq!(parse_stat(b")("), None);
    }

    #[test]
    fn input_and_output_is_all_there_or_not_at_all() {
        let text = b"rchar: 1\nwchar: 2\nsyscr: 9\nsyscw: 9\nread_bytes: 3\nwrite_bytes: 4\n";
        let io = Io { read: 1, written: 2, storage_read: 3, storage_written: 4 };
        assert_eq!(parse_io(text), Some(io));
        assert_eq!(parse_io(&text[..40]), None);
    }
}
