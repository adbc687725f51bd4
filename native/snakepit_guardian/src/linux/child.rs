//! The child, from `fork` to `execve`: nothing here allocates, locks, or calls into Rust's runtime. It
//! has no heap: see `heap.rs`.
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

use super::image::{Header, Limit};
use super::setup::{IGNORED, set_disposition};

/// Where the gate is kept while descriptors are put into place: above all of those.
const GATE_PLACE: RawFd = 10;
/// The most descriptors that travel with the opening of the gate: three streams, lifeline, image.
const MAX_DESCRIPTORS: usize = 5;

/// Room for an image that comes through the gate, on the child's stack. A larger one is a file.
pub const ROOM: usize = 8192;

/// What comes through the gate when it opens. Behind it come the first `sent` bytes of the image,
/// which are all or none: if none, the last descriptor is a file that holds it.
#[derive(Clone, Copy, Default)]
pub struct Opening {
    /// Of the image.
    pub length: usize,
    pub sent: usize,
}

impl Opening {
    pub fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        let (length, sent) = bytes.split_at_mut(size_of::<usize>());
        length.copy_from_slice(&self.length.to_ne_bytes());
        sent.copy_from_slice(&self.sent.to_ne_bytes());
        bytes
    }
}

/// What a child is told at its birth.
#[derive(Clone, Copy)]
pub struct Birth {
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

/// Never returns: executes the program or exits.
///
/// # Safety
///
/// Only in a process that was just forked from one with a single thread.
pub unsafe fn live(birth: Birth) -> ! {
    // SAFETY: all of these are plain system calls on this process's own state, with pointers to
    // memory that outlives them.
    unsafe {
        // First of all: a copy of a sibling's gate must not hold it open.
        if !close_range(3, birth.gate.unsigned_abs() - 1) {
            close_each(&birth.gates, birth.gate);
        }
        close_range(birth.gate.unsigned_abs() + 1, libc::c_uint::MAX);
        libc::setsid();
        die_with(birth.guardian);
        reset_signals();
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const birth.descriptors);
        if let Some(nice) = birth.nice {
            libc::setpriority(libc::PRIO_PROCESS, 0, nice);
        }
        mark(birth.lineage);

        // Written to now, so that the pages are there when it is needed.
        let mut room = [0_u64; ROOM / size_of::<u64>()];
        std::hint::black_box(&mut room);
        let arrived = wait_at_gate(birth.gate, &mut room);
        let fds = arrived.fds;
        let image = load_image(birth.gate, &arrived, &mut room);
        let header = &*image;
        let gate = libc::fcntl(birth.gate, libc::F_DUPFD_CLOEXEC, GATE_PLACE);
        if gate < 0 {
            fail(birth.gate, Step::Descriptors);
        }
        place_descriptors(gate, &fds[..3 + usize::from(header.has_lifeline())]);
        prepare(gate, image, header);
        // Last, because a change of user clears it.
        die_with(birth.guardian);
        execute(gate, image, header)
    }
}

/// What came through the gate: descriptors, how much there is of the image, and how much of it is
/// in the child's room already.
struct Arrived {
    fds: [RawFd; MAX_DESCRIPTORS],
    count: usize,
    opening: Opening,
    here: usize,
}

