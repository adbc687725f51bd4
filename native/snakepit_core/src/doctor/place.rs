//! The facts that only a person asks for, tried with harmless calls.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::statfs;

use crate::error::errno;
use crate::{Error, directory as directories, entropy, filesystem, proc_text};

/// What was found of kernel, limits and container.
#[derive(Clone, Debug)]
pub struct Place {
    /// The kernel's own words.
    pub release: String,
    /// The two numbers that they begin with.
    pub version: Option<(u32, u32)>,
    /// Whether a process may adopt descendants.
    pub subreaper: Result<(), Errno>,
    /// Whether `/proc` lists the children of a process.
    pub children_listed: bool,
    /// Capabilities by name, and whether this process has them.
    pub capabilities: Vec<(&'static str, bool)>,
    /// The hard limit of descriptors.
    pub descriptors: Option<u64>,
    /// The limit of this user's processes.
    pub processes: Option<u64>,
    /// That of the control group.
    pub group_processes: Option<u64>,
    /// What kind of container this seems to be.
    pub container: Option<String>,
    /// What the first process calls itself.
    pub first_process: Vec<u8>,
    /// The data directories.
    pub directories: Vec<Directory>,
}

/// What was found of a data directory.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// Where it is.
    pub path: PathBuf,
    /// The call that did not work.
    pub failed: Option<(&'static str, Errno)>,
    /// Whether it is neither this user's nor root's.
    pub foreign_owner: bool,
    /// Whether others may write there.
    pub shared: bool,
    /// Its file system, if that is a network's.
    pub remote: Option<String>,
    /// Whether its file system is in memory.
    pub in_memory: bool,
    /// How much room there is.
    pub free_bytes: Option<u64>,
}

/// What another user's process takes; of `capabilities(7)`.
const CAPABILITIES: [(&str, u32); 3] = [("CAP_KILL", 5), ("CAP_SETGID", 6), ("CAP_SETUID", 7)];

/// Some thirty system calls, and a file for a moment in each directory.
pub fn examine(data_dirs: &[PathBuf]) -> Place {
    let release = text("/proc/sys/kernel/osrelease").unwrap_or_else(|| "(unknown)".into());
    let status = fs::read("/proc/self/status").unwrap_or_default();
    let own = std::process::id();
    Place {
        version: version(&release),
        release,
        subreaper: subreaper(),
        children_listed: Path::new(&format!("/proc/{own}/task/{own}/children")).exists(),
        capabilities: CAPABILITIES
            .map(|(name, number)| (name, proc_text::has_capability(&status, number)))
            .to_vec(),
        descriptors: limit(Resource::RLIMIT_NOFILE, true),
        processes: limit(Resource::RLIMIT_NPROC, false),
        group_processes: group_processes(),
        container: container(),
        first_process: text("/proc/1/comm").unwrap_or_else(|| "(unknown)".into()).into_bytes(),
        directories: data_dirs.iter().map(|path| directory(path)).collect(),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|one: char| !one.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Asks only: this may be the BEAM itself, which is to adopt nobody.
fn subreaper() -> Result<(), Errno> {
    let mut is_one: libc::c_int = 0;
    // SAFETY: the pointer is to a local.
    let result = unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut is_one, 0, 0, 0) };
    Errno::result(result).map(drop)
}

fn limit(resource: Resource, of_hard: bool) -> Option<u64> {
    let (soft, hard) = getrlimit(resource).ok()?;
    let limit = if of_hard { hard } else { soft };
    (limit != libc::RLIM_INFINITY).then_some(limit)
}

/// Of the control group in which this process is, in version 2.
fn group_processes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let file = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')).join("pids.max");
    text(&file.to_string_lossy())?.parse().ok()
}

fn container() -> Option<String> {
    let named = std::env::var("container").ok().filter(|name| !name.is_empty());
    let by_file = |path: &str, name: &str| Path::new(path).exists().then(|| name.to_owned());
    let kubernetes = std::env::var_os("KUBERNETES_SERVICE_HOST").map(|_| "Kubernetes".to_owned());
    kubernetes
        .or(named)
        .or_else(|| by_file("/.dockerenv", "Docker"))
        .or_else(|| by_file("/run/.containerenv", "Podman"))
}

fn text(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Looks at a directory, and tries a lock on a file in it, which is removed again.
pub fn directory(path: &Path) -> Directory {
    let mut found = Directory { path: path.to_owned(), ..Directory::default() };
    match directories::inspect(path, true) {
        Ok(standing) => {
            // Root can have everything killed anyway.
            found.foreign_owner = standing.owner != standing.user && standing.owner != 0;
            found.shared = standing.shared;
            found.remote = standing.remote;
        }
        Err(Error::Os { call, errno }) => found.failed = Some((call, errno)),
        Err(_) => found.failed = Some(("open", Errno::EIO)),
    }
    if let Ok(space) = statfs(path) {
        let block = u64::try_from(space.block_size()).unwrap_or_default();
        found.free_bytes = Some(space.blocks_available().saturating_mul(block));
    }
    if found.failed.is_none() && !found.foreign_owner {
        match probe(path) {
            Ok(in_memory) => found.in_memory = in_memory,
            Err(failed) => found.failed = Some(failed),
        }
    }
    found
}

fn probe(path: &Path) -> Result<bool, (&'static str, Errno)> {
    let number = entropy::number().map_err(|errno| ("getrandom", errno))?;
    let name = path.join(format!(".doctor.{number:016x}"));
    let file = create(&name).map_err(|error| ("open", errno(&error)))?;
    let _ = fs::remove_file(&name);
    let in_memory = filesystem::is_memory(&file).unwrap_or_default();
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| ("flock", errno))?;
    Ok(in_memory)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_the_first_two_numbers() {
        assert_eq!(version("6.18.5-1-amd64"), Some((6, 18)));
        assert_eq!(version("5.9"), Some((5, 9)));
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn a_directory_is_tried_and_left_as_it_was() {
        let path = std::env::temp_dir().join(format!("snakepit_doctor_{}", std::process::id()));
        directories::make(&path).unwrap();
        let found = directory(&path);
        assert_eq!(found.failed, None);
        assert!(!found.shared && !found.foreign_owner && found.free_bytes.is_some());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        fs::remove_dir(&path).unwrap();
        assert!(directory(&path).failed.is_some());
    }
}
