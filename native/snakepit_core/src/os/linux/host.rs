//! Which boot and which pid namespace this is.

use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::{fs, io};

use nix::errno::Errno;

use crate::{entropy, identity};

/// The variable in which a BEAM tells its guardian what it has made up for the boot.
const LIFE: &str = "SNAKEPIT_LIFE";

#[derive(Clone, Copy, Default)]
struct Host {
    boot: [u8; 16],
    namespace: u64,
}

static HOST: OnceLock<Host> = OnceLock::new();

/// Reads boot and pid namespace from `/proc`, once. Where one of them is not to be had, the boot is a name
/// for this life of a BEAM. An error is one that may pass, and then nothing is known yet: a caller that
/// went on would take its own processes for those of another machine.
pub(crate) fn load_host_ids() -> Result<(), Errno> {
    if HOST.get().is_none() {
        let boot = if_present(fs::read_to_string("/proc/sys/kernel/random/boot_id"))?;
        let boot = boot.and_then(|text| parse_uuid(text.trim())).filter(identity::is_known_boot);
        let namespace = if_present(fs::metadata("/proc/self/ns/pid"))?.map(|file| file.ino());
        let boot = match (boot, namespace) {
            (Some(boot), Some(_)) => boot,
            _ => life()?,
        };
        let _ = HOST.set(Host { boot, namespace: namespace.unwrap_or_default() });
    }
    Ok(())
}

/// Returns what stands for an unknown boot: random, and handed on to the guardian, so that BEAM and
/// guardian know each other's processes, and no other life of a BEAM takes them for its own.
fn life() -> Result<[u8; 16], Errno> {
    let given = std::env::var(LIFE).ok().and_then(|text| parse_uuid(&text));
    if let Some(life) = given.filter(|life| !identity::is_known_boot(life)) {
        return Ok(life);
    }
    let mut life = [0; 16];
    life[8..].copy_from_slice(&entropy::number()?.to_be_bytes());
    Ok(life)
}

/// `None` for what is not there or may not be read; an error is one that may pass.
fn if_present<T>(read: io::Result<T>) -> Result<Option<T>, Errno> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT | Errno::EACCES | Errno::EPERM) | None => Ok(None),
            Some(errno) => Err(errno),
        },
    }
}

fn host() -> Host {
    let _ = load_host_ids();
    HOST.get().copied().unwrap_or_default()
}

/// `/proc/sys/kernel/random/boot_id`, or a name for this life of a BEAM where that cannot be read:
/// see [`identity::is_known_boot`].
pub(crate) fn boot_id() -> [u8; 16] {
    host().boot
}

/// The variable that tells another process what was made up here; `None` if the boot is known.
pub(crate) fn life_variable() -> Option<(&'static str, String)> {
    let boot = Some(boot_id()).filter(|boot| !identity::is_known_boot(boot))?;
    Some((LIFE, format!("{:032x}", u128::from_be_bytes(boot))))
}

/// The inode of this process's pid namespace. The boot id does not differ between containers;
/// this does.
pub(crate) fn pid_namespace() -> u64 {
    host().namespace
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32).map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_sixteen_bytes_and_nothing_else_is_one() {
        let bytes = parse_uuid("00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!(bytes[..3], [0x00, 0x11, 0x22]);
        assert_eq!(bytes[15], 0xff);
        for text in ["", "0011", "00112233-4455-6677-8899-aabbccddeefg", "+0112233-4455-6677-8899"]
        {
            assert_eq!(parse_uuid(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_nothing_and_what_cannot_be_read_is_an_error() {
        let read = |errno: Errno| if_present::<()>(Err(io::Error::from_raw_os_error(errno as i32)));
        assert_eq!(read(Errno::ENOENT), Ok(None));
        assert_eq!(read(Errno::EACCES), Ok(None));
        for errno in [Errno::EIO, Errno::EMFILE, Errno::ENOMEM] {
            assert_eq!(read(errno), Err(errno));
        }
    }

    #[test]
    fn this_machine_has_a_boot_and_a_namespace() {
        assert_ne!(boot_id(), [0; 16]);
        assert_ne!(pid_namespace(), 0);
    }
}
