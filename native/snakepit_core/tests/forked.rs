//! Children known by when they were forked.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use snakepit_core::Identity;
use snakepit_core::forked::{self, Moment};
use support::fork::Forked;
use support::{glance, judge, pid};

#[test]
fn it_is_the_identity_that_the_process_table_has() {
    // Enough for some to be forked while one tick ends and the next begins.
    for _ in 0..500 {
        let before = Moment::now();
        let child = Forked::new();
        let after = Moment::now();
        let known = forked::identify(pid(child.pid), before, after).unwrap().unwrap();
        let read = glance(child.pid);
        assert_eq!(known.start, judge::look(child.pid).unwrap().start);
        // Only the time that has passed makes a difference.
        assert_eq!(Identity { settled: false, ..known }, Identity { settled: false, ..read });
    }
}

#[test]
fn moments_that_are_too_far_apart_are_no_guess() {
    let before = Moment::now();
    let child = Forked::new();
    support::eventually("a later tick", || glance(child.pid).settled);
    let known = forked::identify(pid(child.pid), before, Moment::now()).unwrap().unwrap();
    assert_eq!(known.start, judge::look(child.pid).unwrap().start);
}

#[test]
fn a_child_that_has_been_reaped_has_no_identity() {
    let before = Moment::now();
    let child = Forked::new();
    let after = Moment::now();
    let number = child.pid;
    drop(child);
    assert_eq!(forked::identify(pid(number), before, after).unwrap(), None);
}
