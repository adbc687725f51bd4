//! Random numbers from the operating system, and from nowhere else: a generator that a thread keeps would be
//! copied by a fork, and go on with the same numbers on both sides.

use nix::errno::Errno;
use rand::TryRngCore;
use rand::rngs::OsRng;

/// `getrandom(2)`: 64 bits.
///
/// # Errors
///
/// What the system says, for example `ENOSYS` under a filter; `EIO` where it gives no reason.
pub(crate) fn number() -> Result<u64, Errno> {
    let errno = |error: rand::rand_core::OsError| error.raw_os_error().unwrap_or(libc::EIO);
    OsRng.try_next_u64().map_err(|error| Errno::from_raw(errno(error)))
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn no_number_comes_twice() {
        assert_ne!(number().unwrap(), number().unwrap());
    }
}
