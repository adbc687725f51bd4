//! `/proc`, read through one directory descriptor per process.
//!
//! A descriptor of `/proc/<pid>` belongs to that process, not to the number: once the process is
//! gone, every read through it fails, also when the pid has been given away again. So one line of
//! the table never mixes two processes.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};

use crate::marker::Markers;
use crate::table::{Arguments, Columns, Entry, Environment};
use crate::{Pid, proc_text};

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
/// Enough to look things up below it, and cheaper: no file is opened.
const PLACE: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
const FILE: OFlag = OFlag::O_RDONLY.union(OFlag::O_CLOEXEC);

/// How much of a file is read. A process decides what the kernel shows as its environment and arguments
/// (`PR_SET_MM_MAP`), and may declare terabytes.
///
/// What `execve(2)` accepts of both together is 6 MiB, so of a real environment nothing is cut off.
const ENVIRONMENT_LIMIT: usize = 6 << 20;
/// Kept for each process of a pass. The kernel takes no longer argument.
const ARGUMENTS_LIMIT: usize = 128 << 10;
/// Of files that the kernel writes itself. A list of all pids that there can be is shorter.
const LIMIT: usize = 64 << 20;

/// Every process that can be seen, once. Those that vanish meanwhile are left out.
pub(crate) fn scan(columns: Columns) -> Result<Vec<Entry>, Errno> {
    let proc = open("/proc", DIRECTORY, Mode::empty())?;
    let mut listing = Dir::from_fd(proc.try_clone().map_err(|_| Errno::EMFILE)?)?;
    let mut buffer = Vec::with_capacity(8192);
    let mut entries = Vec::with_capacity(512);
    for item in listing.iter() {
        let item = item?;
        if !item.file_name().to_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        if let Some(entry) = read_entry(proc.as_fd(), item.file_name(), columns, &mut buffer)? {
            entries.push(entry);
        }
    }
    Ok(entries)
}

/// One process; `None` if it is gone or hidden from this user.
pub(crate) fn inspect(pid: Pid, columns: Columns) -> Result<Option<Entry>, Errno> {
    let proc = open("/proc", PLACE, Mode::empty())?;
    let name = CString::new(pid.to_string()).map_err(|_| Errno::EINVAL)?;
    read_entry(proc.as_fd(), &name, columns, &mut Vec::with_capacity(4096))
}

/// The directory of a process, through which its files are read with [`read_of`].
pub(crate) fn open_directory(pid: Pid) -> Result<OwnedFd, Errno> {
    open(format!("/proc/{pid}").as_str(), PLACE, Mode::empty())
}

/// Replaces `buffer` by the beginning of a file of a process, `limit` bytes at most.
pub(crate) fn read_of(
    process: &OwnedFd,
    name: &CStr,
    limit: usize,
    buffer: &mut Vec<u8>,
) -> Result<(), Errno> {
    read_start(process, name, limit.min(LIMIT), buffer)
}

/// Whether the process of a directory has not been reaped.
pub(crate) fn reads_stat(process: &OwnedFd) -> bool {
    read_file(process, c"stat", &mut Vec::with_capacity(512)).is_ok()
}

