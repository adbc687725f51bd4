//! More processes than descriptors. In a file of its own: the limit is that of the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use snakepit_core::group::{self, Group};
use snakepit_core::process::Delivery;
use snakepit_core::stop::{self, Outcome};
use snakepit_core::table::Columns;
use snakepit_core::tree::{self, Roots};
use snakepit_core::{Identity, Signal};
use support::fork::Forked;
use support::pidfd::{Stray, catch_all};
use support::spawn::Spawned;
use support::{eventually, fixture, identify, judge, plan};

/// A quarter of these may be held at once.
const DESCRIPTORS: u64 = 80;
const GRACE: Duration = Duration::from_secs(1);

fn limit_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, hard).unwrap();
}

/// A program that ignores `SIGTERM`, and as many children.
fn stubborn(children: usize) -> (Spawned, Vec<Stray>) {
    let mut command = fixture("ignores_sigterm.py");
    let mut parent = Spawned::start(command.arg(children.to_string()).process_group(0));
    let children = catch_all(&parent.line());
    (parent, children)
}

#[test]
fn more_targets_than_descriptors_still_share_one_grace_period() {
    limit_descriptors();
    let polite: Vec<_> = (0..60).map(|_| Forked::new()).collect();
    let (parent, stubborn) = stubborn(60);
    let mixed = polite.iter().map(|one| one.pid).zip(stubborn.iter().map(|one| one.pid));
    let targets: Vec<Identity> =
        mixed.flat_map(|(polite, stubborn)| [identify(polite), identify(stubborn)]).collect();
    let start = Instant::now();
    let outcomes = stop::stop(&targets, None, &plan(GRACE)).unwrap();
    let elapsed = start.elapsed();
    assert_eq!(outcomes, [Outcome::Stopped, Outcome::Killed].repeat(60));
    assert!(elapsed >= GRACE && elapsed < 10 * GRACE, "{elapsed:?}");
    assert!(!polite.iter().any(|one| judge::runs(one.pid)));
    assert!(!stubborn.iter().any(Stray::lives));
    assert!(parent.is_untouched());
}

#[test]
fn a_tree_with_more_members_than_descriptors_dies() {
    limit_descriptors();
    let (parent, children) = stubborn(120);
    let roots = Roots {
        identities: vec![parent.identity()],
        select: &|_| false,
        columns: Columns::default(),
        freeze: true,
    };
    let report = tree::kill(&roots, Instant::now() + Duration::from_secs(5)).unwrap();
    assert_eq!((report.killed, report.survivors.len()), (121, 0));
    assert!(!parent.lives());
    assert!(!children.iter().any(Stray::lives));
}

#[test]
fn a_signal_reaches_all_members_of_a_group_without_a_leader() {
    limit_descriptors();
    let (mut leader, members) = stubborn(120);
    leader.end();
    let group = Group::Number(leader.pid());
    assert_eq!(group::signal(&group, Signal::STOP).unwrap(), Delivery::Sent);
    let stopped = |one: &&Stray| judge::state(one.pid) == Some('T');
    eventually("all are stopped", || members.iter().filter(stopped).count() == 120);
    assert_eq!(group::stop(&group, &plan(GRACE)).unwrap(), Outcome::Killed);
    assert!(!members.iter().any(Stray::lives));
}
