//! Ends many processes together: ask all, wait for all until one deadline, kill what is left.

use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};

use crate::process::{Delivery, Found};
use crate::run_id::RunId;
use crate::{Error, Identity, Process, Signal, os};

/// How to end a process.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// What asks it to end.
    pub signal: Signal,
    /// How long it may take to do so before `SIGKILL`.
    pub grace: Duration,
    /// How long the kernel may take to carry out `SIGKILL`.
    pub kill_wait: Duration,
}

/// How it went for one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ended when asked.
    Stopped,
    /// It had to be killed.
    Killed,
    /// It was gone before.
    Gone,
    /// The kernel did not let this user signal it.
    NotPermitted,
    /// It may be another process, so it was left alone.
    Ambiguous,
    /// It is protected: see [`crate::protect`].
    Refused,
    /// It was killed and is still there, for example in an uninterruptible system call.
    Survived,
}

/// A process that was signalled and may still be there.
struct Pending {
    index: usize,
    /// Dropped while there are more processes than descriptors; opened again by identity.
    process: Option<Process>,
}

/// Ends all `targets` and says of each how it went, in their order.
///
/// Takes one grace period in all, not one each. `run_id` is as for [`Process::reopen`].
///
/// # Errors
///
/// [`Error::Os`] if waiting itself fails. Whatever befalls a single target is in its [`Outcome`].
pub fn stop(
    targets: &[Identity],
    run_id: Option<RunId>,
    plan: &Plan,
) -> Result<Vec<Outcome>, Error> {
    let mut batch = Batch::new(targets, run_id);
    let left = batch.ask(plan)?;
    let killed = batch.signal(left, Signal::KILL, Outcome::Stopped)?;
    let left = batch.wait(killed, Instant::now() + plan.kill_wait, Outcome::Killed)?;
    Ok(batch.finish(left))
}

/// The polite half of [`stop`]: what does not end within the grace period has [`Outcome::Survived`].
///
/// # Errors
///
/// As for [`stop`].
pub fn ask(
    targets: &[Identity],
    run_id: Option<RunId>,
    plan: &Plan,
) -> Result<Vec<Outcome>, Error> {
    let mut batch = Batch::new(targets, run_id);
    let left = batch.ask(plan)?;
    Ok(batch.finish(left))
}

struct Batch<'a> {
    targets: &'a [Identity],
    run_id: Option<RunId>,
    outcomes: Vec<Outcome>,
}

impl<'a> Batch<'a> {
    fn new(targets: &'a [Identity], run_id: Option<RunId>) -> Self {
        Self { targets, run_id, outcomes: vec![Outcome::Gone; targets.len()] }
    }

    fn ask(&mut self, plan: &Plan) -> Result<Vec<Pending>, Error> {
        let all = (0..self.targets.len()).map(|index| Pending { index, process: None }).collect();
        let asked = self.signal(all, plan.signal, Outcome::Gone)?;
        self.wait(asked, Instant::now() + plan.grace, Outcome::Stopped)
    }

    fn finish(mut self, left: Vec<Pending>) -> Vec<Outcome> {
        for survivor in left {
            self.outcomes[survivor.index] = Outcome::Survived;
        }
        self.outcomes
    }

    /// Signals each; those that turn out to be gone get the outcome `if_gone`. Returns those that
    /// are worth waiting for.
    fn signal(
        &mut self,
        pending: Vec<Pending>,
        signal: Signal,
        if_gone: Outcome,
    ) -> Result<Vec<Pending>, Error> {
        let capacity = descriptor_budget();
        let mut held = pending.iter().filter(|one| one.process.is_some()).count();
        let mut signalled = Vec::with_capacity(pending.len());
        for one in pending {
            let was_held = one.process.is_some();
            let process = match self.hold(one.index, one.process)? {
                Ok(process) => process,
                Err(outcome) => {
                    self.outcomes[one.index] =
                        if outcome == Outcome::Gone { if_gone } else { outcome };
                    continue;
                }
            };
            match request(&process, signal) {
                Ok(Delivery::Sent) => {
                    let keep = was_held || held < capacity;
                    held += usize::from(keep && !was_held);
                    signalled.push(Pending { index: one.index, process: keep.then_some(process) });
                }
                Ok(Delivery::Gone) => self.outcomes[one.index] = if_gone,
                Err(error) => self.outcomes[one.index] = refusal(&error).ok_or(error)?,
            }
        }
        Ok(signalled)
    }

    /// Waits until `deadline` for all of them; those that end get the outcome `if_exited`. Returns
    /// those that are still there.
    fn wait(
        &mut self,
        mut pending: Vec<Pending>,
        deadline: Instant,
        if_exited: Outcome,
    ) -> Result<Vec<Pending>, Error> {
        let mut left = Vec::new();
        while !pending.is_empty() {
            // Those without a descriptor come later: most will have ended by the time that the
            // first ones have. What one waits for the other need not.
            let size = pending.len().min(descriptor_budget());
            let mut part = Vec::with_capacity(size);
            for one in pending.drain(..size) {
                match self.hold(one.index, one.process)? {
                    Ok(process) => part.push((one.index, process)),
                    Err(Outcome::Gone) => self.outcomes[one.index] = if_exited,
                    Err(outcome) => self.outcomes[one.index] = outcome,
                }
            }
            let references: Vec<_> = part.iter().map(|(_, process)| process.reference()).collect();
            os::wait_for_exits(&references, deadline).map_err(Error::os("wait"))?;
            for (index, process) in part {
                if process.is_alive()? {
                    left.push(Pending { index, process: pending.is_empty().then_some(process) });
                } else {
                    self.outcomes[index] = if_exited;
                }
            }
        }
        Ok(left)
    }

    /// The process behind a target, or how things stand if there is none to signal.
    fn hold(&self, index: usize, held: Option<Process>) -> Result<Result<Process, Outcome>, Error> {
        let process = match held {
            Some(process) => process,
            None => match Process::reopen(&self.targets[index], self.run_id)? {
                Found::Same(process) => process,
                Found::Gone => return Ok(Err(Outcome::Gone)),
                Found::Ambiguous => return Ok(Err(Outcome::Ambiguous)),
            },
        };
        Ok(if process.is_alive()? { Ok(process) } else { Err(Outcome::Gone) })
    }
}

/// Sends `signal`, and `SIGCONT` after it: a stopped process acts on nothing but `SIGKILL` until it
/// is continued.
pub(crate) fn request(process: &Process, signal: Signal) -> Result<Delivery, Error> {
    let delivery = process.signal(signal)?;
    if delivery == Delivery::Sent && signal != Signal::KILL {
        process.signal(Signal::CONT)?;
    }
    Ok(delivery)
}

/// The outcome that an error stands for; `None` if it is not about the one process.
pub(crate) fn refusal(error: &Error) -> Option<Outcome> {
    match error {
        Error::Signal { errno: Errno::EPERM, .. } => Some(Outcome::NotPermitted),
        Error::Protected(_) => Some(Outcome::Refused),
        _ => None,
    }
}

/// How many descriptors to hold at once: this may be the BEAM, which needs the others for its
/// sockets and files.
pub(crate) fn descriptor_budget() -> usize {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(soft / 4).unwrap_or(usize::MAX).clamp(16, 4096)
}
