//! Memory that children do not need, so that forking them does not copy it; and memory that is not needed any
//! more.
//!
//! A fork copies the page tables of the heap, and after it each page of the heap that the guardian
//! writes to, one fault at a time. Children never touch it: their setup lies on the stack.

use std::ops::Range;

use libc::c_void;
use tracing::debug;

/// Address space for the heap to grow into, which costs nothing until it is used.
#[cfg(target_env = "gnu")]
const HEAP_RESERVE: usize = 16 * 1024 * 1024;
/// What libc keeps of a thread is less.
const THREAD: usize = 4096;

unsafe extern "C" {
    // The linker's names for where the program's code and constants begin, and where the code ends.
    static __executable_start: u8;
    static etext: u8;
}

/// `madvise(MADV_DONTNEED)` of the pages of the program's file that only the start has needed, half of them
/// libc's. What is needed again is mapped again, from the page cache.
pub fn release_startup_code() {
    // SAFETY: asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let start = (&raw const __executable_start).addr().next_multiple_of(page);
    let length = (&raw const etext).addr().saturating_sub(start);
    // SAFETY: read-only pages of a file: their content is the same when they come back.
    let result = unsafe {
        libc::madvise(std::ptr::without_provenance_mut(start), length, libc::MADV_DONTNEED)
    };
    debug!(result, bytes = length, "madvise(MADV_DONTNEED) of the pages that only the start needs");
}

/// `madvise(MADV_DONTFORK)` of the heap. Where that fails, children get copies that they do not use.
pub fn exclude_from_fork() {
    if cfg!(target_env = "gnu") {
        reserve();
    }
    let Some(heap) = heap() else { return };
    // SAFETY: the location of this thread's own variable.
    let errno = unsafe { libc::__errno_location() } as usize;
    // A statically linked program has its thread's variables at the start of it, and those children need.
    let heap = if heap.contains(&errno) { after_thread(errno)..heap.end } else { heap };
    let start = heap.start as *mut c_void;
    // SAFETY: the heap as the kernel lists it. Children read and write nothing in it.
    let result = unsafe { libc::madvise(start, heap.len(), libc::MADV_DONTFORK) };
    debug!(result, bytes = heap.len(), "madvise(MADV_DONTFORK) of the heap");
}

/// Returns the first page behind the thread's own memory: variables and, behind them, what libc keeps of it.
fn after_thread(variable: usize) -> usize {
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    (variable + THREAD).next_multiple_of(usize::try_from(page).unwrap_or(65_536))
}

/// `mallopt(3)`: the heap grows once and for all. What it grows by later is another mapping, and copied.
#[cfg(target_env = "gnu")]
fn reserve() {
    let reserve = HEAP_RESERVE.try_into().unwrap_or_default();
    // SAFETY: sets two numbers of the allocator's.
    unsafe {
        libc::mallopt(libc::M_TOP_PAD, reserve);
        libc::mallopt(libc::M_TRIM_THRESHOLD, reserve);
    }
    // More than it begins with, in pieces that are small enough to come from it.
    let pieces: Vec<Vec<u8>> = (0..4).map(|_| Vec::with_capacity(65_536)).collect();
    std::hint::black_box(&pieces);
}

#[cfg(not(target_env = "gnu"))]
fn reserve() {}

fn heap() -> Option<Range<usize>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("[heap]"))?;
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}
