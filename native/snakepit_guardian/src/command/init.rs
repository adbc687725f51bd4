//! `init -- COMMAND`: the first process of a container. Starts the command, passes signals on to it, reaps whatever
//! ends, and when the command has ended ends all the rest and exits with its status.
//!
//! A guardian below that is ending its run's processes is left at it: it knows what each of them was promised.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use snakepit_core::descendants::{self, OwnChildren};
use snakepit_core::table::Columns;
use snakepit_core::tree::{self, Roots};
use snakepit_core::{Error, Identity, Pid, Process, Signal, guardian};

/// As `docker run`, `env` and shells have them.
const OWN_FAILURE: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// What the kernel may take to carry out SIGKILL.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// How often to look for children: one that is handed up because its parent has ended makes no signal.
const LOOK: Duration = Duration::from_millis(100);

/// Not passed on: children's ends, faults of this very process, and what a terminal sends to whoever is in the
/// background.
const OWN: [libc::c_int; 10] = [
    libc::SIGCHLD,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGPIPE,
    libc::SIGTTIN,
    libc::SIGTTOU,
];
/// Faults end a process at once only if they are not blocked.
const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

pub fn run(command: &[OsString], grace: Duration) -> ExitCode {
    match supervise(command, grace) {
        Ok(status) => status.into(),
        Err((status, sentence)) => {
            eprintln!("snakepit_guardian: init: {sentence}");
            status.into()
        }
    }
}

fn supervise(command: &[OsString], grace: Duration) -> Result<u8, (u8, String)> {
    let failed =
        |what: &'static str| move |error: io::Error| (OWN_FAILURE, format!("{what}: {error}"));
    // Order: before the command is started, so that no signal is lost.
    let signals = Signals::block().map_err(failed("sigprocmask"))?;
    if Pid::current().as_raw() != 1 {
        // SAFETY: integers only.
        let result = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
        Errno::result(result).map_err(io::Error::from).map_err(failed("PR_SET_CHILD_SUBREAPER"))?;
    }
    let child = start(command, &signals)?;
    let status = loop {
        if let Some(status) = reap(Some(child)) {
            break status;
        }
        match signals.wait(None) {
            Some(signal) if signal != libc::SIGCHLD => pass_on(child, signal),
            _ => {}
        }
    };
    // The kernel ends what is left below the first process of a container.
    match end_rest(&signals, grace) {
        Ok(left) if left.is_empty() => {}
        Ok(left) => eprintln!("snakepit_guardian: init: these processes cannot be ended: {left:?}"),
        Err(error) => {
            let sentence = super::Failure::of("what the command has left behind", &error).0;
            eprintln!("snakepit_guardian: init: {sentence}");
        }
    }
    Ok(status)
}

/// Signals that are blocked and waited for.
struct Signals {
    heard: libc::sigset_t,
    before: libc::sigset_t,
}

impl Signals {
    fn block() -> io::Result<Self> {
        // SAFETY: plain data, filled by the calls below.
        let (mut heard, mut before) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: all pointers are to locals.
        let result = unsafe {
            libc::sigfillset(&raw mut heard);
            for fault in FAULTS {
                libc::sigdelset(&raw mut heard, fault);
            }
            libc::sigprocmask(libc::SIG_SETMASK, &raw const heard, &raw mut before)
        };
        Errno::result(result)?;
        Ok(Self { heard, before })
    }

    /// `sigtimedwait(2)`: returns a signal that has come; `None` when the time is up.
    fn wait(&self, timeout: Option<Duration>) -> Option<libc::c_int> {
        let none = std::ptr::null_mut();
        let result = match timeout {
            // SAFETY: the pointers are to locals.
            None => unsafe { libc::sigwaitinfo(&raw const self.heard, none) },
            Some(timeout) => {
                let time = libc::timespec {
                    tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                    tv_nsec: timeout.subsec_nanos().into(),
                };
                // SAFETY: as above.
                unsafe { libc::sigtimedwait(&raw const self.heard, none, &raw const time) }
            }
        };
        (result > 0).then_some(result)
    }
}

