//! The environment variables that say whose a process is.
//!
//! Descendants inherit them. A marker confirms; its absence refutes nothing, because any process
//! may change its environment.

use std::fmt;

use crate::identity::is_known_boot;
use crate::run_id::RunId;
use crate::{Error, Identity, Pid, Process, os};

/// What the names of all of them begin with.
const PREFIX: &[u8] = b"SNAKEPIT_";

/// The run that started the process.
pub const RUN_ID: &str = "SNAKEPIT_RUN_ID";
/// The worker that the process belongs to.
pub const WORKER_ID: &str = "SNAKEPIT_WORKER_ID";
/// The guardian's number of the child that the process is or descends from.
pub const CHILD: &str = "SNAKEPIT_CHILD";
/// The instance: data directory and user. One never touches another's processes.
pub const INSTANCE: &str = "SNAKEPIT_INSTANCE";
/// Who the BEAM is: see [`Owner`].
pub const OWNER: &str = "SNAKEPIT_OWNER";

/// The markers that were found in an environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Markers {
    /// [`RUN_ID`], if it is a valid run id.
    pub run_id: Option<RunId>,
    /// [`WORKER_ID`].
    pub worker_id: Option<Vec<u8>>,
    /// [`CHILD`].
    pub child: Option<u64>,
    /// [`INSTANCE`].
    pub instance: Option<Vec<u8>>,
    /// [`OWNER`], if it can be understood.
    pub owner: Option<Owner>,
}

impl Markers {
    /// From NUL-separated `NAME=value` bytes. Where a name stands twice the first one counts, as
    /// for `getenv(3)`.
    pub fn from_environment(bytes: &[u8]) -> Self {
        let mut markers = Self::default();
        let mut seen = [false; 5];
        let mut is_first = |index: usize| !std::mem::replace(&mut seen[index], true);
        for pair in bytes.split(|byte| *byte == 0) {
            let Some(rest) = pair.strip_prefix(PREFIX) else { continue };
            let Some(equals) = rest.iter().position(|byte| *byte == b'=') else { continue };
            let (name, value) = (&rest[..equals], &rest[equals + 1..]);
            match name {
                b"RUN_ID" if is_first(0) => markers.run_id = RunId::from_bytes(value),
                b"WORKER_ID" if is_first(1) => markers.worker_id = Some(value.to_vec()),
                b"INSTANCE" if is_first(2) => markers.instance = Some(value.to_vec()),
                b"OWNER" if is_first(3) => {
                    markers.owner = std::str::from_utf8(value).ok().and_then(Owner::parse);
                }
                b"CHILD" if is_first(4) => {
                    markers.child =
                        std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                }
                _ => {}
            }
        }
        markers
    }

    /// Returns whether the process says that it belongs to this run.
    pub fn is_of_run(&self, run_id: RunId) -> bool {
        self.run_id == Some(run_id)
    }
}

/// A BEAM, different from every other on this and any earlier boot: enough to find orphans with no
/// ledger at all. Written as `pid:start:namespace:boot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its pid.
    pub pid: Pid,
    /// When it started.
    pub start: u64,
    /// The pid namespace of `pid`.
    pub namespace: u64,
    /// The boot.
    pub boot: [u8; 16],
}

impl Owner {
    /// Returns the owner that `Display` has written as this text, and in no other way: the numbers alone would
    /// allow `+1` and `01`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(':');
        let pid = Pid::new(fields.next()?.parse().ok()?)?;
        let start = fields.next()?.parse().ok()?;
        let namespace = fields.next()?.parse().ok()?;
        let boot = fields.next().filter(|digits| digits.len() == 32)?;
        let boot = u128::from_str_radix(boot, 16).ok()?.to_be_bytes();
        let owner = fields.next().is_none().then_some(Self { pid, start, namespace, boot })?;
        (owner.to_string() == text).then_some(owner)
    }

    /// Returns this very process.
    ///
    /// # Errors
    ///
    /// As for [`Process::open`].
    pub fn current() -> Result<Self, Error> {
        let own = Pid::current();
        let process = Process::open(own)?.ok_or(Error::NoSuchProcess(own.as_raw().into()))?;
        Ok(Self::from(process.identity()))
    }

    /// Returns whether this owner's pids mean the same processes here. The marker is of a process that is
    /// there, which is of this boot, and so was its owner, whatever could be read of the boot.
    pub fn is_from_here(&self) -> bool {
        let boot = os::boot_id();
        let known = is_known_boot(&self.boot) && is_known_boot(&boot);
        let same_boot = self.boot == boot || !known && self.namespace != 0;
        same_boot && self.namespace == os::pid_namespace()
    }
}

impl From<&Identity> for Owner {
    fn from(identity: &Identity) -> Self {
        Self {
            pid: identity.pid,
            start: identity.start,
            namespace: identity.namespace,
            boot: identity.boot,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let boot = u128::from_be_bytes(self.boot);
        write!(f, "{}:{}:{}:{boot:032x}", self.pid, self.start, self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_names_and_whole_ids_are_markers() {
        let id: RunId = RunId::from_bytes(b"k3x9a2p").unwrap();
        let of_run = |environment: &[u8]| Markers::from_environment(environment).is_of_run(id);
        assert!(of_run(b"HOME=/\0SNAKEPIT_RUN_ID=k3x9a2p\0"));
        assert!(of_run(b"SNAKEPIT_RUN_ID=k3x9a2p"));
        assert!(of_run(b"SNAKEPIT_RUN_ID=k3x9a2p\0SNAKEPIT_RUN_ID=zzzzzzz\0"));
        for environment in [
            b"SNAKEPIT_RUN_ID=k3x9a2pq\0".as_slice(),
            b"SNAKEPIT_RUN_ID=ak3x9a2p\0",
            b"XSNAKEPIT_RUN_ID=k3x9a2p\0",
            b"SNAKEPIT_RUN_ID_=k3x9a2p\0",
            b"X=SNAKEPIT_RUN_ID=k3x9a2p\0",
            b"SNAKEPIT_RUN_ID=zzzzzzz\0SNAKEPIT_RUN_ID=k3x9a2p\0",
            b"SNAKEPIT_RUN_ID\0k3x9a2p\0",
            b"",
        ] {
            assert!(!of_run(environment), "{}", String::from_utf8_lossy(environment));
        }
    }

    #[test]
    fn the_first_child_that_is_named_counts() {
        let child = |environment: &[u8]| Markers::from_environment(environment).child;
        assert_eq!(child(b"SNAKEPIT_CHILD=7\0SNAKEPIT_CHILD=8\0"), Some(7));
        for environment in
            [b"SNAKEPIT_CHILD=x\0SNAKEPIT_CHILD=8".as_slice(), b"SNAKEPIT_CHILD=", b""]
        {
            assert_eq!(child(environment), None);
        }
    }

    #[test]
    fn an_owner_survives_the_trip_through_text() {
        let owner = Owner::current().unwrap();
        assert_eq!(Owner::parse(&owner.to_string()), Some(owner.clone()));
        assert!(owner.is_from_here());
        for text in ["", "1", "1:2:3", "0:2:3:00", "1:2:3:4:5", "x:2:3:4"] {
            assert_eq!(Owner::parse(text), None, "{text:?}");
        }
        for sign in ["+", "0", " "] {
            assert_eq!(Owner::parse(&format!("{sign}{owner}")), None, "{sign:?}");
        }
    }
}
