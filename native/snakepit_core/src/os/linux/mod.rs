//! Linux: pidfds, pidfs and `/proc`.

mod host;
mod pidfd;
mod procfs;

pub(crate) use host::{boot_id, life_variable, load_host_ids, pid_namespace};
pub(crate) use pidfd::{Reference, open_thread, wait_for_exits};
pub(crate) use procfs::{
    age, boot_time, children_of, inspect, lock_limit, open_directory, read_of, reads_stat, scan,
    start_between, start_is_past, until_past,
};

/// glibc keeps 32 and 33 for itself and says so through `SIGRTMIN`.
pub(crate) fn is_realtime_signal(number: libc::c_int) -> bool {
    (libc::SIGRTMIN()..=libc::SIGRTMAX()).contains(&number)
}
