//! What this place lets a process do: facts only, tried with harmless calls. What follows from them, and
//! how it is said, is decided in Elixir.

use nix::errno::Errno;

use crate::Pid;

/// What a BEAM finds where it starts.
#[expect(clippy::struct_excessive_bools, reason = "answers to questions of their own")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its own pid, by `getpid(2)`.
    pub pid: Pid,
    /// Whose the process table is.
    pub table: Table,
    /// The call for pidfds that does not work.
    pub pidfd: Option<Refusal>,
    /// Whether pidfds have file handles: Linux 6.14, if no filter forbids `name_to_handle_at(2)`.
    pub handles: bool,
    /// The hard limit that leaves no room for a lineage; `None` if there is none.
    pub lock_limit: Option<u64>,
    /// Whether `/proc` hides processes from this one that it may not trace (`hidepid`).
    pub hides: bool,
    /// Whether the boot and the pid namespace can be told.
    pub boot: bool,
    /// Whether a system call filter is at work (seccomp).
    pub filtered: bool,
}

/// Whose process table `/proc` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Of this pid namespace.
    Own,
    /// Of another one, in which this process has that pid.
    Foreign(i64),
    /// Nobody's that shows this process: `/proc` is empty, not mounted, or of a namespace further down.
    Absent(Errno),
}

/// A system call that is missing or forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its name.
    pub call: &'static str,
    /// What it answers.
    pub errno: Errno,
}

#[cfg(target_os = "linux")]
pub use linux::{examine, pidfd};

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::io::Read;

    use nix::sys::resource::{Resource, getrlimit};

    use super::{Errno, Facts, Pid, Refusal, Table};
    use crate::error::errno;
    use crate::identity::is_known_boot;
    use crate::table::Columns;
    use crate::{os, proc_text};

    /// Of `capabilities(7)`.
    const CAP_SYS_PTRACE: u32 = 19;
    /// Mounts by the thousand are longer; the first of them is `/proc` in most places.
    const MOUNTS_LIMIT: u64 = 1 << 20;

    /// Some ten system calls.
    pub fn examine() -> Facts {
        let pid = Pid::current();
        let status = fs::read("/proc/self/status").unwrap_or_default();
        let reference = os::Reference::open(pid).ok().flatten();
        let sees_all = proc_text::has_capability(&status, CAP_SYS_PTRACE);
        Facts {
            pid,
            table: table(pid, &status),
            pidfd: pidfd(),
            handles: reference.is_some_and(|own| own.handle().is_some()),
            lock_limit: lock_limit(),
            hides: !sees_all && proc_text::hides(&mounts(), &groups()),
            boot: is_known_boot(&os::boot_id()),
            filtered: proc_text::is_filtered(&status),
        }
    }

    /// The call for pidfds that this process is refused, tried on itself with no signal at all.
    pub fn pidfd() -> Option<Refusal> {
        let refused = |call| move |errno| Refusal { call, errno };
        let own = match os::Reference::open(Pid::current()) {
            Ok(Some(own)) => own,
            Ok(None) => return Some(refused("pidfd_open")(Errno::ESRCH)),
            Err(errno) => return Some(refused("pidfd_open")(errno)),
        };
        own.probe().err().map(refused("pidfd_send_signal"))
    }

    fn table(pid: Pid, status: &[u8]) -> Table {
        let shown = match fs::read_link("/proc/self") {
            Ok(link) => link.to_str().and_then(|text| text.parse::<i64>().ok()),
            Err(error) => return Table::Absent(errno(&error)),
        };
        match shown {
            Some(shown) if shown != i64::from(pid.as_raw()) => Table::Foreign(shown),
            // The two numbers may be equal by chance; of an outer namespace there is more than one.
            Some(shown) if proc_text::namespaces(status) > 1 => Table::Foreign(shown),
            Some(_) => match os::inspect(pid, Columns::default()) {
                Ok(Some(_)) => Table::Own,
                Ok(None) => Table::Absent(Errno::ENOENT),
                Err(errno) => Table::Absent(errno),
            },
            None => Table::Absent(Errno::EINVAL),
        }
    }

    fn lock_limit() -> Option<u64> {
        let (_, hard) = getrlimit(Resource::RLIMIT_LOCKS).ok()?;
        (hard != libc::RLIM_INFINITY).then_some(hard)
    }

    fn mounts() -> Vec<u8> {
        let mut text = Vec::new();
        if let Ok(file) = fs::File::open("/proc/self/mountinfo") {
            let _ = file.take(MOUNTS_LIMIT).read_to_end(&mut text);
        }
        text
    }

    fn groups() -> Vec<u32> {
        let groups = nix::unistd::getgroups().unwrap_or_default();
        groups.into_iter().chain([nix::unistd::getegid()]).map(nix::unistd::Gid::as_raw).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn this_machine_can_run_these_tests() {
            let facts = examine();
            assert_eq!((facts.pid, facts.table, facts.pidfd), (Pid::current(), Table::Own, None));
        }
    }
}

/// There is no guardian yet on this system, and nothing to find out.
#[cfg(not(target_os = "linux"))]
pub fn examine() -> Facts {
    Facts {
        pid: Pid::current(),
        table: Table::Own,
        pidfd: None,
        handles: false,
        lock_limit: None,
        hides: false,
        boot: true,
        filtered: false,
    }
}