/// The soft limit of `RLIMIT_LOCKS`; `None` if it is unlimited or the process gone.
///
/// `prlimit(2)` reads it also of a process that `/proc` hides, but not of another user's; of that one
/// `/proc/<pid>/limits` tells.
pub(crate) fn lock_limit(pid: Pid) -> Result<Option<u64>, Errno> {
    // SAFETY: plain data, filled by the kernel.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    let (resource, nothing) = (libc::RLIMIT_LOCKS, std::ptr::null());
    // SAFETY: sets nothing, and writes to a local.
    if unsafe { libc::prlimit(pid.as_raw(), resource, nothing, &raw mut limit) } == 0 {
        return Ok((limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur));
    }
    let proc = open(format!("/proc/{pid}").as_str(), PLACE, Mode::empty());
    let mut buffer = Vec::with_capacity(2048);
    match proc.and_then(|process| read_file(&process, c"limits", &mut buffer)) {
        Ok(()) => Ok(proc_text::lock_limit(&buffer)),
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EACCES | Errno::EPERM) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn read_entry(
    proc: BorrowedFd,
    name: &CStr,
    columns: Columns,
    buffer: &mut Vec<u8>,
) -> Result<Option<Entry>, Errno> {
    match read_columns(proc, name, columns, buffer) {
        Ok(entry) => Ok(entry),
        // Vanished between the listing and the read, or hidden (`hidepid`).
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EACCES | Errno::EPERM) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn read_columns(
    proc: BorrowedFd,
    name: &CStr,
    columns: Columns,
    buffer: &mut Vec<u8>,
) -> Result<Option<Entry>, Errno> {
    let process = openat(proc, name, PLACE, Mode::empty())?;
    read_file(&process, c"stat", buffer)?;
    let Some(mut entry) = proc_text::stat(buffer) else { return Ok(None) };
    entry.settled = start_is_past(entry.start);
    // A leader that has ended or stopped says nothing of the other threads. One that has ended has no
    // memory left to read from either; they have.
    let mut source = process;
    let letter = proc_text::state_letter(buffer);
    if matches!(letter, Some(b'Z' | b'T' | b't')) && proc_text::thread_count(buffer) > 1 {
        let mut letters = Vec::new();
        for (thread, letter) in live_threads(&source, buffer)? {
            letters.push(letter);
            source = thread;
        }
        entry.state = proc_text::state_of_all(&letters);
    }
    let process = source;
    if columns.uid {
        read_file(&process, c"status", buffer)?;
        entry.uid = proc_text::real_uid(buffer);
    }
    if columns.arguments {
        read_start(&process, c"cmdline", ARGUMENTS_LIMIT, buffer)?;
        entry.arguments = Arguments::from_nul_separated(buffer);
    }
    if columns.markers {
        // Needs the right to trace the process; without it the process is still listed.
        entry.environment = match read_start(&process, c"environ", ENVIRONMENT_LIMIT, buffer) {
            Ok(()) => Environment::Read(Markers::from_environment(buffer)),
            Err(Errno::EACCES | Errno::EPERM) => Environment::Unreadable,
            // Since Linux 6.16 for what has no memory: a zombie, a kernel thread.
            Err(Errno::ESRCH) => Environment::Read(Markers::default()),
            Err(errno) => return Err(errno),
        };
    }
    Ok(Some(entry))
}

/// The threads that can run, with the letter of their state.
fn live_threads(process: &OwnedFd, buffer: &mut Vec<u8>) -> Result<Vec<(OwnedFd, u8)>, Errno> {
    let tasks = openat(process, c"task", DIRECTORY, Mode::empty())?;
    let mut listing = Dir::from_fd(tasks.try_clone().map_err(|_| Errno::EMFILE)?)?;
    let mut threads = Vec::new();
    for item in listing.iter() {
        let item = item?;
        if !item.file_name().to_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let Ok(thread) = openat(&tasks, item.file_name(), PLACE, Mode::empty()) else { continue };
        let read =
            read_file(&thread, c"stat", buffer).ok().and_then(|()| proc_text::state_letter(buffer));
        if let Some(letter) = read.filter(|letter| !matches!(letter, b'Z' | b'X')) {
            threads.push((thread, letter));
        }
    }
    Ok(threads)
}

/// Replaces `buffer` by a file that the kernel writes itself.
fn read_file(process: &OwnedFd, name: &CStr, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    read_start(process, name, LIMIT, buffer)
}

/// Replaces `buffer` by the beginning of a file, `limit` bytes at most.
fn read_start(
    process: &OwnedFd,
    name: &CStr,
    limit: usize,
    buffer: &mut Vec<u8>,
) -> Result<(), Errno> {
    let file = openat(process, name, FILE, Mode::empty())?;
    buffer.clear();
    loop {
        buffer.reserve(4096);
        let wanted = limit - buffer.len();
        let room = buffer.spare_capacity_mut();
        let length = room.len().min(wanted);
        // SAFETY: the pointer and length describe memory that `buffer` owns and nobody reads.
        let read = unsafe { libc::read(file.as_raw_fd(), room.as_mut_ptr().cast(), length) };
        match usize::try_from(read) {
            // Also when nothing more is wanted.
            Ok(0) => return Ok(()),
            // SAFETY: the kernel has just initialised this many bytes of the spare capacity.
            Ok(count) => unsafe { buffer.set_len(buffer.len() + count) },
            Err(_) if Errno::last() == Errno::EINTR => {}
            Err(_) => return Err(Errno::last()),
        }
    }
}

/// The children of a process, of all its threads; `None` where the kernel has no such lists
/// (`CONFIG_PROC_CHILDREN`). While they come and go some may be missing. None, if the process is hidden.
pub(crate) fn children_of(pid: Pid) -> Result<Option<Vec<i32>>, Errno> {
    let tasks = match open(format!("/proc/{pid}/task").as_str(), DIRECTORY, Mode::empty()) {
        Ok(tasks) => tasks,
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EACCES | Errno::EPERM) => {
            return Ok(Some(Vec::new()));
        }
        Err(errno) => return Err(errno),
    };
    let mut buffer = Vec::new();
    let mut children = Vec::new();
    let mut read = |thread: &CStr| -> Result<bool, Errno> {
        let Ok(thread) = openat(&tasks, thread, PLACE, Mode::empty()) else { return Ok(true) };
        match read_file(&thread, c"children", &mut buffer) {
            Ok(()) => children.extend(proc_text::pids(&buffer)),
            // The thread is there, and the file is not.
            Err(Errno::ENOENT) => return Ok(false),
            Err(Errno::ESRCH | Errno::EACCES | Errno::EPERM) => {}
            Err(errno) => return Err(errno),
        }
        Ok(true)
    };
    // Two links are the directory's own, the others are its threads.
    if nix::sys::stat::fstat(&tasks).is_ok_and(|stat| stat.st_nlink == 3) {
        let thread = CString::new(pid.to_string()).map_err(|_| Errno::EINVAL)?;
        return Ok(read(&thread)?.then_some(children));
    }
    let mut listing = Dir::from_fd(tasks.try_clone().map_err(|_| Errno::EMFILE)?)?;
    for item in listing.iter() {
        let item = item?;
        let name = item.file_name();
        if name.to_bytes().iter().all(u8::is_ascii_digit) && !read(name)? {
            return Ok(None);
        }
    }
    Ok(Some(children))
}

/// How long ago a process has started; at most a tick less.
pub(crate) fn age(start: u64) -> Option<Duration> {
    boot_time().map(|now| now.saturating_sub(Duration::from_millis(start.saturating_mul(10))))
}

/// How long it takes until [`start_is_past`].
pub(crate) fn until_past(start: u64) -> Duration {
    let end = Duration::from_millis(start.saturating_add(1).saturating_mul(10));
    boot_time().map_or(Duration::from_millis(10), |now| end.saturating_sub(now))
}

/// Whether the tick in which a process started is over: from then on no other process can start in
/// it.
pub(crate) fn start_is_past(start: u64) -> bool {
    boot_time().is_some_and(|now| tick(now) > start)
}

/// The start time of a process that was made between these two moments, in ticks, if that is one tick.
/// A microsecond on either side is for the kernel's own rounding.
pub(crate) fn start_between(before: Duration, after: Duration) -> Option<u64> {
    let margin = Duration::from_micros(1);
    let (first, last) = (tick(before.saturating_sub(margin)), tick(after + margin));
    (first == last).then_some(first)
}

/// `CLOCK_BOOTTIME`: the clock of `starttime`.
pub(crate) fn boot_time() -> Option<Duration> {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
    let (seconds, nanos) = (u64::try_from(now.tv_sec()).ok()?, u32::try_from(now.tv_nsec()).ok()?);
    Some(Duration::new(seconds, nanos))
}

/// Ticks of `starttime` are 1/100 s, whatever the kernel's own.
fn tick(time: Duration) -> u64 {
    time.as_secs() * 100 + u64::from(time.subsec_nanos() / 10_000_000)
}
