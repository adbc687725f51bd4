//! Processes that not even `SIGKILL` ends at once.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::time::{Duration, Instant};

use snakepit_core::Signal;
use snakepit_core::group::{self, Group};
use snakepit_core::stop::{self, Outcome, Plan};
use snakepit_core::table::Columns;
use snakepit_core::tree::{self, Roots};

use support::freezer::Frozen;
use support::pidfd::Stray;
use support::spawn::Spawned;
use support::{eventually, fixture, identify, is_root};

const PLAN: Plan = Plan {
    signal: Signal::TERM,
    grace: Duration::from_millis(50),
    kill_wait: Duration::from_millis(150),
};

#[test]
fn a_frozen_process_survives_and_dies_when_it_is_thawed() {
    if !is_root("a control group") {
        return;
    }
    let (polite, bystander) = (Spawned::polite(), Spawned::polite());
    let Some(frozen) = Frozen::v1(Spawned::polite()) else { return };
    let targets = [frozen.process.identity(), polite.identity()];
    let outcomes = stop::stop(&targets, None, &PLAN).unwrap();
    assert_eq!(outcomes, [Outcome::Survived, Outcome::Stopped]);
    assert!(frozen.process.lives());
    frozen.thaw();
    eventually("it has ended", || !frozen.process.lives());
    assert!(bystander.is_untouched());
}

#[test]
fn a_frozen_member_of_a_tree_is_reported_as_its_survivor() {
    if !is_root("a control group") {
        return;
    }
    let polite = Spawned::polite();
    let Some(frozen) = Frozen::v1(Spawned::polite()) else { return };
    let roots = Roots {
        identities: vec![frozen.process.identity(), polite.identity()],
        select: &|_| false,
        columns: Columns::default(),
        freeze: true,
    };
    let start = Instant::now();
    let report = tree::kill(&roots, start + Duration::from_millis(1500)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(report.survivors, [frozen.process.identity()]);
    assert_eq!(report.killed, 1);
    assert!(!polite.lives() && frozen.process.lives());
    frozen.thaw();
    eventually("it has ended", || !frozen.process.lives());
}

#[test]
fn a_frozen_descendant_is_reported_although_its_parent_is_dead() {
    if !is_root("a control group") {
        return;
    }
    let mut parent = Spawned::start(fixture("ignores_sigterm.py").arg("1"));
    let child = Stray::catch(parent.line().parse().unwrap());
    let Some(frozen) = Frozen::v1_descendant(parent, child.pid) else { return };
    let roots = Roots {
        identities: vec![frozen.process.identity()],
        select: &|_| false,
        columns: Columns::default(),
        freeze: true,
    };
    let report = tree::kill(&roots, Instant::now() + Duration::from_millis(1500)).unwrap();
    assert!(!frozen.process.lives() && child.lives());
    assert_eq!(report.survivors, [identify(child.pid)]);
    assert_eq!(report.killed, 1);
    frozen.thaw();
    eventually("it has ended", || !child.lives());
}

#[test]
fn a_group_with_a_frozen_member_survives() {
    if !is_root("a control group") {
        return;
    }
    let polite = Spawned::in_group(0);
    let Some(frozen) = Frozen::v1(Spawned::in_group(polite.raw())) else { return };
    assert_eq!(group::stop(&Group::Number(polite.pid()), &PLAN).unwrap(), Outcome::Survived);
    assert!(!polite.lives() && frozen.process.lives());
    frozen.thaw();
    eventually("it has ended", || !frozen.process.lives());
}

#[test]
fn sigkill_gets_through_to_what_a_version_2_control_group_froze() {
    if !is_root("a control group") {
        return;
    }
    let Some(frozen) = Frozen::v2(Spawned::stubborn()) else { return };
    let outcomes = stop::stop(&[frozen.process.identity()], None, &PLAN).unwrap();
    assert_eq!(outcomes, [Outcome::Killed]);
    assert!(!frozen.process.lives());
}
