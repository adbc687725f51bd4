//! macOS: `libproc` and `sysctl(3)`. Type-checked only: nothing here has run yet.

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use libc::{c_int, pid_t};
use nix::errno::Errno;
use xxhash_rust::xxh3::xxh3_128;

use super::procargs::ProcArgs;
use crate::Pid;
use crate::marker::Markers;
use crate::table::{Arguments, Columns, Entry, Environment, ProcessState};

/// `ARG_MAX`: no process has more, and the kernel refuses a larger buffer. It answers a smaller
/// one with the tail of the strings instead of an error.
const ARGUMENTS_CAPACITY: usize = 1024 * 1024;

/// The argument of `proc_pidinfo` with which it finds zombies too.
const ZOMBIES_TOO: u64 = 1;

/// Every process that can be seen, once. Those that vanish meanwhile are left out.
pub(crate) fn scan(columns: Columns) -> Result<Vec<Entry>, Errno> {
    let pids = list_pids()?;
    let mut buffer = Vec::new();
    let mut entries = Vec::with_capacity(pids.len());
    // The kernel itself is in the list, as 0.
    for pid in pids.into_iter().filter_map(|pid| Pid::new(pid.into())) {
        entries.extend(read_entry(pid, columns, &mut buffer)?);
    }
    Ok(entries)
}

/// One process; `None` if it is gone.
pub(crate) fn inspect(pid: Pid, columns: Columns) -> Result<Option<Entry>, Errno> {
    read_entry(pid, columns, &mut Vec::new())
}

fn list_pids() -> Result<Vec<pid_t>, Errno> {
    // SAFETY: without a buffer it counts, with some room to spare.
    let mut capacity = count(unsafe { libc::proc_listallpids(std::ptr::null_mut(), 0) })?;
    loop {
        let mut pids: Vec<pid_t> = vec![0; capacity];
        let size = c_int::try_from(size_of_val(pids.as_slice())).map_err(|_| Errno::ENOMEM)?;
        // SAFETY: `pids` owns `size` bytes, and any number may be written there.
        let listed = count(unsafe { libc::proc_listallpids(pids.as_mut_ptr().cast(), size) })?;
        if listed < capacity {
            pids.truncate(listed);
            return Ok(pids);
        }
        // A full list may be a cut one.
        capacity *= 2;
    }
}

/// This process at least is always listed, so 0 is a failure.
fn count(result: c_int) -> Result<usize, Errno> {
    usize::try_from(result).ok().filter(|count| *count > 0).ok_or_else(Errno::last)
}

fn read_entry(pid: Pid, columns: Columns, buffer: &mut Vec<u8>) -> Result<Option<Entry>, Errno> {
    let Some(mut entry) = read_info(pid)? else { return Ok(None) };
    if !columns.uid {
        entry.uid = None;
    }
    // SAFETY: takes an integer. A zombie has no session any more.
    entry.session = unsafe { libc::getsid(pid.as_raw()) }.max(0);
    if columns.arguments || columns.markers {
        read_strings(&mut entry, columns, buffer);
    }
    // Order: what was read by pid in between is this process's if the pid is still its own.
    Ok(read_info(pid)?.filter(|now| now.start == entry.start).map(|_| entry))
}

