//! Control groups that freeze a process.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::spawn::Spawned;
use super::{eventually, within};

/// A child that is frozen, or has a frozen descendant. Thawed, killed and reaped when the test is over.
pub struct Frozen {
    pub process: Spawned,
    group: PathBuf,
    switch: (&'static str, &'static str),
}

impl Frozen {
    /// With the freezer of control groups version 1: not even `SIGKILL` ends it until it is thawed.
    /// `None`, and a word about it, where there is none.
    pub fn v1(process: Spawned) -> Option<Self> {
        let pid = process.raw();
        Self::v1_descendant(process, pid)
    }

    /// The same, of a descendant of `process`.
    pub fn v1_descendant(process: Spawned, pid: i32) -> Option<Self> {
        let root = mount("cgroup", "freezer");
        Self::freeze(process, pid, &root?, "freezer.state", ("FROZEN", "THAWED"))
    }

    /// With version 2: `SIGKILL` gets through.
    pub fn v2(process: Spawned) -> Option<Self> {
        let root = mount("cgroup2", "");
        let pid = process.raw();
        Self::freeze(process, pid, &root?, "cgroup.freeze", ("1", "0"))
    }

    fn freeze(
        process: Spawned,
        pid: i32,
        root: &Path,
        file: &'static str,
        (on, off): (&str, &'static str),
    ) -> Option<Self> {
        let group = root.join(format!("snakepit-test-{pid}"));
        if let Err(error) = fs::create_dir(&group) {
            eprintln!("skipped: {}: {error}", group.display());
            return None;
        }
        let frozen = Self { process, group, switch: (file, off) };
        fs::write(frozen.group.join("cgroup.procs"), pid.to_string()).unwrap();
        fs::write(frozen.group.join(file), on).unwrap();
        eventually("it is frozen", || frozen.is_frozen());
        Some(frozen)
    }

    fn is_frozen(&self) -> bool {
        let read = |file| fs::read_to_string(self.group.join(file)).unwrap_or_default();
        read("freezer.state").trim() == "FROZEN" || read("cgroup.events").contains("frozen 1")
    }

    pub fn thaw(&self) {
        fs::write(self.group.join(self.switch.0), self.switch.1).unwrap();
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
        self.process.end();
        // The kernel lets go of the group a moment after the process is reaped.
        if !within(Duration::from_secs(5), || fs::remove_dir(&self.group).is_ok()) {
            eprintln!("left behind: {}", self.group.display());
        }
    }
}

/// Where a control group hierarchy is mounted.
fn mount(kind: &str, option: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let found = mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let fits =
            fields[2] == kind && (option.is_empty() || fields[3].split(',').any(|o| o == option));
        fits.then(|| PathBuf::from(fields[1]))
    });
    if found.is_none() {
        eprintln!("skipped: no {kind} {option} is mounted");
    }
    found
}
