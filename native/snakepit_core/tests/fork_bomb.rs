//! Fork bombs whose members each have a session of their own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::os::unix::process::CommandExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, setrlimit};
use snakepit_core::run::{self, Users};
use snakepit_core::run_id::RunId;
use snakepit_core::table::Columns;
use snakepit_core::tree::{self, Roots};
use snakepit_core::{Signal, marker, stop};
use support::spawn::Spawned;
use support::{NOBODY, eventually, fixture, is_root, judge, pidfd, within};

const LIMIT: u64 = 300;

/// How many it has when it can hardly grow any more.
const FULL: usize = 290;

/// A user of which there are no processes, and will be none when the test is over. One at a time:
/// two bombs at once leave no time for anyone else.
struct Quarantine {
    uid: u32,
    _turn: MutexGuard<'static, ()>,
}

impl Quarantine {
    fn new(uid: u32) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(judge::of_user(uid).is_empty(), "user {uid} is not free");
        Self { uid, _turn: turn }
    }
}

/// A bomb goes out with its input. What a failed test left stopped does not, and is killed here.
impl Drop for Quarantine {
    fn drop(&mut self) {
        let empty = within(Duration::from_secs(20), || {
            for seen in judge::of_user(self.uid) {
                let Ok(fd) = pidfd::open(seen.pid) else { continue };
                if judge::look(seen.pid).is_some_and(|now| now.uid == self.uid) {
                    let _ = pidfd::send(&fd, libc::SIGKILL);
                }
            }
            judge::of_user(self.uid).is_empty()
        });
        if !empty {
            eprintln!("left behind: processes of user {}", self.uid);
        }
    }
}

/// With at least so many members.
fn bomb(uid: u32, run_id: RunId, members: usize) -> Spawned {
    let limit = || Ok(setrlimit(Resource::RLIMIT_NPROC, LIMIT, LIMIT)?);
    let mut command = fixture("fork_bomb.py");
    command.uid(uid).gid(uid).env(marker::RUN_ID, run_id.to_string());
    // SAFETY: between fork and exec the closure makes one system call.
    let bomb = Spawned::start(unsafe { command.pre_exec(limit) });
    eventually("the bomb has grown", || judge::of_user(uid).len() >= members);
    bomb
}

/// The same program under other parents and users, doing no harm.
fn look_alikes() -> Vec<Spawned> {
    [0, NOBODY, 54_399].map(|uid| Spawned::start(fixture("fork_bomb.py").arg("no").uid(uid))).into()
}

#[test]
fn a_fork_bomb_dies_with_the_process_that_it_descends_from() {
    if !is_root("a user with a process limit") {
        return;
    }
    let quarantine = Quarantine::new(54_321);
    let bystanders = look_alikes();
    let bomb = bomb(quarantine.uid, RunId::generate().unwrap(), FULL);
    let roots = Roots {
        identities: vec![bomb.identity()],
        select: &|_| false,
        columns: Columns::default(),
        freeze: true,
    };
    let start = Instant::now();
    let report = tree::kill(&roots, start + Duration::from_secs(10)).unwrap();
    let elapsed = start.elapsed();
    let left = judge::of_user(quarantine.uid);
    assert!(left.is_empty(), "{} left, report: {report:?}", left.len());
    assert!(report.survivors.is_empty());
    let (killed, passes) = (report.killed, report.passes);
    eprintln!("by descent: {killed} killed in {passes} passes and {elapsed:?}");
    assert!((290..=300).contains(&killed), "{killed} killed");
    assert!(bystanders.iter().all(Spawned::is_untouched));
}

#[test]
fn a_fork_bomb_is_found_by_the_run_that_it_carries() {
    if !is_root("a user with a process limit") {
        return;
    }
    let quarantine = Quarantine::new(54_322);
    let bystanders = look_alikes();
    let run_id = RunId::generate().unwrap();
    let _bomb = bomb(quarantine.uid, run_id, FULL);
    let grace = Duration::from_millis(100);
    let plan = stop::Plan { signal: Signal::TERM, grace, kill_wait: Duration::from_secs(10) };
    let start = Instant::now();
    let report = run::stop(run_id, Users::Any, &plan).unwrap();
    let elapsed = start.elapsed();
    let left = judge::of_user(quarantine.uid);
    assert!(left.is_empty(), "{} left, report: {report:?}", left.len());
    assert!(report.survivors.is_empty());
    eprintln!("by marker: {} killed, {elapsed:?} with {grace:?} grace", report.killed);
    assert!((290..=300).contains(&report.killed), "{} killed", report.killed);
    assert!(bystanders.iter().all(Spawned::is_untouched));
}

/// All of its members are forking, and some are in the midst of it whenever a pass looks. Ten of them: where the
/// machine has much else to do, one in thirty got away from a freeze that took one quiet pass for enough.
#[test]
fn a_fork_bomb_that_still_grows_dies_with_the_process_that_it_descends_from() {
    if !is_root("a user with a process limit") {
        return;
    }
    let quarantine = Quarantine::new(54_323);
    for _ in 0..10 {
        let bomb = bomb(quarantine.uid, RunId::generate().unwrap(), 50);
        let roots = Roots {
            identities: vec![bomb.identity()],
            select: &|_| false,
            columns: Columns::default(),
            freeze: true,
        };
        let report = tree::kill(&roots, Instant::now() + Duration::from_secs(10)).unwrap();
        let left = judge::of_user(quarantine.uid);
        assert!(left.is_empty(), "{} left, {} killed", left.len(), report.killed);
    }
}