/// The start time is 0 for another user's process: then it cannot be known again, nor signalled.
fn read_info(pid: Pid) -> Result<Option<Entry>, Errno> {
    // SAFETY: this flavor writes this structure, which is made of integers.
    let info = unsafe { pid_info::<libc::proc_bsdinfo>(pid, libc::PROC_PIDTBSDINFO) };
    let entry = match info {
        Ok(info) => {
            let micros = info.pbi_start_tvsec.saturating_mul(1_000_000);
            let start = micros.saturating_add(info.pbi_start_tvusec);
            let parents = (info.pbi_ppid, info.pbi_pgid);
            to_entry(pid, parents, info.pbi_status, start, info.pbi_ruid)
        }
        Err(Errno::ESRCH) => return Ok(None),
        Err(Errno::EPERM) => {
            let flavor = libc::PROC_PIDT_SHORTBSDINFO;
            // SAFETY: as above.
            let info = unsafe { pid_info::<libc::proc_bsdshortinfo>(pid, flavor) };
            match info {
                Ok(info) => {
                    let parents = (info.pbsi_ppid, info.pbsi_pgid);
                    to_entry(pid, parents, info.pbsi_status, 0, info.pbsi_ruid)
                }
                Err(Errno::ESRCH | Errno::EPERM) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        Err(errno) => return Err(errno),
    };
    Ok(Some(entry))
}

/// `proc_pidinfo(3)`.
///
/// # Safety
///
/// `T` must be the structure that the kernel writes for `flavor`, and any bits must make one.
unsafe fn pid_info<T>(pid: Pid, flavor: c_int) -> Result<T, Errno> {
    let mut info = MaybeUninit::<T>::zeroed();
    let size = c_int::try_from(size_of::<T>()).map_err(|_| Errno::EINVAL)?;
    let buffer = info.as_mut_ptr().cast();
    // SAFETY: `buffer` points to `size` bytes that `info` owns.
    let written = unsafe { libc::proc_pidinfo(pid.as_raw(), flavor, ZOMBIES_TOO, buffer, size) };
    if written == size {
        // SAFETY: the kernel wrote all of it, and the caller vouches for the type.
        Ok(unsafe { info.assume_init() })
    } else {
        Err(Errno::last())
    }
}

fn to_entry(pid: Pid, (parent, group): (u32, u32), status: u32, start: u64, uid: u32) -> Entry {
    Entry {
        pid,
        parent: parent.try_into().unwrap_or(0),
        group: group.try_into().unwrap_or(0),
        session: 0,
        // Every process that is not stopped counts as running here, also one that cannot be
        // interrupted.
        state: match status {
            libc::SZOMB => ProcessState::Zombie,
            libc::SSTOP => ProcessState::Stopped,
            _ => ProcessState::Alive,
        },
        start,
        settled: start_is_past(start),
        uid: Some(uid),
        arguments: Arguments::default(),
        environment: Environment::NotRead,
    }
}

/// Arguments and environment come together. Of another user's process, a zombie, and one that is
/// being replaced by `exec`, neither does; of the system's own programs only the arguments do.
fn read_strings(entry: &mut Entry, columns: Columns, buffer: &mut Vec<u8>) {
    let strings = read_procargs(entry.pid, buffer).ok().and_then(|()| ProcArgs::parse(buffer));
    if columns.arguments {
        if let Some(strings) = &strings {
            entry.arguments = Arguments::from_nul_separated(strings.arguments);
        }
    }
    if columns.markers {
        entry.environment = match strings {
            Some(strings) if !strings.environment.is_empty() => {
                Environment::Read(Markers::from_environment(strings.environment))
            }
            _ => Environment::Unreadable,
        };
    }
}

/// Replaces `buffer` by the result of `sysctl(KERN_PROCARGS2)`.
fn read_procargs(pid: Pid, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    let mut name = [libc::CTL_KERN, libc::KERN_PROCARGS2, pid.as_raw()];
    buffer.clear();
    buffer.reserve(ARGUMENTS_CAPACITY);
    let mut size = ARGUMENTS_CAPACITY;
    // SAFETY: `buffer` owns `size` bytes; the name has three parts; nothing is set.
    let result = unsafe {
        libc::sysctl(
            name.as_mut_ptr(),
            3,
            buffer.as_mut_ptr().cast(),
            &raw mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    Errno::result(result)?;
    // SAFETY: the kernel has just written `size` bytes, at most as many as there was room for.
    unsafe { buffer.set_len(size.min(ARGUMENTS_CAPACITY)) };
    Ok(())
}

/// Whether the microsecond in which a process started is over: from then on no other process can
/// start in it. A clock that was set back makes this false for a while, which is the safe side.
pub(crate) fn start_is_past(start: u64) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    start != 0 && now.as_micros() > u128::from(start)
}

/// `kern.bootsessionuuid`, condensed to sixteen bytes, all zeroes where it cannot be read.
///
/// Zeroes are an unknown boot, of which nothing that was recorded is known again.
pub(crate) fn boot_id() -> [u8; 16] {
    static BOOT_ID: OnceLock<[u8; 16]> = OnceLock::new();
    *BOOT_ID.get_or_init(|| read_boot_session().unwrap_or_default())
}

fn read_boot_session() -> Option<[u8; 16]> {
    let mut text = [0_u8; 64];
    let mut size = text.len();
    // SAFETY: the name ends with a NUL, `text` owns `size` bytes, and nothing is set.
    let result = unsafe {
        libc::sysctlbyname(
            c"kern.bootsessionuuid".as_ptr(),
            text.as_mut_ptr().cast(),
            &raw mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    let text = text.get(..size).filter(|text| result == 0 && !text.is_empty())?;
    Some(xxh3_128(text).to_be_bytes())
}

/// Neither can fail here.
#[allow(clippy::unnecessary_wraps, reason = "as on Linux")]
pub(crate) fn load_host_ids() -> Result<(), Errno> {
    Ok(())
}

/// There are no pid namespaces here: every pid means the same to everyone.
pub(crate) fn pid_namespace() -> u64 {
    0
}

/// There are none.
pub(crate) fn is_realtime_signal(_number: c_int) -> bool {
    false
}
