//! What this place allows, as findings for people: what was found, what it costs, and how to get what is missing.
//!
//! [`examine`] gathers facts with harmless calls, [`findings`] decides what follows from them. Linux only. The
//! sentences are here, and not in Elixir as all others, because the helper binary says them where there is no
//! Erlang.

use nix::errno::Errno;

use crate::self_test::{self, Facts, Table};

mod place;

pub use place::{Directory, Place, directory, examine};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// All is well.
    Fine,
    /// Good to know; no promise depends on it.
    Note,
    /// A promise is weaker here.
    Weaker,
    /// A promise cannot be kept: Snakepit does not start here.
    Broken,
}

impl Level {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::Note => "note",
            Self::Weaker => "weaker",
            Self::Broken => "broken",
        }
    }
}

/// What was found of one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What it costs; nothing where all is well.
    pub cost: String,
    /// How to get what is missing.
    pub remedy: String,
}

fn fine(check: &'static str, found: impl Into<String>) -> Finding {
    let (cost, remedy) = (String::new(), String::new());
    Finding { check, level: Level::Fine, found: found.into(), cost, remedy }
}

fn finding(
    check: &'static str,
    level: Level,
    found: impl Into<String>,
    cost: &str,
    remedy: &str,
) -> Finding {
    Finding { check, level, found: found.into(), cost: cost.into(), remedy: remedy.into() }
}

/// The first kernel that has all that is needed, and the first with handles of processes.
const NEEDED: (u32, u32) = (5, 9);
const HANDLES: (u32, u32) = (6, 14);
/// Of descriptors, a worker with pipes takes a handful in the guardian.
const FEW_DESCRIPTORS: u64 = 4096;
/// Of bytes: a ledger that grows to its bound fits.
const LITTLE_SPACE: u64 = 128 * 1024 * 1024;

/// Returns what follows from the facts, in the order in which people should read it.
pub fn findings(facts: &Facts, place: &Place) -> Vec<Finding> {
    let mut findings = vec![
        kernel(place),
        process_table(facts),
        hidden(facts),
        pidfd(facts),
        handles(facts, place),
        subreaper(place),
        children(place),
        lineage(facts),
        boot(facts),
        seccomp(facts),
        capabilities(place),
        descriptors(place),
        processes(place),
        container(place),
    ];
    findings.extend(place.directories.iter().map(data_directory));
    if place.directories.is_empty() {
        findings.push(finding(
            "data directory",
            Level::Note,
            "there is none of this user yet in the usual places",
            "there is no run to look at",
            "the first start of Snakepit makes one; name another with --data-dir or SNAKEPIT_DATA_DIR",
        ));
    }
    findings
}

/// As [`examine`] and [`findings`] together.
pub fn report(data_dirs: &[std::path::PathBuf]) -> Vec<Finding> {
    findings(&self_test::examine(), &examine(data_dirs))
}

fn kernel(place: &Place) -> Finding {
    let found = format!("Linux {}", place.release);
    match place.version {
        Some(version) if version < NEEDED => finding(
            "kernel",
            Level::Broken,
            found,
            "processes cannot be signalled and waited for without a race",
            "Linux 5.9 or later",
        ),
        _ => fine("kernel", found),
    }
}

fn process_table(facts: &Facts) -> Finding {
    let broken = |found: String, remedy| {
        let cost =
            "Snakepit would take other processes for its own, or not see what it leaves behind";
        finding("process table", Level::Broken, found, cost, remedy)
    };
    match facts.table {
        Table::Own => fine("process table", "/proc is that of this pid namespace"),
        Table::Foreign(there) => broken(
            format!("/proc is that of another pid namespace, in which this process is {there}"),
            "mount this namespace's own: unshare with --mount-proc, bwrap with --proc /proc, or mount -t proc proc /proc",
        ),
        Table::Absent(errno) => broken(
            format!("/proc does not show this process ({})", name(errno)),
            "mount it where the BEAM runs: mount -t proc proc /proc in a chroot, bwrap with --proc /proc",
        ),
    }
}

