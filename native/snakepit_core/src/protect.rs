//! Who must never be signalled, whatever the caller asks.
//!
//! The check sits in front of the system call, in [`crate::Process`] and [`crate::group`], and not
//! at the edge of an API: a caller that takes another way in meets it all the same.

use nix::unistd::{getpgrp, getsid};

use crate::{Error, Pid};

/// Refuses pid 1, this process, and the leaders of its group and session: the end of a session's
/// leader hangs up everyone in it, this process included.
///
/// # Errors
///
/// [`Error::Protected`].
pub fn process(pid: Pid) -> Result<(), Error> {
    refuse(pid, pid == Pid::current() || own_leaders().contains(&pid.as_raw()))
}

/// Refuses group 1, and the groups of this process and of its session's leader.
///
/// # Errors
///
/// [`Error::Protected`].
pub fn group(pgid: Pid) -> Result<(), Error> {
    refuse(pgid, own_leaders().contains(&pgid.as_raw()))
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
