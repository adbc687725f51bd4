//! FreeBSD: `sysctl(3)`. Type-checked only: nothing here has run yet.
//!
//! The kernel keeps a process's start in microseconds since boot, and adds the time of boot before
//! it shows it. That sum changes for all processes whenever the clock is set, so the time of boot
//! is taken off again here.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use libc::{c_int, c_long, c_void, kinfo_proc, timeval};
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use crate::Pid;
use crate::marker::Markers;
use crate::table::{Arguments, Columns, Entry, Environment, ProcessState};

/// How often a list may have outgrown its buffer by the time that it is read.
const ATTEMPTS: usize = 8;

/// Every process that can be seen, once. Those that vanish meanwhile are left out.
pub(crate) fn scan(columns: Columns) -> Result<Vec<Entry>, Errno> {
    let mut buffer = Vec::new();
    let name = [libc::CTL_KERN, libc::KERN_PROC, libc::KERN_PROC_PROC];
    let ((), boot) = at_one_boot_time(|| sysctl_list(&name, &mut buffer))?;
    let mut entries = Vec::with_capacity(buffer.len() / size_of::<kinfo_proc>());
    for record in buffer.chunks_exact(size_of::<kinfo_proc>()) {
        // SAFETY: the record has the size of the structure, which is made of integers and of
        // pointers that nobody follows.
        let info: kinfo_proc = unsafe { record.as_ptr().cast::<kinfo_proc>().read_unaligned() };
        check_layout(&info)?;
        entries.extend(to_entry(&info, boot, columns));
    }
    let mut complete = Vec::with_capacity(entries.len());
    for entry in entries {
        complete.extend(read_strings(entry, columns, &mut buffer)?);
    }
    Ok(complete)
}

/// One process; `None` if it is gone or hidden from this user.
pub(crate) fn inspect(pid: Pid, columns: Columns) -> Result<Option<Entry>, Errno> {
    let Some((info, boot)) = read_info(pid.as_raw())? else { return Ok(None) };
    let Some(entry) = to_entry(&info, boot, columns) else { return Ok(None) };
    read_strings(entry, columns, &mut Vec::new())
}

