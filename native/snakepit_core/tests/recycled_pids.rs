//! Processes that get the pid of one that was known. As root, pids can be chosen.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use snakepit_core::process::Found;
use snakepit_core::stop::{self, Outcome};
use snakepit_core::table::Columns;
use snakepit_core::tree::{self, Roots};
use snakepit_core::{Identity, Process, protect};
use support::fork::{Forked, can_choose_pids};
use support::pidfd::Stray;
use support::{eventually, glance, identify, judge, plan};

const ROUNDS: usize = 1000;
/// Each of these reads the process table several times.
const TREE_ROUNDS: usize = 50;

fn stripped(identity: &Identity) -> Identity {
    Identity { handle: None, ..identity.clone() }
}

/// What a process that is gone may be taken for when its pid has a successor. Where nothing but
/// the tick is known, the answer may be open; it must not be "the same".
fn is_fair(identity: &Identity, answer: Outcome) -> bool {
    let certain = identity.is_exact();
    answer == Outcome::Gone || (!certain && answer == Outcome::Ambiguous)
}

fn reopen(identity: &Identity) -> Outcome {
    match Process::reopen(identity, None).unwrap() {
        Found::Same(_) => panic!("{identity:?} was taken for its successor"),
        Found::Gone => Outcome::Gone,
        Found::Ambiguous => Outcome::Ambiguous,
    }
}

fn kill_tree(identities: Vec<Identity>, freeze: bool) -> tree::KillReport {
    let roots = Roots { identities, select: &|_| false, columns: Columns::default(), freeze };
    tree::kill(&roots, Instant::now() + Duration::from_secs(5)).unwrap()
}

#[test]
fn a_successor_in_the_same_clock_tick_is_another_process() {
    if !can_choose_pids() {
        return;
    }
    let mut same_tick = 0;
    for round in 0..ROUNDS {
        let first = Forked::new();
        let known = [glance(first.pid), stripped(&glance(first.pid))];
        let second = first.succeeded_by(|| ());
        same_tick += usize::from(judge::look(second.pid).unwrap().start == known[0].start);

        let outcomes = stop::stop(&known, None, &plan(Duration::from_millis(50))).unwrap();
        for (identity, outcome) in known.iter().zip(outcomes) {
            assert!(is_fair(identity, reopen(identity)), "round {round}: {identity:?}");
            assert!(is_fair(identity, outcome), "round {round}: {outcome:?} {identity:?}");
        }
        assert!(second.is_untouched(), "round {round}");
    }
    eprintln!("{same_tick} of {ROUNDS} successors had the same pid and the same start time");
}

#[test]
fn a_successor_after_the_first_clock_tick_is_told_apart_without_a_kernel_handle() {
    if !can_choose_pids() {
        return;
    }
    let first: Vec<_> = (0..ROUNDS).map(|_| Forked::new()).collect();
    eventually("the tick has passed", || glance(first[ROUNDS - 1].pid).settled);
    let known: Vec<_> = first.iter().map(|one| stripped(&identify(one.pid))).collect();
    for identity in &known {
        assert!(identity.settled);
        assert!(matches!(Process::reopen(identity, None).unwrap(), Found::Same(_)));
    }

    let second: Vec<_> = first.into_iter().map(|one| one.succeeded_by(|| ())).collect();
    assert!(known.iter().all(|identity| reopen(identity) == Outcome::Gone));
    let outcomes = stop::stop(&known, None, &plan(Duration::from_millis(50))).unwrap();
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Gone));
    let report = kill_tree(known, true);
    assert_eq!((report.killed, report.survivors.len()), (0, 0));
    assert!(second.iter().all(Forked::is_untouched));
}

#[test]
fn an_identity_that_was_waited_for_is_never_the_successors() {
    if !can_choose_pids() {
        return;
    }
    for round in 0..TREE_ROUNDS {
        let first = Forked::new();
        let identity = identify(first.pid);
        assert!(identity.is_exact(), "round {round}");
        assert!(matches!(Process::reopen(&identity, None).unwrap(), Found::Same(_)));
        let second = first.succeeded_by(|| ());
        assert_eq!(reopen(&identity), Outcome::Gone, "round {round}");
        assert!(!Process::still_runs(&identity).unwrap(), "round {round}");
        assert!(second.is_untouched());
    }
}

#[test]
fn the_successor_of_a_guardian_is_not_protected() {
    if !can_choose_pids() {
        return;
    }
    let first = Forked::new();
    let guardian = identify(first.pid);
    protect::add_guardian(guardian.clone());
    assert!(protect::process(guardian.pid).is_err(), "the guardian itself");
    assert!(protect::group(guardian.pid).is_err(), "its group");
    let second = first.succeeded_by(|| ());
    assert!(protect::process(guardian.pid).is_ok(), "its successor");
    assert!(protect::group(guardian.pid).is_ok(), "the successor's group");
    assert!(second.is_untouched());
}

/// A successor of `first`, and a child of it.
fn succeeded_by_a_parent(first: Forked) -> (Forked, Stray) {
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let parent = first.succeeded_by(|| {
        let Ok(child) = Forked::any() else { return };
        let pid = child.pid.to_ne_bytes();
        // SAFETY: the pointer and the length describe `pid`.
        unsafe { libc::write(writer.as_raw_fd(), pid.as_ptr().cast(), pid.len()) };
        std::mem::forget(child);
    });
    let mut pid = [0; 4];
    File::from(reader).read_exact(&mut pid).unwrap();
    (parent, Stray::catch(i32::from_ne_bytes(pid)))
}

fn spares_the_successors_tree(known: impl Fn(&Forked) -> Identity) {
    if !can_choose_pids() {
        return;
    }
    for round in 0..TREE_ROUNDS {
        let first = Forked::new();
        let identity = known(&first);
        let (parent, child) = succeeded_by_a_parent(first);
        let report = kill_tree(vec![identity], round % 2 == 0);
        assert!(parent.is_untouched(), "round {round}: the successor");
        assert!(child.is_untouched(), "round {round}: the successor's child");
        assert_eq!((report.killed, report.survivors.len()), (0, 0), "round {round}");
    }
}

#[test]
fn a_tree_does_not_grow_from_the_successor_of_its_root() {
    spares_the_successors_tree(|first| glance(first.pid));
}

#[test]
fn a_tree_does_not_grow_from_a_root_that_may_be_another_process() {
    spares_the_successors_tree(|first| stripped(&glance(first.pid)));
}