fn hidden(facts: &Facts) -> Finding {
    if !facts.hides {
        return fine("visibility", "/proc shows all processes");
    }
    finding(
        "visibility",
        Level::Weaker,
        "/proc hides processes that this user may not trace (hidepid)",
        "a later start does not find set-user-id programs and programs with file capabilities that were not recorded",
        "mount /proc without hidepid (ProtectProc=default), or grant its gid= or CAP_SYS_PTRACE",
    )
}

fn pidfd(facts: &Facts) -> Finding {
    let Some(refusal) = facts.pidfd else {
        return fine("pidfd", "processes are signalled through pidfds");
    };
    let remedy = if refusal.errno == Errno::ENOSYS {
        "Linux 5.9 or later; if the kernel is, let the sandbox (seccomp profile, gVisor) pass pidfd_open and \
         pidfd_send_signal"
    } else {
        "let the sandbox pass pidfd_open and pidfd_send_signal: the container's seccomp profile (Docker before 20.10 \
         forbids both), or the unit's SystemCallFilter"
    };
    let found = format!("{} is refused ({})", refusal.call, name(refusal.errno));
    finding("pidfd", Level::Broken, found, "Snakepit could not signal its processes safely", remedy)
}

fn handles(facts: &Facts, place: &Place) -> Finding {
    if facts.handles {
        return fine(
            "handles",
            "the kernel has handles of processes: none is mistaken for another",
        );
    }
    let (found, remedy) = match place.version {
        Some(version) if version >= HANDLES => (
            "name_to_handle_at is refused for pidfds",
            "let the sandbox pass name_to_handle_at and open_by_handle_at",
        ),
        _ => ("this kernel has no handles of processes", "Linux 6.14 or later"),
    };
    finding(
        "handles",
        Level::Note,
        found,
        "processes are known by pid and start time, which is exact once their first 10 ms are over; Snakepit waits \
         for that",
        remedy,
    )
}

fn subreaper(place: &Place) -> Finding {
    match place.subreaper {
        Ok(()) => fine("subreaper", "daemons become children of the guardian"),
        Err(errno) => finding(
            "subreaper",
            Level::Broken,
            format!("prctl(PR_GET_CHILD_SUBREAPER) is refused ({})", name(errno)),
            "daemons would escape the guardian, so it does not start",
            "let the sandbox pass prctl: the container's seccomp profile, or the unit's SystemCallFilter",
        ),
    }
}

fn children(place: &Place) -> Finding {
    if place.children_listed {
        return fine("children", "the kernel lists the children of a process");
    }
    finding(
        "children",
        Level::Note,
        "the kernel does not list the children of a process (/proc/self/task/*/children)",
        "the end of a worker takes a pass over all processes of the host",
        "a kernel with CONFIG_PROC_CHILDREN",
    )
}

fn lineage(facts: &Facts) -> Finding {
    let Some(limit) = facts.lock_limit else {
        return fine("lineage", "descendants are known by an inherited limit (RLIMIT_LOCKS)");
    };
    finding(
        "lineage",
        Level::Weaker,
        format!("the hard limit of RLIMIT_LOCKS is {limit}"),
        "a daemon that empties its environment and leaves its session ends with the BEAM instead of with its worker",
        "leave that limit infinite, it has no effect: no LimitLOCKS=, --ulimit locks= or locks in limits.conf",
    )
}

fn boot(facts: &Facts) -> Finding {
    if facts.boot {
        return fine("boot", "the boot and the pid namespace are known");
    }
    finding(
        "boot",
        Level::Weaker,
        "the boot or the pid namespace cannot be read",
        "what a dead run has recorded is ended only if a marker or a lineage confirms it",
        "show /proc/sys/kernel/random/boot_id and /proc/self/ns/pid (no ProcSubset=pid)",
    )
}

fn seccomp(facts: &Facts) -> Finding {
    if !facts.filtered {
        return fine("seccomp", "no system call filter is at work");
    }
    finding(
        "seccomp",
        Level::Note,
        "a system call filter is at work",
        "a call that it forbids with SIGSYS ends the guardian; those that refuse with an errno are found above",
        "the profile of Docker 20.10 or later and systemd's @system-service pass all that is needed",
    )
}

