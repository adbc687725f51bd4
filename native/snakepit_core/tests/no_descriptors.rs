//! Descriptors that run out, or have. In a file of its own, and one test: the limit is that of the
//! whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::fs::File;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use snakepit_core::Identity;
use snakepit_core::stop::{self, Outcome, Plan};
use support::fork::Forked;
use support::pidfd::{Stray, catch_all};
use support::spawn::Spawned;
use support::{fixture, identify, judge, plan, within};

const GRACE: Duration = Duration::from_millis(300);
const EACH: usize = 30;

/// All descriptors that there are but for `spare`, until dropped.
fn take_all_but(spare: usize) -> Vec<File> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 200, hard).unwrap();
    let mut taken: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    taken.truncate(taken.len() - spare);
    taken
}

/// As many polite processes as stubborn ones, in turn.
struct Crowd {
    polite: Vec<Forked>,
    stubborn: Vec<Stray>,
    parent: Spawned,
    targets: Vec<Identity>,
}

impl Crowd {
    fn new() -> Self {
        let polite: Vec<_> = (0..EACH).map(|_| Forked::new()).collect();
        let mut parent = Spawned::start(fixture("ignores_sigterm.py").arg(EACH.to_string()));
        let stubborn = catch_all(&parent.line());
        let mixed = polite.iter().map(|one| one.pid).zip(stubborn.iter().map(|one| one.pid));
        let targets = mixed.flat_map(|(polite, stubborn)| [polite, stubborn]).map(identify);
        let targets = targets.collect();
        Self { polite, stubborn, parent, targets }
    }

    fn living(&self) -> usize {
        let polite = self.polite.iter().filter(|one| judge::runs(one.pid)).count();
        polite + self.stubborn.iter().filter(|one| one.lives()).count()
    }
}

#[test]
fn many_are_ended_with_few_descriptors_and_none_is_lost_with_no_descriptor() {
    // The last are what it takes to open one process.
    for spare in [40, 20, 8, 5, 4] {
        let crowd = Crowd::new();
        let taken = take_all_but(spare);
        let start = Instant::now();
        let outcomes = stop::stop(&crowd.targets, None, &plan(GRACE)).unwrap();
        let elapsed = start.elapsed();
        drop(taken);
        assert_eq!(outcomes, [Outcome::Stopped, Outcome::Killed].repeat(EACH), "{spare} to spare");
        assert_eq!(crowd.living(), 0, "{spare} to spare");
        assert!(elapsed >= GRACE && elapsed < 10 * GRACE, "{spare} to spare: {elapsed:?}");
        assert!(crowd.parent.is_untouched());
    }

    let crowd = Crowd::new();
    let taken = take_all_but(0);
    let hasty = Plan { kill_wait: GRACE, ..plan(GRACE) };
    let start = Instant::now();
    let outcomes = stop::stop(&crowd.targets, None, &hasty).unwrap();
    let elapsed = start.elapsed();
    drop(taken);
    assert_eq!(outcomes, vec![Outcome::Survived; 2 * EACH]);
    assert_eq!(crowd.living(), 2 * EACH);
    assert!(elapsed < 10 * GRACE, "{elapsed:?}");

    // Given back while it waits for them.
    let taken = take_all_but(0);
    let outcomes = std::thread::scope(|scope| {
        let stop = scope.spawn(|| stop::stop(&crowd.targets, None, &plan(10 * GRACE)).unwrap());
        assert!(!within(GRACE, || stop.is_finished()));
        drop(taken);
        stop.join().unwrap()
    });
    assert_eq!(outcomes, [Outcome::Stopped, Outcome::Killed].repeat(EACH));
    assert_eq!(crowd.living(), 0);
}
