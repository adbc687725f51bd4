//! The child, from `fork` to `execve`: nothing here allocates, locks, or calls into Rust's runtime. It
//! has no heap: see `heap`.
//!
//! Before the gate it becomes what every child is: alone with its gate, leader of a session, with
//! default signals, marked with its lineage, and dead as soon as the guardian is. Behind the gate it
//! becomes what it was asked to be. If the gate closes instead of opening it exits: it has run
//! nothing.

// Numbers cross from Rust's types to the kernel's here; each was checked when the image was built.
#![allow(clippy::cast_possible_truncation)]

use std::os::fd::RawFd;

use snakepit_core::wire::Step;
use snakepit_guardian::ahead::BATCH;

use super::gate::{self, MAX_DESCRIPTORS, ROOM, check, fail, fail_with};
use super::image::{Header, Limit};
use super::setup::{IGNORED, set_disposition};

/// Where the gate is while descriptors are put into place: above all of those.
const GATE_PLACE: RawFd = 10;
/// What a child has to know when it is forked.
#[derive(Clone, Copy)]
pub struct ChildSetup {
    /// The child's end of the gate.
    pub gate: RawFd,
    /// Those of the whole batch, copies of which this child has; -1 for none.
    pub gates: [RawFd; BATCH],
    /// Who its parent must be.
    pub guardian: libc::pid_t,
    /// The soft limit that marks its descendants.
    pub lineage: u64,
    /// What the BEAM's own limit of descriptors was.
    pub descriptors: libc::rlimit,
    /// What the BEAM's own priority was, if the guardian has another.
    pub nice: Option<i32>,
}

/// Sets itself up, waits at its gate, and `execve(2)`s the program or exits.
///
/// # Safety
///
/// Only in a process that was just forked from one with a single thread.
pub unsafe fn run(setup: ChildSetup) -> ! {
    // SAFETY: all of these are plain system calls on this process's own state, with pointers to
    // memory that outlives them.
    unsafe {
        // Order: before anything else. A copy of a sibling's gate must not hold it open.
        if !close_range(3, setup.gate.unsigned_abs() - 1) {
            close_each(&setup.gates, setup.gate);
        }
        close_range(setup.gate.unsigned_abs() + 1, libc::c_uint::MAX);
        libc::setsid();
        die_with(setup.guardian);
        reset_signals();
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const setup.descriptors);
        if let Some(nice) = setup.nice {
            libc::setpriority(libc::PRIO_PROCESS, 0, nice);
        }
        mark(setup.lineage);

        // Written to now, so that the pages are there when it is needed.
        let mut room = [0_u64; ROOM / size_of::<u64>()];
        std::hint::black_box(&mut room);
        let received = gate::receive(setup.gate, &mut room);
        let fds = received.fds;
        let image = gate::load_image(setup.gate, &received, &mut room);
        let header = &*image;
        let gate = libc::fcntl(setup.gate, libc::F_DUPFD_CLOEXEC, GATE_PLACE);
        if gate < 0 {
            fail(setup.gate, Step::Descriptors);
        }
        place_descriptors(gate, &fds[..3 + usize::from(header.has_lifeline())]);
        prepare(gate, image, header);
        // Order: last, because a change of user clears it.
        die_with(setup.guardian);
        execute(gate, image, header)
    }
}

/// `dup2(2)` of input, output, error and perhaps the lifeline to their places. All `fds` are above 2.
unsafe fn place_descriptors(gate: RawFd, fds: &[RawFd]) {
    // SAFETY: descriptor numbers only.
    unsafe {
        let mut high = [-1; MAX_DESCRIPTORS];
        for (slot, fd) in high.iter_mut().zip(fds) {
            // Out of the way of 0 to 3 first: one of them may be another's target.
            *slot = libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, GATE_PLACE + 1);
            if *slot < 0 {
                fail(gate, Step::Descriptors);
            }
        }
        // The lifeline's place, for every program to know, is the one behind standard error.
        for (target, fd) in (0..).zip(&high[..fds.len()]) {
            if libc::dup2(*fd, target) < 0 {
                fail(gate, Step::Descriptors);
            }
        }
        let first_free = fds.len() as libc::c_uint;
        close_range(first_free, gate.unsigned_abs() - 1);
        close_range(gate.unsigned_abs() + 1, libc::c_uint::MAX);
    }
}

