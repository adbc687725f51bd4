//! Who must never be signalled, whatever the caller asks.
//!
//! The check sits in front of the system call, in [`crate::Process`] and [`crate::group`], and not
//! at the edge of an API: a caller that takes another way in meets it all the same.

use std::sync::{Mutex, PoisonError};

use nix::unistd::{getpgid, getpgrp, getsid};

use crate::{Error, Identity, Pid, Process};

/// The guardians of this process. By identity: the pid of one that has ended is another's before long.
static GUARDIANS: Mutex<Vec<Identity>> = Mutex::new(Vec::new());

/// Refuses signals to this process and its group from now on, while it lives: all that it guards would end
/// with it.
pub fn add_guardian(guardian: Identity) {
    with_guardians(|guardians| {
        guardians.retain(|other| other.pid != guardian.pid);
        guardians.push(guardian);
    });
}

/// Allows signals to this guardian again: it is about to be ended.
pub fn remove_guardian(guardian: &Identity) {
    with_guardians(|guardians| guardians.retain(|other| other != guardian));
}

// The lock is held for no system call.
fn with_guardians<T>(run: impl FnOnce(&mut Vec<Identity>) -> T) -> T {
    run(&mut GUARDIANS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns whether one of the guardians that `of` chooses still runs. In doubt it does.
fn guards(of: impl Fn(&Identity) -> bool) -> bool {
    let chosen: Vec<_> = with_guardians(|all| all.iter().filter(|one| of(one)).cloned().collect());
    chosen.into_iter().any(|guardian| {
        let runs = Process::still_runs(&guardian).unwrap_or(true);
        if !runs {
            remove_guardian(&guardian);
        }
        runs
    })
}

/// Refuses pid 1, this process, its guardian, and the leaders of its group and session: the end of a
/// session's leader hangs up everyone in it, this process included.
///
/// # Errors
///
/// [`Error::Protected`].
pub fn process(pid: Pid) -> Result<(), Error> {
    let ours = pid == Pid::current() || own_leaders().contains(&pid.as_raw());
    refuse(pid, ours || guards(|guardian| guardian.pid == pid))
}

/// Refuses group 1, and the groups of this process, of its guardian and of its session's leader.
///
/// # Errors
///
/// [`Error::Protected`].
pub fn group(pgid: Pid) -> Result<(), Error> {
    let leads_or_is_in = |guardian: &Identity| {
        let group = getpgid(Some(nix::unistd::Pid::from_raw(guardian.pid.as_raw())));
        guardian.pid == pgid || group.is_ok_and(|group| group.as_raw() == pgid.as_raw())
    };
    refuse(pgid, own_leaders().contains(&pgid.as_raw()) || guards(leads_or_is_in))
}

fn refuse(pid: Pid, ours: bool) -> Result<(), Error> {
    if ours || pid.as_raw() == 1 { Err(Error::Protected(pid.as_raw().into())) } else { Ok(()) }
}

// Asked each time: it costs less than a microsecond, and both can change under a running program.
fn own_leaders() -> [libc::pid_t; 2] {
    let session = getsid(None).map_or(0, nix::unistd::Pid::as_raw);
    [getpgrp().as_raw(), session]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_this_process_and_its_leaders_are_refused() {
        let init = Pid::new(1).unwrap();
        assert!(process(init).is_err());
        assert!(group(init).is_err());
        assert!(process(Pid::current()).is_err());
        for leader in own_leaders() {
            // 0: the leader lives in an outer pid namespace and has no number here.
            if let Some(leader) = Pid::new(leader.into()) {
                assert!(process(leader).is_err());
                assert!(group(leader).is_err());
            }
        }
    }
}