fn capabilities(place: &Place) -> Finding {
    let missing: Vec<&str> =
        place.capabilities.iter().filter(|(_, has)| !has).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return fine("capabilities", "workers may run as other users (:user, :group)");
    }
    finding(
        "capabilities",
        Level::Note,
        format!("without {}", missing.join(", ")),
        "workers run as this user: the options :user, :group and :groups are refused",
        "nothing, unless you use them: then start as root, or with AmbientCapabilities= or --cap-add",
    )
}

fn descriptors(place: &Place) -> Finding {
    let Some(limit) = place.descriptors else {
        return fine("descriptors", "no limit");
    };
    let found = format!("at most {limit}");
    if limit >= FEW_DESCRIPTORS {
        return fine("descriptors", found);
    }
    finding(
        "descriptors",
        Level::Note,
        found,
        "each worker takes some in the guardian, so there can be few; more are refused with emfile",
        "LimitNOFILE= in the unit, --ulimit nofile= of the container, or ulimit -n",
    )
}

fn processes(place: &Place) -> Finding {
    let limits = [("RLIMIT_NPROC", place.processes), ("pids.max", place.group_processes)];
    let limits: Vec<String> =
        limits.iter().filter_map(|(name, limit)| Some(format!("{name} {}", (*limit)?))).collect();
    if limits.is_empty() {
        return fine("processes", "no limit");
    }
    fine("processes", format!("at most {}", limits.join(", ")))
}

fn container(place: &Place) -> Finding {
    let Some(container) = &place.container else {
        return fine("container", "none was noticed");
    };
    let first = String::from_utf8_lossy(&place.first_process);
    let reaps = ["tini", "docker-init", "dumb-init", "catatonit", "systemd", "init", "s6-svscan"];
    if first.starts_with("snakepit_guardi") || reaps.contains(&first.as_ref()) {
        return fine("container", format!("{container}; its first process is {first}"));
    }
    finding(
        "container",
        Level::Note,
        format!("{container}; its first process is {first}"),
        "if that reaps no children, zombies of other programs stay; Snakepit's own are reaped by the guardian",
        "snakepit_guardian init -- COMMAND as the entry point, or docker run --init",
    )
}

fn data_directory(directory: &Directory) -> Finding {
    const CHECK: &str = "data directory";
    let path = directory.path.display();
    let broken = |found: String, cost, remedy| finding(CHECK, Level::Broken, found, cost, remedy);
    let trust = "Snakepit reads nothing there: what others write could have processes killed";
    if let Some((call, errno)) = directory.failed {
        let cost = "no run can be recorded, so Snakepit does not start";
        return match call {
            "flock" => broken(
                format!("{path} cannot hold a lock ({})", name(errno)),
                cost,
                "a directory on a local file system: config :snakepit, data_dir: or SNAKEPIT_DATA_DIR",
            ),
            _ => broken(
                format!("{path}: {call} fails ({})", name(errno)),
                cost,
                "give it to this user, or name another: config :snakepit, data_dir: or SNAKEPIT_DATA_DIR",
            ),
        };
    }
    if directory.foreign_owner {
        return broken(
            format!("{path} belongs to another user"),
            trust,
            "a directory of this user",
        );
    }
    if directory.shared {
        return broken(format!("others may write to {path}"), trust, "chmod go-w");
    }
    if let Some(kind) = &directory.remote {
        return broken(
            format!("{path} is on a file system ({kind}) that other hosts may use too"),
            "their locks and pids mean nothing here, so Snakepit does not start",
            "a local disk, or config :snakepit, allow_network_data_dir: true if this host alone uses it",
        );
    }
    if let Some(free) = directory.free_bytes.filter(|free| *free < LITTLE_SPACE) {
        return finding(
            CHECK,
            Level::Weaker,
            format!("{path} has {} KB left", free / 1024),
            "when the disk is full no process can be recorded, and none is started",
            "make room, or name another directory",
        );
    }
    if directory.in_memory {
        return finding(
            CHECK,
            Level::Note,
            format!("{path} is in memory"),
            "the history of runs is lost with the next boot; no process can be, they end with it too",
            "nothing, unless you want the history",
        );
    }
    fine(CHECK, format!("{path} is this user's alone, on a local disk, and locks work"))
}

