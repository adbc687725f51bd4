//! Ending many processes together.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use snakepit_core::Identity;
use snakepit_core::stop::{self, Outcome};
use support::fork::{Forked, can_choose_pids};
use support::pidfd::{Stray, catch_all};
use support::refusal::refusing;
use support::spawn::Spawned;
use support::{NOBODY, as_user, fixture, glance, identify, is_root, judge, plan};

const GRACE: Duration = Duration::from_secs(1);

/// Runs `work` and says how long it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    (work(), start.elapsed())
}

#[test]
fn each_target_gets_its_outcome_and_all_share_one_grace_period() {
    let bystander = Spawned::polite();
    let mut reaped = Spawned::polite();
    let gone = reaped.identity();
    reaped.end();
    let children = [
        Spawned::polite(),
        Spawned::stubborn(),
        Spawned::zombie(),
        Spawned::polite().suspended(),
        Spawned::stubborn().suspended(),
        Spawned::stubborn(),
        Spawned::stubborn(),
    ];
    let mut targets: Vec<Identity> = children.iter().map(Spawned::identity).collect();
    targets.insert(2, gone);
    targets.push(identify(std::process::id().try_into().unwrap()));

    let (outcomes, elapsed) = timed(|| stop::stop(&targets, None, &plan(GRACE)).unwrap());
    let expected = [
        Outcome::Stopped,
        Outcome::Killed,
        Outcome::Gone,
        Outcome::Gone,
        Outcome::Stopped,
        Outcome::Killed,
        Outcome::Killed,
        Outcome::Killed,
        Outcome::Refused,
    ];
    assert_eq!(outcomes, expected);
    assert!(elapsed >= GRACE && elapsed < 4 * GRACE, "{elapsed:?}");
    assert!(!children.iter().any(Spawned::lives));
    assert!(bystander.is_untouched());
}

#[test]
fn the_successor_of_a_target_is_left_alone_among_others() {
    if !can_choose_pids() {
        return;
    }
    let (before, after) = (Spawned::polite(), Spawned::stubborn());
    let (before_it, behind_it) = (before.identity(), after.identity());
    let first = Forked::new();
    let targets = [before_it, glance(first.pid), behind_it];
    let second = first.succeeded_by(|| ());
    let other_tick = judge::look(second.pid).unwrap().start != targets[1].start;
    let certain = targets[1].is_exact() || other_tick;
    let outcomes = stop::stop(&targets, None, &plan(GRACE)).unwrap();
    let spared = if certain { Outcome::Gone } else { Outcome::Ambiguous };
    assert_eq!(outcomes, [Outcome::Stopped, spared, Outcome::Killed]);
    assert!(second.is_untouched());
}

#[test]
fn polite_processes_do_not_use_up_the_grace_period() {
    let children: Vec<_> = (0..20).map(|_| Spawned::polite()).collect();
    let targets: Vec<_> = children.iter().map(Spawned::identity).collect();
    let plan = plan(Duration::from_secs(10));
    let (outcomes, elapsed) = timed(|| stop::stop(&targets, None, &plan).unwrap());
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Stopped));
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
}

#[test]
fn only_asking_leaves_the_stubborn_alive() {
    let (polite, stubborn) = (Spawned::polite(), Spawned::stubborn());
    let targets = [stubborn.identity(), polite.identity()];
    let outcomes = stop::ask(&targets, None, &plan(GRACE)).unwrap();
    assert_eq!(outcomes, [Outcome::Survived, Outcome::Stopped]);
    assert!(stubborn.is_untouched());
    assert!(!polite.lives());
}

#[test]
fn a_process_that_may_not_be_signalled_does_not_keep_the_others_alive() {
    if !is_root("a thread of another user") {
        return;
    }
    let foreign = Spawned::polite();
    let own = Spawned::start(Command::new("cat").uid(NOBODY));
    let targets = [foreign.identity(), own.identity()];
    let outcomes = as_user(NOBODY, || stop::stop(&targets, None, &plan(GRACE)).unwrap());
    assert_eq!(outcomes, [Outcome::NotPermitted, Outcome::Stopped]);
    assert!(foreign.is_untouched());
    assert!(!own.lives());
}

#[test]
fn whatever_the_kernel_refuses_one_with_the_others_are_ended() {
    for errno in [Errno::EACCES, Errno::EPERM, Errno::EAGAIN, Errno::EINVAL] {
        let (first, guarded, last) = (Spawned::polite(), Spawned::polite(), Spawned::stubborn());
        let targets = [first.identity(), guarded.identity(), last.identity()];
        let stop = || stop::stop(&targets, None, &plan(GRACE)).unwrap();
        let Some(outcomes) = refusing(&[guarded.raw()], errno, stop) else { return };
        let expected = [Outcome::Stopped, Outcome::NotPermitted, Outcome::Killed];
        assert_eq!(outcomes, expected, "{errno}");
        assert!(guarded.is_untouched() && !first.lives() && !last.lives(), "{errno}");
    }
}

#[test]
fn five_hundred_that_ignore_sigterm_take_one_grace_period() {
    let mut parent = Spawned::start(fixture("ignores_sigterm.py").arg("500"));
    let children = catch_all(&parent.line());
    let targets: Vec<_> = children.iter().map(|child| identify(child.pid)).collect();
    let (outcomes, elapsed) = timed(|| stop::stop(&targets, None, &plan(GRACE)).unwrap());
    assert_eq!(outcomes, vec![Outcome::Killed; 500]);
    assert!(!children.iter().any(Stray::lives));
    assert!(elapsed >= GRACE && elapsed < 10 * GRACE, "{elapsed:?}");
    eprintln!("500 ended in {elapsed:?}, of which {GRACE:?} grace");
    assert!(parent.is_untouched());
}
