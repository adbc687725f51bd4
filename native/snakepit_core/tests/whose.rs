//! Who is the same: handle, start time and boot have to agree, and what is not known agrees with nothing.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::process::Command;

use snakepit_core::identity::Origin;
use snakepit_core::lineage::Lineage;
use snakepit_core::marker;
use snakepit_core::process::{self, Found};
use snakepit_core::run_id::RunId;
use snakepit_core::{Error, Identity, Process};
use support::spawn::Spawned;

/// As it would have been recorded where the boot could not be told.
fn of_unknown_boot(identity: Identity) -> Identity {
    let mut boot = [0; 16];
    boot[15] = 7;
    Identity { boot, ..identity }
}

fn found(identity: &Identity, run_id: Option<RunId>) -> &'static str {
    match Process::reopen(identity, run_id).unwrap() {
        Found::Same(_) => "same",
        Found::Gone => "gone",
        Found::Ambiguous => "ambiguous",
    }
}

#[test]
fn the_handle_of_another_start_time_is_not_enough() {
    let child = Spawned::polite();
    let known = child.identity();
    if known.handle.is_none() {
        eprintln!("skipped: this kernel has no handles");
        return;
    }
    assert_eq!(found(&known, None), "same");
    let other = Identity { start: known.start + 4200, ..known };
    assert_eq!(found(&other, None), "ambiguous");
}

#[test]
fn what_was_recorded_of_an_unknown_boot_is_not_the_same_on_its_word() {
    let mut child = Spawned::polite();
    let known = of_unknown_boot(child.identity());
    assert_eq!(known.origin().unwrap(), Origin::Unknown);
    assert_eq!(found(&known, None), "ambiguous");
    assert!(matches!(Process::still_runs(&known), Err(Error::Ambiguous(_))));
    let now = std::time::Instant::now();
    assert_eq!(process::await_ends(std::slice::from_ref(&known), now).unwrap().len(), 1);
    // Whatever the boot: one of another start time is another.
    assert_eq!(found(&Identity { start: known.start + 1, ..known.clone() }, None), "gone");
    child.end();
    assert_eq!(found(&known, None), "gone");
}

#[test]
fn a_marker_or_a_lineage_of_the_run_confirms_what_is_of_an_unknown_boot() {
    let (run_id, other) = (RunId::generate().unwrap(), RunId::generate().unwrap());
    let mut command = Command::new("cat");
    let marked = Spawned::start(command.env(marker::RUN_ID, run_id.to_string()));
    let limit = Lineage::new(run_id, 1).to_limit();
    let mut command = Command::new("prlimit");
    command.arg(format!("--locks={limit}:")).args(["env", "-i", "sh", "-c", "echo; read _"]);
    let mut of_lineage = Spawned::start(&mut command);
    of_lineage.line();
    for child in [&marked, &of_lineage] {
        let known = of_unknown_boot(child.identity());
        assert_eq!(found(&known, Some(run_id)), "same");
        assert_eq!(found(&known, Some(other)), "ambiguous");
    }
}
