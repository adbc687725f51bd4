//! How the guardian sets itself up before it does anything else.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use snakepit_core::self_test::{self, Refusal};
use snakepit_core::{Pid, proc_text};

use super::child;
use super::filter;

/// Where `open_port` with `:nouse_stdio` puts the two directions. Standard input, output and error
/// are the BEAM's own, for children that inherit them.
const PORT_INPUT: i32 = 3;
const PORT_OUTPUT: i32 = 4;

/// What forked children need: who the guardian is, and what it has changed for itself and they get back.
#[derive(Clone, Copy)]
pub struct ForkSettings {
    /// The guardian's own pid.
    pub guardian: libc::pid_t,
    /// Whether the kernel closes many descriptors at once.
    pub closes_ranges: bool,
    /// The limit of descriptors, before it was raised.
    pub descriptors: libc::rlimit,
    /// The priority, if the guardian could change its own.
    pub nice: Option<i32>,
    /// The OOM score, if the guardian could change its own. Text that ends with a NUL.
    pub oom_score: Option<[u8; 8]>,
}

/// The signals that the guardian ignores, and children do not.
pub const IGNORED: [libc::c_int; 7] = [
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGPIPE,
    libc::SIGTSTP,
    // Limits that a service manager sets for everyone: a write fails instead, with `EFBIG`.
    libc::SIGXFSZ,
    libc::SIGXCPU,
];

/// `sigaction(2)`, async-signal-safe. Signals whose disposition cannot be changed are left as they are.
pub fn set_disposition(signal: libc::c_int, disposition: libc::sighandler_t) {
    // SAFETY: the structure is a local, and neither disposition is a function of ours.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = disposition;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
}

/// Returns the port's descriptors, after all others that were inherited have been closed; and whether the
/// kernel has `close_range(2)`.
pub fn port() -> Result<(OwnedFd, OwnedFd, bool), Errno> {
    // SAFETY: nothing else is open yet, so nobody owns these numbers.
    let closes_ranges = unsafe { child::close_range(5, libc::c_uint::MAX) };
    if !closes_ranges {
        let inherited: Vec<RawFd> = open_descriptors().into_iter().filter(|fd| *fd > 4).collect();
        // SAFETY: as above.
        unsafe { child::close_each(&inherited, -1) };
    }
    // SAFETY: the port's own descriptors, owned by nobody else here. If they are not open, the first
    // use says so.
    let (input, output) =
        unsafe { (OwnedFd::from_raw_fd(PORT_INPUT), OwnedFd::from_raw_fd(PORT_OUTPUT)) };
    for fd in [&input, &output] {
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
        fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    }
    Ok((input, output, closes_ranges))
}

/// Returns what `/proc/self/fd` lists, the descriptor of that listing included, which is closed by now.
pub fn open_descriptors() -> Vec<RawFd> {
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(number).collect()
}

/// `sigaction(2)` of every signal to its default, whatever the BEAM had; then `signalfd(2)` for SIGCHLD and
/// SIGTERM alone. Terminals and service managers signal every process: SIGINT, SIGHUP and, while the BEAM
/// lives, SIGTERM are not for the guardian.
pub fn signals() -> Result<SignalFd, Errno> {
    for signal in 1..=libc::SIGRTMAX() {
        set_disposition(signal, libc::SIG_DFL);
    }
    for signal in IGNORED {
        set_disposition(signal, libc::SIG_IGN);
    }
    let mut heard = SigSet::empty();
    heard.add(Signal::SIGCHLD);
    heard.add(Signal::SIGTERM);
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&heard), None)?;
    SignalFd::with_flags(&heard, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// `prctl(PR_SET_CHILD_SUBREAPER)`: a process below that loses its parent becomes a child of the guardian.
/// The other calls that the guardian needs are tried here too; the first that is refused is returned.
pub fn become_subreaper() -> Result<(), Refusal> {
    let refused = |call| move |errno| Refusal { call, errno };
    // SAFETY: integers only.
    let subreaper = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    Errno::result(subreaper).map_err(refused("prctl(PR_SET_CHILD_SUBREAPER)"))?;
    // None is what the guardian has anyway. Its children need the call.
    // SAFETY: integers only.
    let death_signal = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
    Errno::result(death_signal).map_err(refused("prctl(PR_SET_PDEATHSIG)"))?;
    #[expect(clippy::disallowed_methods, reason = "no signal, to this very process")]
    // SAFETY: integers only.
    let kill = unsafe { libc::kill(libc::getpid(), 0) };
    Errno::result(kill).map_err(refused("kill"))?;
    self_test::pidfd().map_or(Ok(()), Err)
}

/// Whose processes the kernel lets the guardian signal: the rule of `kill(2)`, which holds for the
/// parent-death signal as well.
#[derive(Clone, Copy)]
pub struct Rights {
    /// `CAP_KILL`.
    everyone: bool,
    /// The guardian's own, real and effective.
    users: [u32; 2],
}

impl Rights {
    pub fn own() -> Self {
        /// Of `capabilities(7)`.
        const CAP_KILL: u32 = 5;
        let status = std::fs::read("/proc/self/status").unwrap_or_default();
        // SAFETY: no arguments, never fails.
        let users = unsafe { [libc::getuid(), libc::geteuid()] };
        Self { everyone: proc_text::has_capability(&status, CAP_KILL), users }
    }

    /// Returns whether the guardian can end a process that becomes this user.
    pub fn can_signal(self, user: Option<u32>) -> bool {
        self.everyone || user.is_none_or(|user| self.users.contains(&user))
    }
}

/// `setrlimit(2)`, `setpriority(2)` and the OOM score: raises what keeps the guardian alive, where it may.
/// Returns what it was.
pub fn raise_limits(closes_ranges: bool) -> ForkSettings {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    // A fork bomb takes processor time from everyone else, but not from this process.
    // SAFETY: integers only.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    // SAFETY: integers only.
    let raise = || unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } == 0;
    let nice = (filter::passes_setpriority() && raise()).then_some(nice);
    // Where sessions share the processor as groups, a bomb whose members each have a session of their
    // own gets most of it, whatever their priorities; this raises that of the guardian's session.
    let _ = std::fs::write("/proc/self/autogroup", "-20");
    let file = "/proc/self/oom_score_adj";
    let before = std::fs::read_to_string(file).ok().and_then(|text| text_of(text.trim()));
    let oom_score = before.filter(|_| std::fs::write(file, "-1000").is_ok());
    ForkSettings {
        closes_ranges,
        guardian: Pid::current().as_raw(),
        descriptors: libc::rlimit { rlim_cur: soft, rlim_max: hard },
        nice,
        oom_score,
    }
}

/// Returns a number as text that needs no heap, which children do not have.
fn text_of(number: &str) -> Option<[u8; 8]> {
    let mut text = [0; 8];
    // The last stays zero.
    text[..7].get_mut(..number.len())?.copy_from_slice(number.as_bytes());
    Some(text)
}