/// Starts the command as the leader of a group of its own, in front of the terminal if there is one: then what the
/// terminal sends to that group is not sent twice.
fn start(command: &[OsString], signals: &Signals) -> Result<Pid, (u8, String)> {
    let Some((program, arguments)) = command.split_first() else {
        return Err((OWN_FAILURE, "there is no command".into()));
    };
    let before = signals.before;
    let mut command = Command::new(program);
    command.args(arguments).process_group(0);
    // SAFETY: async-signal-safe calls only. SIGTTOU is blocked until the last of them.
    unsafe {
        command.pre_exec(move || {
            if libc::isatty(libc::STDIN_FILENO) == 1 {
                libc::tcsetpgrp(libc::STDIN_FILENO, libc::getpid());
            }
            libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            Ok(())
        });
    }
    match command.spawn() {
        Ok(child) => Pid::new(child.id().into()).ok_or((OWN_FAILURE, "fork".into())),
        Err(error) => {
            let status =
                if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            Err((status, format!("{}: {error}", program.to_string_lossy())))
        }
    }
}

fn pass_on(child: Pid, signal: libc::c_int) {
    if OWN.contains(&signal) {
        return;
    }
    if let Ok(signal) = Signal::from_number(signal.into()) {
        // It is not reaped yet, so nobody else has its pid.
        if let Err(error) = descendants::signal_child(child, signal) {
            eprintln!("snakepit_guardian: init: {error}");
        }
    }
}

/// `waitpid(2)` until no ended child is left. Returns the status of the command, if it was one of them.
fn reap(command: Option<Pid>) -> Option<u8> {
    let mut found = None;
    loop {
        let mut status = 0;
        // SAFETY: the pointer is to a local.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        match pid {
            -1 if Errno::last() == Errno::EINTR => {}
            ..=0 => return found,
            pid if Some(pid) == command.map(Pid::as_raw) => found = Some(exit_status(status)),
            _ => {}
        }
    }
}

fn exit_status(status: libc::c_int) -> u8 {
    let code = if libc::WIFSIGNALED(status) {
        128 + libc::WTERMSIG(status)
    } else {
        libc::WEXITSTATUS(status)
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Asks each child to end, and those that are handed up when it has; kills what is left after the grace period.
/// Returns those that are still there.
fn end_rest(signals: &Signals, grace: Duration) -> Result<Vec<Pid>, Error> {
    let mut children = OwnChildren::open()?;
    let mut asked = HashSet::new();
    let deadline = Instant::now() + grace;
    loop {
        let left = living(&mut children)?;
        let now = Instant::now();
        if left.is_empty() {
            return Ok(left);
        }
        if now >= deadline {
            return kill_rest(&mut children);
        }
        for child in left {
            let fresh = asked.insert(child.as_raw());
            if fresh && !guardian::is_one(child) {
                let _ = descendants::signal_child(child, Signal::TERM);
                let _ = descendants::signal_child(child, Signal::CONT);
            }
        }
        signals.wait(Some(LOOK.min(deadline - now)));
    }
}

/// Returns the children that are there once all that have ended are reaped.
fn living(children: &mut OwnChildren) -> Result<Vec<Pid>, Error> {
    reap(None);
    let pids = children.read(false)?;
    Ok(pids.into_iter().filter_map(|pid| Pid::new(pid.into())).collect())
}

fn kill_rest(children: &mut OwnChildren) -> Result<Vec<Pid>, Error> {
    let deadline = Instant::now() + KILL_WAIT;
    loop {
        let left = living(children)?;
        if left.is_empty() || Instant::now() >= deadline {
            return Ok(left);
        }
        let identities: Vec<Identity> = left
            .iter()
            .filter_map(|pid| Some(Process::open(*pid).ok()??.identity().clone()))
            .collect();
        let roots =
            Roots { identities, select: &|_| false, columns: Columns::default(), freeze: false };
        tree::kill(&roots, deadline)?;
    }
}