fn name(errno: Errno) -> String {
    format!("{errno:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;
    use crate::self_test::Refusal;

    fn facts() -> Facts {
        Facts {
            pid: Pid::current(),
            table: Table::Own,
            pidfd: None,
            handles: true,
            lock_limit: None,
            hides: false,
            boot: true,
            filtered: false,
        }
    }

    fn place() -> Place {
        Place {
            release: "6.18.0".into(),
            version: Some((6, 18)),
            subreaper: Ok(()),
            children_listed: true,
            capabilities: vec![("CAP_KILL", true)],
            descriptors: None,
            processes: None,
            group_processes: None,
            container: None,
            first_process: b"init".to_vec(),
            directories: vec![Directory::default()],
        }
    }

    fn worst(facts: &Facts, place: &Place) -> (Level, &'static str) {
        let findings = findings(facts, place);
        for one in &findings {
            let fine = one.level == Level::Fine;
            assert_eq!(fine, one.cost.is_empty(), "{one:?}");
            assert_eq!(fine, one.remedy.is_empty(), "{one:?}");
        }
        // Of those that are equally bad, the first.
        let worst = findings.iter().map(|one| one.level).max().unwrap();
        (worst, findings.iter().find(|one| one.level == worst).unwrap().check)
    }

    #[test]
    fn each_missing_thing_is_found_and_has_a_cost_and_a_remedy() {
        assert_eq!(worst(&facts(), &place()).0, Level::Fine);
        let refusal = Refusal { call: "pidfd_open", errno: Errno::EPERM };
        for (facts, expected) in [
            (Facts { table: Table::Foreign(7), ..facts() }, (Level::Broken, "process table")),
            (
                Facts { table: Table::Absent(Errno::ENOENT), ..facts() },
                (Level::Broken, "process table"),
            ),
            (Facts { pidfd: Some(refusal), ..facts() }, (Level::Broken, "pidfd")),
            (Facts { handles: false, ..facts() }, (Level::Note, "handles")),
            (Facts { lock_limit: Some(8), ..facts() }, (Level::Weaker, "lineage")),
            (Facts { hides: true, ..facts() }, (Level::Weaker, "visibility")),
            (Facts { boot: false, ..facts() }, (Level::Weaker, "boot")),
            (Facts { filtered: true, ..facts() }, (Level::Note, "seccomp")),
        ] {
            assert_eq!(worst(&facts, &place()), expected);
        }
        let of = |directory| vec![directory];
        for (place, expected) in [
            (Place { version: Some((5, 8)), ..place() }, (Level::Broken, "kernel")),
            (Place { subreaper: Err(Errno::EPERM), ..place() }, (Level::Broken, "subreaper")),
            (Place { children_listed: false, ..place() }, (Level::Note, "children")),
            (
                Place { capabilities: vec![("CAP_KILL", false)], ..place() },
                (Level::Note, "capabilities"),
            ),
            (Place { descriptors: Some(256), ..place() }, (Level::Note, "descriptors")),
            (Place { directories: Vec::new(), ..place() }, (Level::Note, "data directory")),
            (
                Place {
                    container: Some("docker".into()),
                    first_process: b"sh".to_vec(),
                    ..place()
                },
                (Level::Note, "container"),
            ),
            (
                Place {
                    directories: of(Directory { shared: true, ..Directory::default() }),
                    ..place()
                },
                (Level::Broken, "data directory"),
            ),
            (
                Place {
                    directories: of(Directory {
                        failed: Some(("flock", Errno::ENOLCK)),
                        ..Directory::default()
                    }),
                    ..place()
                },
                (Level::Broken, "data directory"),
            ),
            (
                Place {
                    directories: of(Directory { free_bytes: Some(1), ..Directory::default() }),
                    ..place()
                },
                (Level::Weaker, "data directory"),
            ),
            (
                Place {
                    directories: of(Directory { in_memory: true, ..Directory::default() }),
                    ..place()
                },
                (Level::Note, "data directory"),
            ),
        ] {
            assert_eq!(worst(&facts(), &place), expected);
        }
    }
}
