//! The clock of leases: it also counts while the machine is suspended, which `CLOCK_MONOTONIC` does not on Linux. Both the
//! BEAM and its guardian read it, so that a moment means the same to both.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::Error;

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
/// Counts while the machine sleeps on macOS.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

/// Returns the time since some moment before the machine has started.
///
/// # Errors
///
/// [`Error::Os`] where the kernel has no such clock.
pub fn now() -> Result<Duration, Error> {
    let now = clock_gettime(CLOCK).map_err(Error::os("clock_gettime"))?;
    let seconds = u64::try_from(now.tv_sec()).unwrap_or_default();
    Ok(Duration::new(seconds, u32::try_from(now.tv_nsec()).unwrap_or_default()))
}
