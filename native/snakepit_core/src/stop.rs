//! Ends many processes together: ask all, wait for all until one deadline, kill what is left.

use std::time::{Duration, Instant};

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
    /// The kernel refused the signal, whatever the errno: it is another user's (`EPERM`), a security
    /// module protects it (`EACCES`).
    NotPermitted,
    /// It may be another process, so it was left alone.
    Ambiguous,
    /// It is protected: see [`crate::protect`].
    Refused,
    /// It was killed and is still there, for example in an uninterruptible system call; or there was
    /// no descriptor to be had to reach it by.
    Survived,
}

/// How often to try again while there is no descriptor to be had.
const PAUSE: Duration = Duration::from_millis(10);

/// A process that was signalled and may still be there.
struct Pending {
    index: usize,
    /// Dropped while there are more processes than descriptors; opened again by identity.
    process: Option<Process>,
}

/// What a target turned out to be.
enum Resolved {
    /// The process.
    Process(Process),
    /// None to signal, for this reason.
    NoProcess(Outcome),
    /// Not known: there is no descriptor left to open it.
    NoDescriptor,
}

/// Ends all `targets`, and returns how it went for each, in their order.
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
    let killed = batch.signal(left, Signal::KILL, plan.kill_wait, Outcome::Stopped)?;
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
        let asked = self.signal(all, plan.signal, plan.grace, Outcome::Gone)?;
        self.wait(asked, Instant::now() + plan.grace, Outcome::Stopped)
    }

    fn finish(mut self, left: Vec<Pending>) -> Vec<Outcome> {
        for survivor in left {
            self.outcomes[survivor.index] = Outcome::Survived;
        }
        self.outcomes
    }

    /// Signals each; those that turn out to be gone get the outcome `if_gone`. Returns those that
    /// are worth waiting for, and those for which there was no descriptor in all of `patience`.
    fn signal(
        &mut self,
        pending: Vec<Pending>,
        signal: Signal,
        patience: Duration,
        if_gone: Outcome,
    ) -> Result<Vec<Pending>, Error> {
        let deadline = Instant::now() + patience;
        let mut capacity = descriptor_budget();
        let mut held = pending.iter().filter(|one| one.process.is_some()).count();
        let mut signalled: Vec<Pending> = Vec::with_capacity(pending.len());
        // Those that are held need no descriptor, and may come to free theirs.
        let (first, then): (Vec<_>, Vec<_>) =
            pending.into_iter().partition(|one| one.process.is_some());
        for Pending { index, process } in first.into_iter().chain(then) {
            let was_held = process.is_some();
            let mut resolved = self.resolve(index, process)?;
            while matches!(resolved, Resolved::NoDescriptor) {
                // From here on nothing is held only to save opening it again.
                capacity = 0;
                let freed = signalled.iter_mut().filter_map(|one| one.process.take()).count();
                if freed == 0 && !pause_until(deadline) {
                    break;
                }
                resolved = self.resolve(index, None)?;
            }
            let process = match resolved {
                Resolved::Process(process) => process,
                Resolved::NoProcess(outcome) => {
                    self.outcomes[index] = if outcome == Outcome::Gone { if_gone } else { outcome };
                    continue;
                }
                Resolved::NoDescriptor => {
                    signalled.push(Pending { index, process: None });
                    continue;
                }
            };
            match request(&process, signal) {
                Ok(Delivery::Sent) => {
                    let keep = was_held || held < capacity;
                    held += usize::from(keep && !was_held);
                    signalled.push(Pending { index, process: keep.then_some(process) });
                }
                Ok(Delivery::Gone) => self.outcomes[index] = if_gone,
                Err(error) => self.outcomes[index] = refusal(&error).ok_or(error)?,
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
            let mut later = Vec::new();
            for one in pending.drain(..size) {
                match self.resolve(one.index, one.process)? {
                    Resolved::Process(process) => part.push((one.index, process)),
                    Resolved::NoProcess(Outcome::Gone) => self.outcomes[one.index] = if_exited,
                    Resolved::NoProcess(outcome) => self.outcomes[one.index] = outcome,
                    Resolved::NoDescriptor => {
                        later.push(Pending { index: one.index, process: None });
                    }
                }
            }
            if !later.is_empty() {
                // All that there were: others that need one get half of them.
                let surplus = part.split_off(part.len().div_ceil(2));
                later
                    .extend(surplus.into_iter().map(|(index, _)| Pending { index, process: None }));
            }
            if part.is_empty() && !pause_until(deadline) {
                left.append(&mut later);
            }
            later.append(&mut pending);
            pending = later;
            let references: Vec<_> = part.iter().map(|(_, process)| process.reference()).collect();
            wait_for_exits(&references, deadline)?;
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

    fn resolve(&self, index: usize, held: Option<Process>) -> Result<Resolved, Error> {
        let process = match held {
            Some(process) => process,
            None => match Process::reopen(&self.targets[index], self.run_id) {
                Ok(Found::Same(process)) => process,
                Ok(Found::Gone) => return Ok(Resolved::NoProcess(Outcome::Gone)),
                Ok(Found::Ambiguous) => return Ok(Resolved::NoProcess(Outcome::Ambiguous)),
                Err(error) if error.is_exhaustion() => return Ok(Resolved::NoDescriptor),
                Err(error) => return Err(error),
            },
        };
        let alive = process.is_alive()?;
        Ok(if alive { Resolved::Process(process) } else { Resolved::NoProcess(Outcome::Gone) })
    }
}

/// Sleeps for a moment, in which others may give descriptors back. Returns false if the time is up.
pub(crate) fn pause_until(deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    std::thread::sleep(left.min(PAUSE));
    !left.is_zero()
}

/// As [`os::wait_for_exits`], which takes a descriptor of its own, or by asking again and again if
/// there is none.
pub(crate) fn wait_for_exits(
    references: &[&os::Reference],
    deadline: Instant,
) -> Result<(), Error> {
    match os::wait_for_exits(references, deadline).map_err(Error::os("wait")) {
        Err(error) if error.is_exhaustion() => {}
        result => return result,
    }
    for reference in references {
        while !reference.has_exited().map_err(Error::os("process state"))? {
            if !pause_until(deadline) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Sends `signal`, and `SIGCONT` after it: a stopped process acts on nothing but `SIGKILL` until it
/// is continued.
pub(crate) fn request(process: &Process, signal: Signal) -> Result<Delivery, Error> {
    let delivery = process.signal(signal)?;
    if delivery == Delivery::Sent && signal != Signal::KILL {
        // It has been asked. That it may not be continued is no refusal of that.
        let _ = process.signal(Signal::CONT);
    }
    Ok(delivery)
}

/// Returns the outcome that an error stands for; `None` if it is not about the one process. A refused signal
/// is: there is no errno of it for which the others must not be ended.
pub(crate) fn refusal(error: &Error) -> Option<Outcome> {
    match error {
        Error::Signal { .. } => Some(Outcome::NotPermitted),
        Error::Protected(_) => Some(Outcome::Refused),
        _ => None,
    }
}

/// Returns how many descriptors to hold at once: this may be the BEAM, which needs the others for its
/// sockets and files.
pub(crate) fn descriptor_budget() -> usize {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    usize::try_from(soft / 4).unwrap_or(usize::MAX).clamp(16, 4096)
}
