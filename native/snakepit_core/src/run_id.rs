//! Seven characters that name one life of one BEAM.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, entropy};

/// Characters of an id.
pub const LENGTH: usize = 7;

const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// How many ids there are: 36⁷.
const COUNT: u64 = 36_u64.pow(7);

/// Spreads consecutive numbers over all ids. Any number without a factor of 2 or 3 is a
/// permutation modulo 36⁷; this one lies near 36⁷ divided by the golden ratio, so that neighbours
/// land far apart.
const STRIDE: u64 = 48_431_716_913;

/// The flags behind which a worker's arguments carry an id. The second is that of the earlier
/// Snakepit.
const FLAGS: [&[u8]; 2] = [b"--run-id", b"--snakepit-run-id"];

/// The one command of the guardian that could be an id. Its only argument would have two meanings.
const COMMAND: &[u8] = b"history";

/// A valid run id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunId([u8; LENGTH]);

impl RunId {
    /// Returns an id that this process has not had before and another process will hardly have.
    ///
    /// Independent random ids would not do: among 100,000 of them two are equal in 6 of 100 cases.
    /// So the OS's entropy chooses where in the sequence of all ids this process begins, and from
    /// there on it counts: ids of one process never repeat, and those of two processes do only if
    /// their stretches overlap.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the OS has no entropy to give.
    pub fn generate() -> Result<Self, Error> {
        static NEXT: OnceLock<AtomicU64> = OnceLock::new();
        let next = if let Some(next) = NEXT.get() {
            next
        } else {
            let seed = entropy::number().map_err(Error::os("getrandom"))?;
            // Reduced here so that the counter cannot wrap at 2⁶⁴, where the sequence would jump.
            // Should two threads meet here, one seed is dropped.
            NEXT.get_or_init(|| AtomicU64::new(seed % COUNT))
        };
        let next = || Self::from_index(next.fetch_add(1, Ordering::Relaxed));
        let id = next();
        Ok(if id.as_bytes() == COMMAND { next() } else { id })
    }

    fn from_index(index: u64) -> Self {
        let spread = u128::from(index % COUNT) * u128::from(STRIDE) % u128::from(COUNT);
        Self::from_digits(u64::try_from(spread).unwrap_or_default())
    }

    /// The id whose characters are the digits of this number to the base 36; `None` if it has more
    /// than seven.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        (number < COUNT).then(|| Self::from_digits(number))
    }

    /// The number that has the id's characters as digits to the base 36. Below 2³⁷.
    pub(crate) fn to_number(self) -> u64 {
        let digit = |byte: &u8| DIGITS.iter().position(|one| one == byte).unwrap_or(0) as u64;
        self.0.iter().fold(0, |number, byte| number * 36 + digit(byte))
    }

    fn from_digits(mut rest: u64) -> Self {
        let mut id = [b'0'; LENGTH];
        for place in id.iter_mut().rev() {
            *place = usize::try_from(rest % 36).map_or(b'0', |digit| DIGITS[digit]);
            rest /= 36;
        }
        Self(id)
    }

    /// `None` unless the bytes are exactly a run id.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let id: [u8; LENGTH] = bytes.try_into().ok()?;
        id.iter().all(|byte| DIGITS.contains(byte)).then_some(Self(id))
    }

    /// Returns the id that a command line carries as `--run-id X` or `--run-id=X`, in arguments of their
    /// own: text inside an argument, such as a shell script, does not count. The first one found
    /// that is valid.
    pub fn from_arguments<'a>(arguments: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut expecting = false;
        for argument in arguments {
            if std::mem::take(&mut expecting) {
                if let Some(id) = Self::from_bytes(argument) {
                    return Some(id);
                }
            }
            expecting = FLAGS.contains(&argument);
            let joined = FLAGS.iter().find_map(|flag| {
                Self::from_bytes(argument.strip_prefix(*flag)?.strip_prefix(b"=")?)
            });
            if joined.is_some() {
                return joined;
            }
        }
        None
    }

    /// The seven characters.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{}", char::from(*byte)))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_stride_visits_every_id_once() {
        // A multiplication permutes the residues exactly if it shares no factor with their number.
        const { assert!(STRIDE % 2 != 0 && STRIDE % 3 != 0 && STRIDE < COUNT) };
        assert_eq!(RunId::from_index(0), RunId::from_index(COUNT));
    }

    #[test]
    fn a_hundred_thousand_ids_are_valid_and_different() {
        let ids: HashSet<_> = (0..100_000).map(|_| RunId::generate().unwrap()).collect();
        assert_eq!(ids.len(), 100_000);
        assert!(ids.iter().all(|id| RunId::from_bytes(id.as_bytes()) == Some(*id)));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for bytes in [
            b"".as_slice(),
            b"k3x9a2",
            b"k3x9a2pq",
            b"K3X9A2P",
            b"k3x9a2-",
            b"k3x9a2\n",
            b"k3x9\xc3\xa9p",
        ] {
            assert_eq!(RunId::from_bytes(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn the_flag_counts_only_as_whole_arguments() {
        let find = |line: &str| {
            RunId::from_arguments(line.split(' ').map(str::as_bytes)).map(|id| id.to_string())
        };
        for line in [
            "python w.py --run-id k3x9a2p",
            "python w.py --run-id=k3x9a2p -v",
            "w --snakepit-run-id k3x9a2p",
            "w --snakepit-run-id=k3x9a2p",
            "w --run-id --run-id k3x9a2p",
            "w --run-id bad --run-id=k3x9a2p",
        ] {
            assert_eq!(find(line).as_deref(), Some("k3x9a2p"), "{line}");
        }
        for line in [
            "",
            "w k3x9a2p",
            "w --run-id",
            "w --run-id k3x9a2pq",
            "w --run-id=k3x9a2pq",
            "w --run-idk3x9a2p",
            "w x--run-id k3x9a2p",
            "w --run-id= k3x9a2p",
        ] {
            assert_eq!(find(line), None, "{line}");
        }
        let script = [b"sh".as_slice(), b"-c", b"w --run-id k3x9a2p"];
        assert_eq!(RunId::from_arguments(script.into_iter()), None);
    }
}
