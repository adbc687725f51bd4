//! Forks a whole litter of children by way of a process that lives for a moment.
//!
//! A fork copies the table of descriptors, in which the guardian has one or two for each worker, and the
//! child closes every one of them: with a thousand workers, more work than all else that it does before
//! the gate. So one process does it for the litter. It shares the guardian's memory, and the guardian
//! waits for it, as with `vfork`; what it forks are children of the guardian.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::waitpid;
use nix::unistd;
use snakepit_core::Pid;
use snakepit_core::lineage::Lineage;
use snakepit_core::newborn::Moment;
use snakepit_core::run_id::RunId;
use snakepit_guardian::ahead::BATCH;

use super::child::{self, Birth};
use super::setup::{self, Changes};

/// For the midwife, and for the children, which go on with their copy of it.
const STACK: usize = 64 * 1024;

/// A child that is to be forked, or has just been.
pub struct Expected {
    pub id: u64,
    /// Whether somebody waits for it.
    pub asked: bool,
    /// Our end of the gate, and the child's.
    pub gate: OwnedFd,
    theirs: OwnedFd,
    /// The pid or the negative error, once it was tried.
    fork: Option<libc::c_int>,
    /// Around the fork.
    pub before: Moment,
    pub after: Moment,
}

impl Expected {
    pub fn new(id: u64, asked: bool) -> Result<Self, Errno> {
        let (gate, theirs) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let now = Moment::now();
        Ok(Self { id, asked, gate, theirs, fork: None, before: now, after: now })
    }

    /// Its pid, or why it has none, if it was tried.
    pub fn pid(&self) -> Option<Result<Pid, Errno>> {
        let fork = self.fork?;
        Some(Pid::new(fork.into()).ok_or(Errno::from_raw(-fork)))
    }
}

/// What the midwife is told.
struct Orders<'a> {
    litter: &'a mut [Expected],
    /// The children's ends of the gates, in ascending order.
    gates: Vec<RawFd>,
    /// All other descriptors, where they have to be closed one by one.
    others: Vec<RawFd>,
    run_id: RunId,
    changes: Changes,
}

/// Forks one after the other, until one cannot be.
#[expect(clippy::large_stack_arrays, reason = "only the pages that are used exist")]
pub fn deliver(litter: &mut [Expected], run_id: RunId, changes: Changes) {
    if litter.is_empty() {
        return;
    }
    let mut gates: Vec<RawFd> = litter.iter().map(|expected| expected.theirs.as_raw_fd()).collect();
    gates.sort_unstable();
    let others = if changes.closes_ranges { Vec::new() } else { open_descriptors(&gates) };
    let mut orders = Orders { litter, gates, others, run_id, changes };
    // Not on the heap, of which children have no copy.
    let mut stack = [const { MaybeUninit::<u128>::uninit() }; STACK / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end.cast();
    // The signal is the one that the children will have.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: this process has one thread, which goes on when the midwife has ended; until then stack and
    // orders are the midwife's alone.
    let midwife = unsafe { libc::clone(attend, top, flags, (&raw mut orders).cast()) };
    let failure = match Errno::result(midwife) {
        Ok(pid) => {
            while waitpid(unistd::Pid::from_raw(pid), None) == Err(Errno::EINTR) {}
            // Killed before it has tried.
            Errno::ECHILD
        }
        Err(errno) => errno,
    };
    if let Some(first) = orders.litter.first_mut() {
        first.fork.get_or_insert(-(failure as i32));
    }
}

/// The midwife: as in a child, nothing here allocates or locks.
extern "C" fn attend(orders: *mut c_void) -> libc::c_int {
    // SAFETY: what `deliver` has passed, while it waits. The rest are system calls on this process's own
    // table of descriptors, which is a copy, and on its own OOM score.
    unsafe {
        let orders = &mut *orders.cast::<Orders>();
        close_all_but(&orders.gates);
        child::close_each(&orders.others, -1);
        if let Some(score) = orders.changes.oom_score {
            child::write_file(c"/proc/self/oom_score_adj".as_ptr(), score.as_ptr().cast());
        }
        let mut gates = [-1; BATCH];
        for (place, gate) in gates.iter_mut().zip(&orders.gates) {
            *place = *gate;
        }
        for expected in orders.litter.iter_mut() {
            let birth = Birth {
                gates,
                gate: expected.theirs.as_raw_fd(),
                guardian: orders.changes.guardian,
                lineage: Lineage::new(orders.run_id, expected.id).to_limit(),
                descriptors: orders.changes.descriptors,
                nice: orders.changes.nice,
            };
            expected.before = Moment::now();
            let pid = fork(birth);
            expected.after = Moment::now();
            expected.fork = Some(pid);
            if pid < 0 {
                break;
            }
        }
        libc::_exit(0)
    }
}

/// This process's descriptors, without standard input, output and error and without these.
fn open_descriptors(gates: &[RawFd]) -> Vec<RawFd> {
    setup::open_descriptors().into_iter().filter(|fd| *fd > 2 && !gates.contains(fd)).collect()
}

unsafe fn close_all_but(gates: &[RawFd]) {
    let mut first = 3;
    for gate in gates {
        // SAFETY: the caller's table of descriptors is a copy.
        unsafe { child::close_range(first, gate.unsigned_abs() - 1) };
        first = gate.unsigned_abs() + 1;
    }
    // SAFETY: as above.
    unsafe { child::close_range(first, libc::c_uint::MAX) };
}

/// The pid of a child of the guardian's, or the negative error.
unsafe fn fork(birth: Birth) -> libc::c_int {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // Flags and stack, which is a copy of the same one; the other way round on s390.
    let (first, second) = if cfg!(target_arch = "s390x") { (0, flags) } else { (flags, 0) };
    // Not `fork(3)`, which in the child writes to pages that it shares with the guardian: each is copied
    // for it.
    // SAFETY: the midwife has one thread, and the child calls nothing but `child::live`.
    unsafe {
        match libc::syscall(libc::SYS_clone, first, second, 0, 0, 0) {
            0 => child::live(birth),
            -1 => -*libc::__errno_location(),
            pid => libc::c_int::try_from(pid).unwrap_or(-libc::EINVAL),
        }
    }
}