/// With the time of boot that is contained in its start.
fn read_info(pid: libc::pid_t) -> Result<Option<(kinfo_proc, i64)>, Errno> {
    let name = [libc::CTL_KERN, libc::KERN_PROC, libc::KERN_PROC_PID, pid];
    // SAFETY: the structure is made of integers and of pointers that nobody follows.
    match at_one_boot_time(|| unsafe { sysctl_value::<kinfo_proc>(&name) }) {
        Ok((info, boot)) => check_layout(&info).map(|()| Some((info, boot))),
        Err(Errno::ESRCH | Errno::EPERM) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// `ENOTSUP` for a kernel with another layout of the structure: nothing in it can be relied on.
fn check_layout(info: &kinfo_proc) -> Result<(), Errno> {
    let size = usize::try_from(info.ki_structsize);
    if size == Ok(size_of::<kinfo_proc>()) { Ok(()) } else { Err(Errno::ENOTSUP) }
}

/// `None` for the kernel itself, which is process 0.
fn to_entry(info: &kinfo_proc, boot: i64, columns: Columns) -> Option<Entry> {
    let start = u64::try_from(micros(&info.ki_start) - boot).ok()?;
    Some(Entry {
        pid: Pid::new(info.ki_pid.into())?,
        parent: info.ki_ppid,
        group: info.ki_pgid,
        session: info.ki_sid,
        state: match info.ki_stat {
            libc::SZOMB => ProcessState::Zombie,
            libc::SSTOP => ProcessState::Stopped,
            libc::SSLEEP if info.ki_tdflags & c_long::from(libc::TDF_SINTR) == 0 => {
                ProcessState::Uninterruptible
            }
            _ => ProcessState::Alive,
        },
        start,
        settled: start_is_past(start),
        uid: columns.uid.then_some(info.ki_ruid),
        arguments: Arguments::default(),
        environment: Environment::NotRead,
    })
}

/// Adds what is not in the table itself; `None` if the process is gone by then.
fn read_strings(
    mut entry: Entry,
    columns: Columns,
    buffer: &mut Vec<u8>,
) -> Result<Option<Entry>, Errno> {
    if !(columns.arguments || columns.markers) {
        return Ok(Some(entry));
    }
    let pid = entry.pid.as_raw();
    let name = |what| [libc::CTL_KERN, libc::KERN_PROC, what, pid];
    if columns.arguments && sysctl_list(&name(libc::KERN_PROC_ARGS), buffer).is_ok() {
        entry.arguments = Arguments::from_nul_separated(buffer);
    }
    if columns.markers {
        // Needs the right to trace the process; without it the process is still listed.
        entry.environment = match sysctl_list(&name(libc::KERN_PROC_ENV), buffer) {
            Ok(()) => Environment::Read(Markers::from_environment(buffer)),
            Err(_) => Environment::Unreadable,
        };
    }
    // Order: what was read by pid in between is this process's if the pid is still its own.
    let now = read_info(pid)?.and_then(|(info, boot)| to_entry(&info, boot, columns));
    Ok(now.filter(|now| now.start == entry.start).map(|_| entry))
}

/// Whether the microsecond in which a process started is over: from then on no other process can
/// start in it. `CLOCK_UPTIME` is the clock of the start.
pub(crate) fn start_is_past(start: u64) -> bool {
    let Ok(now) = clock_gettime(ClockId::CLOCK_UPTIME) else { return false };
    i128::from(now.tv_sec()) * 1_000_000 + i128::from(now.tv_nsec()) / 1000 > i128::from(start)
}

/// FreeBSD gives a boot no name. But the kernel's own process starts so many microseconds after
/// the clock began to run, hardly ever as many twice, and the number stays when the clock is set.
///
/// Where process 0 is hidden, in a jail for example, the time of boot has to do. It changes when
/// the clock is set, and what was recorded before then looks like another boot's: it is not
/// signalled. That is the safe mistake. To take another boot for this one could kill.
pub(crate) fn boot_id() -> [u8; 16] {
    static BOOT_ID: OnceLock<[u8; 16]> = OnceLock::new();
    *BOOT_ID.get_or_init(|| {
        let (source, number) = match read_info(0) {
            Ok(Some((kernel, boot))) => (1_u64, micros(&kernel.ki_start) - boot),
            _ => (2, boot_time().unwrap_or_default()),
        };
        let mut id = [0; 16];
        id[..8].copy_from_slice(&source.to_be_bytes());
        id[8..].copy_from_slice(&number.to_be_bytes());
        id
    })
}

/// Neither can fail here.
#[allow(clippy::unnecessary_wraps, reason = "as on Linux")]
pub(crate) fn load_host_ids() -> Result<(), Errno> {
    Ok(())
}

/// The number of the jail, 0 outside of jails. Pids are the same inside and outside, but a jail
/// that was started anew has another number.
pub(crate) fn pid_namespace() -> u64 {
    static JAIL: OnceLock<u64> = OnceLock::new();
    *JAIL.get_or_init(|| {
        let own = read_info(Pid::current().as_raw()).ok().flatten();
        own.and_then(|(info, _)| u64::try_from(info.ki_jid).ok()).unwrap_or(0)
    })
}

/// `SIGRTMIN` and `SIGRTMAX`, which `libc` does not have here.
pub(crate) fn is_realtime_signal(number: c_int) -> bool {
    (65..=126).contains(&number)
}

/// Reads again if the clock was set meanwhile.
fn at_one_boot_time<T>(mut read: impl FnMut() -> Result<T, Errno>) -> Result<(T, i64), Errno> {
    loop {
        let before = boot_time()?;
        let value = read()?;
        if boot_time()? == before {
            return Ok((value, before));
        }
    }
}

/// In microseconds of the clock as it is set now.
fn boot_time() -> Result<i64, Errno> {
    // SAFETY: the structure is made of integers.
    let time = unsafe { sysctl_value::<timeval>(&[libc::CTL_KERN, libc::KERN_BOOTTIME]) }?;
    Ok(micros(&time))
}

fn micros(time: &timeval) -> i64 {
    time.tv_sec * 1_000_000 + time.tv_usec
}

/// A value of one size.
///
/// # Safety
///
/// Any bits must make a `T`.
unsafe fn sysctl_value<T>(name: &[c_int]) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut size = size_of::<T>();
    // SAFETY: `value` owns `size` bytes.
    unsafe { sysctl(name, value.as_mut_ptr().cast(), &mut size) }?;
    if size == size_of::<T>() {
        // SAFETY: the kernel wrote all of it, and the caller vouches for the type.
        Ok(unsafe { value.assume_init() })
    } else {
        Err(Errno::ENOTSUP)
    }
}

/// Replaces `buffer` by a value of any size.
fn sysctl_list(name: &[c_int], buffer: &mut Vec<u8>) -> Result<(), Errno> {
    for _ in 0..ATTEMPTS {
        let mut size = 0;
        // SAFETY: without a buffer it says how large one should be.
        unsafe { sysctl(name, std::ptr::null_mut(), &mut size) }?;
        buffer.clear();
        buffer.reserve(size + size / 8);
        size = buffer.capacity();
        // SAFETY: `buffer` owns `size` bytes.
        match unsafe { sysctl(name, buffer.as_mut_ptr().cast(), &mut size) } {
            Ok(()) => {
                // SAFETY: the kernel has just written `size` bytes, at most what there was room for.
                unsafe { buffer.set_len(size) };
                return Ok(());
            }
            Err(Errno::ENOMEM) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::ENOMEM)
}

/// # Safety
///
/// `value` must be null or valid for writes of `size` bytes.
unsafe fn sysctl(name: &[c_int], value: *mut c_void, size: &mut usize) -> Result<(), Errno> {
    let parts = name.len().try_into().map_err(|_| Errno::EINVAL)?;
    // SAFETY: the name has that many parts, nothing is set, and the caller vouches for `value`.
    let result = unsafe { libc::sysctl(name.as_ptr(), parts, value, size, std::ptr::null(), 0) };
    Errno::result(result).map(drop)
}
