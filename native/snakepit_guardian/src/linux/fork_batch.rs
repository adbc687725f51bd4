//! Forks a batch of children through one short-lived helper process.
//!
//! A fork copies the table of descriptors, in which the guardian has one or two for each worker, and the
//! child closes every one of them: with a thousand workers, more work than all else that it does before
//! the gate. So the helper closes them once for the batch. It shares the guardian's memory, and the guardian
//! waits for it, as with `vfork(2)`; what it forks are children of the guardian (`CLONE_PARENT`).

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::wait::waitpid;
use nix::unistd;
use snakepit_core::Pid;
use snakepit_core::forked::Moment;
use snakepit_core::lineage::Lineage;
use snakepit_core::run_id::RunId;
use snakepit_guardian::ahead::BATCH;

use super::child::{self, ChildSetup};
use super::gate;
use super::setup::{self, ForkSettings};

/// For the helper, and for the children, which go on with their copy of it.
const STACK: usize = 64 * 1024;

/// A child that is to be forked, or has just been.
pub struct PendingChild {
    pub id: u64,
    /// Whether the BEAM waits for it.
    pub asked: bool,
    /// The guardian's end of the gate.
    pub gate: OwnedFd,
    child_gate: OwnedFd,
    /// The pid or the negative error, once it was tried.
    fork: Option<libc::c_int>,
    /// Around the fork.
    pub before: Moment,
    pub after: Moment,
}

impl PendingChild {
    pub fn new(id: u64, asked: bool) -> Result<Self, Errno> {
        let (gate, child_gate) = gate::pair()?;
        let now = Moment::now();
        Ok(Self { id, asked, gate, child_gate, fork: None, before: now, after: now })
    }

    /// Returns its pid, or why it has none; `None` if the fork was not tried.
    pub fn pid(&self) -> Option<Result<Pid, Errno>> {
        let fork = self.fork?;
        Some(Pid::new(fork.into()).ok_or(Errno::from_raw(-fork)))
    }
}

/// What the helper works on.
struct ForkBatch<'a> {
    children: &'a mut [PendingChild],
    /// The children's ends of the gates, in ascending order.
    gates: Vec<RawFd>,
    /// All other descriptors, where they have to be closed one by one.
    others: Vec<RawFd>,
    run_id: RunId,
    settings: ForkSettings,
}

/// `clone(2)` of the helper, which forks one child after the other, until a fork fails.
#[expect(clippy::large_stack_arrays, reason = "only the pages that are used exist")]
pub fn fork_all(children: &mut [PendingChild], run_id: RunId, settings: ForkSettings) {
    if children.is_empty() {
        return;
    }
    let mut gates: Vec<RawFd> = children.iter().map(|child| child.child_gate.as_raw_fd()).collect();
    gates.sort_unstable();
    let others = if settings.closes_ranges { Vec::new() } else { open_descriptors(&gates) };
    let mut batch = ForkBatch { children, gates, others, run_id, settings };
    // Not on the heap, of which children have no copy.
    let mut stack = [const { MaybeUninit::<u128>::uninit() }; STACK / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end.cast();
    // The signal is the one that the children will have.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: this process has one thread, which goes on when the helper has ended; until then stack and
    // batch are the helper's alone.
    let helper = unsafe { libc::clone(helper_main, top, flags, (&raw mut batch).cast()) };
    let failure = match Errno::result(helper) {
        Ok(pid) => {
            while waitpid(unistd::Pid::from_raw(pid), None) == Err(Errno::EINTR) {}
            // Killed before it has tried.
            Errno::ECHILD
        }
        Err(errno) => errno,
    };
    if let Some(first) = batch.children.first_mut() {
        first.fork.get_or_insert(-(failure as i32));
    }
}

/// The helper: as in a child, nothing here allocates or locks.
extern "C" fn helper_main(batch: *mut c_void) -> libc::c_int {
    // SAFETY: what `fork_all` has passed, while it waits. The rest are system calls on this process's own
    // table of descriptors, which is a copy, and on its own OOM score.
    unsafe {
        let batch = &mut *batch.cast::<ForkBatch>();
        close_all_but(&batch.gates);
        child::close_each(&batch.others, -1);
        if let Some(score) = batch.settings.oom_score {
            child::write_file(c"/proc/self/oom_score_adj".as_ptr(), score.as_ptr().cast());
        }
        let mut gates = [-1; BATCH];
        for (place, gate) in gates.iter_mut().zip(&batch.gates) {
            *place = *gate;
        }
        for child in batch.children.iter_mut() {
            let setup = ChildSetup {
                gates,
                gate: child.child_gate.as_raw_fd(),
                guardian: batch.settings.guardian,
                lineage: Lineage::new(batch.run_id, child.id).to_limit(),
                descriptors: batch.settings.descriptors,
                nice: batch.settings.nice,
            };
            child.before = Moment::now();
            let pid = fork(setup);
            child.after = Moment::now();
            child.fork = Some(pid);
            if pid < 0 {
                break;
            }
        }
        libc::_exit(0)
    }
}

/// Returns this process's descriptors, without standard input, output and error and without these.
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

/// `clone(2)` with `CLONE_PARENT`. Returns the pid of a child of the guardian's, or the negative error.
unsafe fn fork(setup: ChildSetup) -> libc::c_int {
    let flags = libc::CLONE_PARENT | libc::SIGCHLD;
    // Flags and stack, which is a copy of the same one; the other way round on s390.
    let (first, second) = if cfg!(target_arch = "s390x") { (0, flags) } else { (flags, 0) };
    // Not `fork(3)`, which in the child writes to pages that it shares with the guardian: each is copied
    // for it.
    // SAFETY: the helper has one thread, and the child calls nothing but `child::run`.
    unsafe {
        match libc::syscall(libc::SYS_clone, first, second, 0, 0, 0) {
            0 => child::run(setup),
            -1 => -*libc::__errno_location(),
            pid => libc::c_int::try_from(pid).unwrap_or(-libc::EINVAL),
        }
    }
}
