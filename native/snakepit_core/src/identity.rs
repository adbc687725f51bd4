//! What tells a process from a later one that got the same pid.
//!
//! Encoded, it is an opaque binary that is stored in a ledger and compared by another program, days
//! later. It ends with a checksum: a flipped bit makes it no identity, never another one.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Error, Pid, os};

/// First byte of every encoding. A later layout gets another number.
const VERSION: u8 = 1;

/// A process as the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its pid, in its own pid namespace.
    pub pid: Pid,
    /// When it started, in the unit of the OS: clock ticks since boot on Linux, microseconds
    /// elsewhere. 0 where it may not be read.
    pub start: u64,
    /// Whether the start time was already in the past when it was read. If so, no later process
    /// can have the same pid and start time; if not, one that is started within the same tick can.
    pub settled: bool,
    /// Its real user, where there is no kernel handle.
    pub uid: Option<u32>,
    /// The boot it belongs to; see [`is_known_boot`].
    pub boot: [u8; 16],
    /// The pid namespace in which `pid` is its number.
    pub namespace: u64,
    /// What the kernel itself calls it, where the kernel can (Linux 6.14 and later).
    pub handle: Option<KernelHandle>,
}

/// A file handle of the process, unique for as long as the system is up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KernelHandle {
    pub(crate) kind: i32,
    pub(crate) bytes: Vec<u8>,
}

/// The layout of an encoded identity, between version byte and checksum.
#[derive(Serialize, Deserialize)]
struct Layout {
    system: String,
    pid: i32,
    start: u64,
    settled: bool,
    uid: Option<u32>,
    boot: [u8; 16],
    namespace: u64,
    handle: Option<KernelHandle>,
}

impl Identity {
    /// Returns where the identity was taken: whether its pid can be compared with those that this process
    /// sees.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if what this boot and namespace are could not be read: then they are not others.
    pub fn origin(&self) -> Result<Origin, Error> {
        os::load_host_ids().map_err(Error::os("boot and namespace"))?;
        Ok(origin((&self.boot, self.namespace), (&os::boot_id(), os::pid_namespace())))
    }

    /// Whether it names one process for good: by the kernel's handle, or by a start time that was past.
    pub fn is_exact(&self) -> bool {
        self.handle.is_some() || self.settled
    }

    /// Returns bytes that [`Identity::decode`] understands, also in another program.
    pub fn encode(&self) -> Vec<u8> {
        let layout = Layout {
            system: std::env::consts::OS.to_owned(),
            pid: self.pid.as_raw(),
            start: self.start,
            settled: self.settled,
            uid: self.uid,
            boot: self.boot,
            namespace: self.namespace,
            handle: self.handle.clone(),
        };
        let mut bytes = vec![VERSION];
        // Writing plain integers and byte arrays to memory cannot fail; were it to, the result
        // would be too short to decode and name nobody.
        let _ = rmp_serde::encode::write(&mut bytes, &layout);
        let checksum = xxh3_64(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Returns the identity that [`Identity::encode`] has made these bytes of.
    ///
    /// # Errors
    ///
    /// [`Error::NotAnIdentity`] for anything that [`Identity::encode`] did not make on this kind of
    /// system.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        Self::decode_checked(bytes).ok_or(Error::NotAnIdentity)
    }

    fn decode_checked(bytes: &[u8]) -> Option<Self> {
        let (content, checksum) = bytes.split_last_chunk::<8>()?;
        let layout = content.strip_prefix(&[VERSION])?;
        if xxh3_64(content).to_le_bytes() != *checksum {
            return None;
        }
        let layout: Layout = rmp_serde::from_slice(layout).ok()?;
        if layout.system != std::env::consts::OS {
            return None;
        }
        Some(Self {
            pid: Pid::new(layout.pid.into())?,
            start: layout.start,
            settled: layout.settled,
            uid: layout.uid,
            boot: layout.boot,
            namespace: layout.namespace,
            handle: layout.handle,
        })
    }
}

/// Whether this is a boot's own name. Where the kernel does not tell it, eight zeroes and a number that
/// was drawn for one life of a BEAM take its place: they are equal within that life, and say nothing of
/// what another life has recorded.
pub(crate) fn is_known_boot(boot: &[u8; 16]) -> bool {
    boot[..8] != [0; 8]
}

/// The environment variable that tells a guardian what its BEAM has drawn for the boot; `None` where the
/// kernel tells it.
pub fn life_variable() -> Option<(&'static str, String)> {
    #[cfg(target_os = "linux")]
    return os::life_variable();
    #[cfg(not(target_os = "linux"))]
    None
}

fn origin(then: (&[u8; 16], u64), now: (&[u8; 16], u64)) -> Origin {
    let known = is_known_boot(then.0) && is_known_boot(now.0);
    if then.0 == now.0 && *then.0 != [0; 16] {
        if then.1 == now.1 { Origin::Here } else { Origin::OtherNamespace }
    } else if known {
        Origin::OtherBoot
    } else if then.1 != now.1 && then.1 != 0 && now.1 != 0 {
        Origin::Elsewhere
    } else {
        Origin::Unknown
    }
}

/// Where an identity was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In this boot and pid namespace.
    Here,
    /// Before the last boot: the process is gone, whatever has its pid now.
    OtherBoot,
    /// In another container of this boot: its pid means something else here.
    OtherNamespace,
    /// In another container, of this boot or of another: one of the two could not be told.
    Elsewhere,
    /// In this boot or in another: one of the two could not be told.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Identity {
        Identity {
            pid: Pid::new(4711).unwrap(),
            start: 123_456,
            settled: true,
            uid: Some(1000),
            boot: [7; 16],
            namespace: 4_026_531_836,
            handle: Some(KernelHandle { kind: 254, bytes: vec![1, 2, 3, 4, 5, 6, 7, 8] }),
        }
    }

    #[test]
    fn an_identity_survives_the_trip_through_bytes() {
        let bare = Identity { uid: None, handle: None, settled: false, ..sample() };
        for identity in [sample(), bare] {
            assert_eq!(Identity::decode(&identity.encode()).unwrap(), identity);
        }
    }

    #[test]
    fn no_flipped_bit_and_no_cut_gives_another_identity() {
        let bytes = sample().encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Identity::decode(&flipped).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(Identity::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn another_boot_and_another_namespace_are_told_apart() {
        let here = Identity { boot: os::boot_id(), namespace: os::pid_namespace(), ..sample() };
        assert_eq!(here.origin().unwrap(), Origin::Here);
        assert_eq!(Identity { boot: [9; 16], ..here.clone() }.origin().unwrap(), Origin::OtherBoot);
        assert_eq!(Identity { namespace: 1, ..here }.origin().unwrap(), Origin::OtherNamespace);
    }

    #[test]
    fn a_boot_that_is_not_known_is_the_same_within_one_life_only() {
        let life = |number| {
            let mut boot = [0; 16];
            boot[15] = number;
            boot
        };
        let (one, other, known) = (life(1), life(2), [7; 16]);
        assert_eq!(origin((&one, 5), (&one, 5)), Origin::Here);
        assert_eq!(origin((&one, 0), (&one, 0)), Origin::Here);
        for (then, now) in [(one, other), (one, known), (known, one), (life(0), life(0))] {
            assert_eq!(origin((&then, 5), (&now, 5)), Origin::Unknown);
            assert_eq!(origin((&then, 5), (&now, 0)), Origin::Unknown);
            assert_eq!(origin((&then, 5), (&now, 6)), Origin::Elsewhere);
        }
    }
}