/// Blocks until the gate opens or closes. As much of the image as there is room for comes along.
unsafe fn wait_at_gate(gate: RawFd, room: &mut [u64]) -> Arrived {
    let mut fds = [-1; MAX_DESCRIPTORS];
    // As `to_bytes` lays it out.
    let mut opening = [0_usize; 2];
    let size = size_of_val(&opening);
    // Room for the descriptors and their header, aligned as the kernel wants it.
    let mut control = [0_u64; 8];
    let mut parts = [
        libc::iovec { iov_base: opening.as_mut_ptr().cast(), iov_len: size },
        libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: size_of_val(room) },
    ];
    // SAFETY: `message` points to locals that live as long as the call; what is read back was
    // written by the kernel.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let received = loop {
            let received = libc::recvmsg(gate, &raw mut message, libc::MSG_CMSG_CLOEXEC);
            if received >= 0 || *libc::__errno_location() != libc::EINTR {
                break received;
            }
        };
        let control = libc::CMSG_FIRSTHDR(&raw const message);
        let here = usize::try_from(received).ok().and_then(|received| received.checked_sub(size));
        let Some(here) = here.filter(|_| !control.is_null()) else { libc::_exit(0) };
        let bytes =
            (*control).cmsg_len as usize - (libc::CMSG_DATA(control) as usize - control as usize);
        let count = (bytes / size_of::<RawFd>()).min(MAX_DESCRIPTORS);
        std::ptr::copy_nonoverlapping(libc::CMSG_DATA(control).cast(), fds.as_mut_ptr(), count);
        let opening = Opening { length: opening[0], sent: opening[1] };
        Arrived { fds, count, opening, here }
    }
}

/// Reads the rest of the image into the room that there is, or maps the file that holds it.
unsafe fn load_image(gate: RawFd, arrived: &Arrived, room: &mut [u64]) -> *const Header {
    let Arrived { fds, count, opening, here } = arrived;
    // SAFETY: a new mapping; into the room, no more is read than fits.
    unsafe {
        if opening.sent == 0 {
            let image = libc::mmap(
                std::ptr::null_mut(),
                opening.length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE,
                fds[count - 1],
                0,
            );
            if image == libc::MAP_FAILED {
                fail(gate, Step::Descriptors);
            }
            return image.cast();
        }
        let image = room.as_mut_ptr().cast::<u8>();
        let mut done = *here;
        while done < opening.sent.min(size_of_val(room)) {
            let count = libc::read(gate, image.add(done).cast(), opening.sent - done);
            match usize::try_from(count) {
                // Closed in the midst of it: the guardian is gone.
                Ok(0) => libc::_exit(0),
                Ok(count) => done += count,
                Err(_) if *libc::__errno_location() == libc::EINTR => {}
                Err(_) => fail(gate, Step::Descriptors),
            }
        }
        image.cast()
    }
}

/// `fds` is input, output, error and perhaps the lifeline. All sit above 2.
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
        // Groups before the user: afterwards there is no right to change them.
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
        // As the new user: it must be able to go there.
        if header.directory != 0 {
            check(gate, Step::Directory, libc::chdir(at(image, header.directory)));
        }
    }
}

/// Tries each path, as the shell would: the search goes on where there is nothing to execute, and a
/// file that may not be executed is what is reported if nothing better is found.
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

/// Turns an array of offsets into one of pointers, in place.
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

/// The kernel kills this process when its parent ends. If the parent has ended already, nobody will.
unsafe fn die_with(guardian: libc::pid_t) {
    // SAFETY: integers only.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != guardian {
            libc::_exit(0);
        }
    }
}

/// The guardian has set all others to their defaults for itself.
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

/// See `snakepit_core::lineage`. A hard limit below the mark leaves the child unmarked.
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

/// Closes these one by one, but for `kept`.
pub unsafe fn close_each(descriptors: &[RawFd], kept: RawFd) {
    for fd in descriptors {
        if *fd > 2 && *fd != kept {
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

unsafe fn check(gate: RawFd, step: Step, result: libc::c_int) {
    if result < 0 {
        // SAFETY: never returns.
        unsafe { fail(gate, step) }
    }
}

unsafe fn fail(gate: RawFd, step: Step) -> ! {
    // SAFETY: errno is this thread's own.
    unsafe { fail_with(gate, step, *libc::__errno_location()) }
}

/// Tells the guardian what failed, and ends.
unsafe fn fail_with(gate: RawFd, step: Step, errno: libc::c_int) -> ! {
    let report = [step as i32, errno];
    // SAFETY: writes a local. Should it fail, the guardian sees an exit status of 127.
    unsafe {
        libc::write(gate, report.as_ptr().cast(), size_of_val(&report));
        libc::_exit(127)
    }
}
