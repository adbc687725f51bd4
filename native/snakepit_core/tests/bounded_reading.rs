//! A process does not decide how much of it is read.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use nix::sys::resource::{UsageWho, getrusage};
use snakepit_core::run::{self, Users};
use snakepit_core::run_id::RunId;
use snakepit_core::table::{self, Columns};
use support::fixture;
use support::spawn::Spawned;

/// The most memory that this process has had, in megabytes.
fn peak() -> i64 {
    getrusage(UsageWho::RUSAGE_SELF).unwrap().max_rss() / 1024
}

#[test]
fn a_process_that_shows_a_gigabyte_of_environment_costs_a_few_megabytes() {
    let mut one = Spawned::start(fixture("boasts_of_its_environment.py").arg("1024"));
    let word = one.line();
    if word != "boasts" {
        eprintln!("skipped: PR_SET_MM_MAP: {word}");
        return;
    }
    let before = peak();
    let columns = Columns { uid: true, arguments: true, markers: true };
    let entry = table::read_one(one.pid(), columns).unwrap().unwrap();
    assert!(entry.is_alive());
    assert!(run::find(RunId::generate().unwrap(), Users::Any).unwrap().is_empty());
    let grown = peak() - before;
    assert!(grown < 64, "{grown} MB");
    assert!(one.is_untouched());
}
