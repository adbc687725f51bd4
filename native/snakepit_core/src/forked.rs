//! The identity of a child that this very process has just forked.
//!
//! Until a child is reaped its pid cannot change hands, and when it was made is known to its parent.
//! So nothing of it has to be read from the process table, as a rule, nor compared.

use std::time::Duration;

use crate::{Error, Identity, Pid, Process, os};

/// A moment, by the clock of start times.
#[derive(Clone, Copy, Debug)]
pub struct Moment(Option<Duration>);

impl Moment {
    /// `clock_gettime(CLOCK_BOOTTIME)`, now.
    pub fn now() -> Self {
        Self(os::boot_time())
    }
}

/// Returns the identity of a child that was forked between two moments and has not been reaped; `None`
/// if there is no such child.
///
/// # Errors
///
/// As for [`Process::open`].
pub fn identify(pid: Pid, before: Moment, after: Moment) -> Result<Option<Identity>, Error> {
    os::load_host_ids().map_err(Error::os("boot and namespace"))?;
    let Some(child) = os::Reference::open(pid).map_err(Error::os("process open"))? else {
        return Ok(None);
    };
    let start = before.0.zip(after.0).and_then(|(before, after)| os::start_between(before, after));
    let (Some(start), Some(handle)) = (start, child.handle()) else {
        return Ok(Process::open(pid)?.map(|process| process.identity().clone()));
    };
    Ok(Some(Identity {
        pid,
        start,
        settled: os::start_is_past(start),
        uid: None,
        boot: os::boot_id(),
        namespace: os::pid_namespace(),
        handle: Some(handle),
    }))
}

/// Returns how long it takes until no other process can get this start time.
pub fn settles_in(start: u64) -> Duration {
    os::until_past(start)
}