unsafe fn prepare(gate: RawFd, image: *const Header, header: &Header) {
    // SAFETY: the offsets in the header were made for this image.
    unsafe {
        if let Some(umask) = header.umask() {
            libc::umask(umask);
        }
        if let Some(nice) = header.nice() {
            check(gate, Step::Nice, libc::setpriority(libc::PRIO_PROCESS, 0, nice));
        }
        let limits = at::<Limit>(image, header.limits);
        for index in 0..header.limit_count {
            let limit = *limits.add(index);
            let value = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
            check(gate, Step::Limits, libc::setrlimit(limit.resource as _, &raw const value));
        }
        if header.oom_score_adj != 0 {
            let score = at::<libc::c_char>(image, header.oom_score_adj);
            check(gate, Step::OomScore, write_file(c"/proc/self/oom_score_adj".as_ptr(), score));
        }
        if header.has_terminal() {
            // Order: before the user is another one, who may then open the terminal by its name.
            take_terminal(gate, header.uid());
        }
        // Order: groups before the user. Afterwards there is no right to change them.
        if header.groups != 0 {
            let groups = at::<libc::gid_t>(image, header.groups);
            check(gate, Step::Groups, libc::setgroups(header.group_count, groups));
        }
        if let Some(gid) = header.gid() {
            check(gate, Step::Group, libc::setresgid(gid, gid, gid));
        }
        if let Some(uid) = header.uid() {
            check(gate, Step::User, libc::setresuid(uid, uid, uid));
        }
        // Order: as the new user, who must be able to go there.
        if header.directory != 0 {
            check(gate, Step::Directory, libc::chdir(at(image, header.directory)));
        }
    }
}

/// `ioctl(TIOCSCTTY)`: standard input becomes the controlling terminal of this session, and its user's.
unsafe fn take_terminal(gate: RawFd, uid: Option<libc::uid_t>) {
    // SAFETY: integers only.
    unsafe {
        check(gate, Step::Stdio, libc::ioctl(0, libc::TIOCSCTTY, 0));
        if let Some(uid) = uid {
            check(gate, Step::Stdio, libc::fchown(0, uid, libc::gid_t::MAX));
        }
    }
}

/// `execve(2)` of each path in turn, as a shell would: the search goes on where there is nothing to execute,
/// and a file that may not be executed is what is reported if nothing better is found.
unsafe fn execute(gate: RawFd, image: *const Header, header: &Header) -> ! {
    // SAFETY: the arrays in the image end with a null.
    unsafe {
        let arguments = resolve(image, header.arguments);
        let environment = resolve(image, header.environment);
        let programs = resolve(image, header.programs);
        let mut errno = libc::ENOENT;
        for index in 0.. {
            let program = *programs.add(index);
            if program.is_null() {
                break;
            }
            libc::execve(program, arguments, environment);
            match *libc::__errno_location() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => errno = libc::EACCES,
                other => fail_with(gate, Step::Execute, other),
            }
        }
        fail_with(gate, Step::Execute, errno)
    }
}

/// Turns an array of offsets into one of pointers, in place, and returns it.
unsafe fn resolve(image: *const Header, offset: usize) -> *const *const libc::c_char {
    // SAFETY: the array ends with a zero, and the mapping is private and writable.
    unsafe {
        let array = at::<usize>(image, offset).cast_mut();
        let mut index = 0;
        while *array.add(index) != 0 {
            *array.add(index) += image as usize;
            index += 1;
        }
        array.cast()
    }
}

unsafe fn at<T>(image: *const Header, offset: usize) -> *const T {
    // SAFETY: the caller's offset lies within the image.
    unsafe { image.cast::<u8>().add(offset).cast() }
}

/// `prctl(PR_SET_PDEATHSIG)`: the kernel kills this process when its parent ends. If the parent has ended
/// already, this process exits.
unsafe fn die_with(guardian: libc::pid_t) {
    // SAFETY: integers only.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != guardian {
            libc::_exit(0);
        }
    }
}

/// `sigaction(2)` for the signals that the guardian ignores, and an empty mask. The guardian has set all
/// others to their defaults for itself.
unsafe fn reset_signals() {
    for signal in IGNORED {
        set_disposition(signal, libc::SIG_DFL);
    }
    // SAFETY: the set is a local.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// `setrlimit(RLIMIT_LOCKS)`: see `snakepit_core::lineage`. A hard limit below the mark leaves the child
/// unmarked.
unsafe fn mark(lineage: u64) {
    // SAFETY: the structure is a local.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_LOCKS, &raw mut limit) == 0 {
            limit.rlim_cur = lineage;
            libc::setrlimit(libc::RLIMIT_LOCKS, &raw const limit);
        }
    }
}

/// `close_range(2)`. False if the kernel lacks the call (before 5.9) or a filter forbids it.
///
/// Descriptors that only a program must not have are closed by `execve` all the same: each has the
/// close-on-exec flag.
pub unsafe fn close_range(first: libc::c_uint, last: libc::c_uint) -> bool {
    // SAFETY: integers only.
    first > last || unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0
}

/// Closes these one by one, but for `spared`.
pub unsafe fn close_each(descriptors: &[RawFd], spared: RawFd) {
    for fd in descriptors {
        if *fd > 2 && *fd != spared {
            // SAFETY: the caller's table of descriptors is a copy.
            unsafe { libc::close(*fd) };
        }
    }
}

pub unsafe fn write_file(path: *const libc::c_char, text: *const libc::c_char) -> libc::c_int {
    // SAFETY: both are texts that end with a NUL.
    unsafe {
        let fd = libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return -1;
        }
        let written = libc::write(fd, text.cast(), libc::strlen(text));
        let errno = *libc::__errno_location();
        libc::close(fd);
        *libc::__errno_location() = errno;
        if written < 0 { -1 } else { 0 }
    }
}
