//! Which file systems other machines, or another kernel, may write to as well, and which have no disk.
//!
//! A run is dead when its lock can be taken. Over a network that says nothing of the process that holds it:
//! locks are not passed on, or are lost with a connection, and the pids of two hosts have nothing to do with
//! each other.

use std::fs::File;

use nix::sys::statfs::{Statfs, fstatfs};

use crate::Error;

/// What the file system of an open file is called, if it is a network's or is served by a process.
///
/// # Errors
///
/// [`Error::Os`].
pub fn remote(file: &File) -> Result<Option<String>, Error> {
    Ok(name(&fstatfs(file).map_err(Error::os("statfs"))?).map(str::to_owned))
}

/// Whether the file system of an open file is this kernel's memory: nothing there waits for a disk or for
/// another process.
///
/// # Errors
///
/// [`Error::Os`].
pub fn is_memory(file: &File) -> Result<bool, Error> {
    Ok(memory(&fstatfs(file).map_err(Error::os("statfs"))?))
}

#[cfg(target_os = "linux")]
fn memory(answer: &Statfs) -> bool {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58F6;
    [TMPFS, RAMFS].contains(&number(answer))
}

#[cfg(not(target_os = "linux"))]
fn memory(answer: &Statfs) -> bool {
    answer.filesystem_type_name() == "tmpfs"
}

/// By the numbers of `statfs(2)`: a name would have to be looked up in the table of mounts. FUSE is also
/// what virtiofs says; that it may be a local disk is for the user to know.
#[cfg(target_os = "linux")]
const REMOTE: [(u32, &str); 22] = [
    (0x6969, "nfs"),
    (0x517B, "smb"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb3"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "fuse or virtiofs"),
    (0x00C3_6400, "ceph"),
    (0x0BD0_0BD0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x5346_414F, "afs"),
    (0x6B41_4653, "afs"),
    (0x7375_7245, "coda"),
    (0x564C, "ncp"),
    (0x1983_0326, "beegfs"),
    (0x7461_636F, "ocfs2"),
    (0x0116_1970, "gfs2"),
    (0x2003_0528, "orangefs"),
    (0xAAD7_AAEA, "panfs"),
    (0xBEEF_DEAD, "snfs"),
    (0x786F_4256, "vboxsf"),
    (0xBACB_ACBC, "vmhgfs"),
    (0x7C7C_6673, "prl_fs"),
];

/// Its type differs from libc to libc, and all numbers have 32 bits.
#[cfg(target_os = "linux")]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn number(answer: &Statfs) -> u32 {
    answer.filesystem_type().0 as u32
}

#[cfg(target_os = "linux")]
fn name(answer: &Statfs) -> Option<&'static str> {
    let number = number(answer);
    REMOTE.iter().find(|(one, _)| *one == number).map(|(_, name)| *name)
}

#[cfg(not(target_os = "linux"))]
fn name(answer: &Statfs) -> Option<&str> {
    const REMOTE: [&str; 8] =
        ["nfs", "smbfs", "afpfs", "webdav", "fusefs", "macfuse", "osxfuse", "p9fs"];
    Some(answer.filesystem_type_name()).filter(|name| REMOTE.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_is_not_remote() {
        assert_eq!(remote(&File::open("/").unwrap()).unwrap(), None);
    }
}
