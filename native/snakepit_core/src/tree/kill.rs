//! Kills a tree: freezes it first, where no subreaper inherits those that lose their parents.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::Roots;
use crate::process::{Delivery, Found};
use crate::settle::Settling;
use crate::stop::{descriptor_budget, pause_until, refusal, wait_for_exits};
use crate::table::ProcessState;
use crate::{Error, Identity, Process, Signal};

/// How long a frozen tree may take to come to rest. A member that is in an uninterruptible system
/// call counts as at rest.
const FREEZE_LIMIT: Duration = Duration::from_secs(1);

/// How long it is tried to continue a frozen tree that could not be killed.
const THAW_LIMIT: Duration = Duration::from_secs(1);

/// The longest wait for those that one pass has killed, before the next pass finds what they left behind.
const PASS_LIMIT: Duration = Duration::from_millis(50);

/// What a tree kill did.
#[derive(Debug, Default)]
pub struct KillReport {
    /// How many were ended.
    pub killed: usize,
    /// All that were sent SIGKILL, those that are still there included.
    pub signalled: Vec<Identity>,
    /// Full passes over the process table.
    pub passes: usize,
    /// Those that are still there at the deadline, or may not be signalled.
    pub survivors: Vec<Identity>,
}

/// SIGKILL to the whole tree: pass after pass until one finds nothing, or `deadline` has come.
///
/// # Errors
///
/// [`Error::Os`] if the process table cannot be read. What was stopped by then is continued: nobody comes
/// to kill it.
pub fn kill(roots: &Roots, deadline: Instant) -> Result<KillReport, Error> {
    let mut stopped = HashSet::new();
    kill_and_record(roots, deadline, &mut stopped).inspect_err(|_| thaw(stopped))
}

/// SIGCONT to those that were stopped. What made the killing fail may make this fail as well, a want of
/// descriptors say: then it is tried for a while.
fn thaw(mut stopped: HashSet<Identity>) {
    let deadline = Instant::now() + THAW_LIMIT;
    loop {
        stopped.retain(|identity| match Process::reopen(identity, None) {
            Ok(Found::Same(process)) => {
                // A process that may not be continued cannot have been stopped either.
                let _ = process.signal(Signal::CONT);
                false
            }
            Ok(_) => false,
            Err(_) => true,
        });
        if stopped.is_empty() || !pause_until(deadline) {
            return;
        }
    }
}

fn kill_and_record(
    roots: &Roots,
    deadline: Instant,
    stopped: &mut HashSet<Identity>,
) -> Result<KillReport, Error> {
    let mut report = KillReport::default();
    // A pass is no photograph. One that is forked behind its back, by a parent that is gone before the
    // pass gets there, escapes it; a second pass finds it. A subreaper need not look twice: to it, the
    // escaped one turns up as a child.
    let enough = if roots.freeze { 2 } else { 1 };
    let mut empty = 0;
    if roots.freeze {
        let frozen = freeze(roots, deadline.min(Instant::now() + FREEZE_LIMIT), stopped)?;
        report.passes += frozen.passes;
        empty += usize::from(frozen.members == 0);
        // Out of time before they have come to rest: those that were stopped stay so, and the
        // next call goes on from there. Killing now would let the others fork anew.
        if !frozen.at_rest && Instant::now() >= deadline {
            report.survivors = roots.list()?;
            return Ok(report);
        }
    }
    // What was met is a root from then on: its parent may be gone before it is.
    let mut roots = Roots { identities: roots.identities.clone(), ..*roots };
    let mut signalled: HashSet<Identity> = HashSet::new();
    loop {
        report.passes += 1;
        let mut sent = Vec::new();
        let mut held = Vec::new();
        let mut refused = Settling::new();
        signal_each(&roots, Signal::KILL, |process, is_sent| {
            if !is_sent {
                refused.add(process, ());
                return;
            }
            sent.push(process.identity().clone());
            if held.len() < descriptor_budget() {
                held.push(process);
            }
        })?;
        let refused = refused.identities();
        signalled.extend(sent.iter().cloned().map(for_counting));
        empty = if sent.is_empty() { empty + 1 } else { 0 };
        let done = if sent.is_empty() { empty >= enough } else { Instant::now() >= deadline };
        if done {
            report.killed = signalled.len() - sent.len();
            report.signalled = signalled.into_iter().collect();
            report.survivors = [sent, refused].concat();
            return Ok(report);
        }
        roots.identities.extend(sent);
        roots.identities.extend(refused);
        let references: Vec<_> = held.iter().map(Process::reference).collect();
        let pause = deadline.min(Instant::now() + PASS_LIMIT);
        wait_for_exits(&references, pause)?;
        // One that was signalled in its first tick and is still there has an identity that counts by now.
        let young = held.iter().filter(|one| !one.identity().is_exact());
        roots.identities.extend(young.filter_map(Process::settled_identity));
    }
}

/// Returns an identity that is the same at each pass: a process settles, and may change its user.
fn for_counting(identity: Identity) -> Identity {
    Identity { settled: true, uid: None, ..identity }
}

/// Makes one pass that sends `signal` to each member, and passes the member to `visit`, with whether the
/// signal was sent or refused.
fn signal_each(
    roots: &Roots,
    signal: Signal,
    mut visit: impl FnMut(Process, bool),
) -> Result<(), Error> {
    roots.for_each_member(|member| {
        match member.process.signal(signal) {
            Ok(Delivery::Sent) => visit(member.process, true),
            Ok(Delivery::Gone) => {}
            Err(error) => {
                refusal(&error).ok_or(error)?;
                visit(member.process, false);
            }
        }
        Ok(())
    })
}

/// How far a tree was stopped.
struct Frozen {
    passes: usize,
    /// How many members the last pass found.
    members: usize,
    /// Whether the last two passes found all of them stopped, and none new, or the last one found nobody.
    at_rest: bool,
}

/// SIGSTOP to members, until two passes in a row find all of them at rest and none new.
fn freeze(
    roots: &Roots,
    deadline: Instant,
    stopped: &mut HashSet<Identity>,
) -> Result<Frozen, Error> {
    let mut passes = 0;
    let mut quiet = 0;
    loop {
        passes += 1;
        let mut members = 0;
        let mut at_rest = true;
        roots.for_each_member(|member| {
            members += 1;
            let new = stopped.insert(for_counting(member.process.identity().clone()));
            at_rest &= !new;
            if new || member.state == ProcessState::Alive {
                match member.process.signal(Signal::STOP) {
                    Ok(delivery) => at_rest &= delivery == Delivery::Gone,
                    // It cannot be killed either, which is where it is reported.
                    Err(error) => drop(refusal(&error).ok_or(error)?),
                }
            }
            Ok(())
        })?;
        // Order: all at rest, then the pids once more. The kernel lists the pids before a pass reads the
        // states: a member may finish its fork in between, and be at rest when its state is read, while the
        // child is not in the list. The next list has it.
        quiet = if at_rest { quiet + 1 } else { 0 };
        let at_rest = members == 0 || quiet >= 2;
        // Never fewer than these: one to stop them, one to see what they forked meanwhile, one to see
        // that they rest. A pass may take longer than all the time there is.
        let tried = passes >= 3 && Instant::now() >= deadline;
        if at_rest || tried {
            return Ok(Frozen { passes, members, at_rest });
        }
    }
}
