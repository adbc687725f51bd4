//! `pidfd_open(2)` with `PIDFD_THREAD`: reports the end of a thread, which comes before that of its process.
//!
//! A process that is killed gives its memory back before it closes its files and before its pidfd says
//! that it has ended: some milliseconds for an idle BEAM, a second for one with gigabytes. The thread that
//! gives it back is the last one; the others end at once.

use std::fs;
use std::os::fd::OwnedFd;

use nix::errno::Errno;

use crate::{Pid, os};

/// Two are enough: no more than one of them is the last.
const WATCHED: usize = 2;

/// Returns descriptors that become readable when a scheduler thread of that BEAM has ended. No scheduler ends
/// while its BEAM goes on. There are none before Linux 6.9, and where its threads are hidden.
pub fn watch_schedulers(beam: Pid) -> Vec<OwnedFd> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{beam}/task")) else { return Vec::new() };
    let threads = tasks.flatten().filter_map(|task| {
        let name = fs::read(task.path().join("comm")).ok()?;
        let number = task.file_name().to_str()?.parse().ok()?;
        if is_scheduler(name.trim_ascii_end()) { Pid::new(number) } else { None }
    });
    let opened: Result<Vec<OwnedFd>, Errno> = threads.take(WATCHED).map(os::open_thread).collect();
    opened.unwrap_or_default()
}

/// `1_scheduler` up to OTP 25, `erts_sched_1` since. Dirty ones have other names.
fn is_scheduler(name: &[u8]) -> bool {
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    name.strip_suffix(b"_scheduler").is_some_and(digits)
        || name.strip_prefix(b"erts_sched_").is_some_and(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedulers_are_known_by_their_names_in_each_version() {
        for name in ["1_scheduler", "16_scheduler", "erts_sched_1", "erts_sched_128"] {
            assert!(is_scheduler(name.as_bytes()), "{name}");
        }
        for name in ["_scheduler", "1_dirty_cpu_sch", "erts_sched_", "erts_dcpus_1", "beam.smp", ""]
        {
            assert!(!is_scheduler(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_process_without_schedulers_has_none_to_watch() {
        assert!(watch_schedulers(Pid::current()).is_empty());
    }
}
