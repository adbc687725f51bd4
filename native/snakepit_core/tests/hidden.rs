//! What `/proc` does not show is there all the same.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::collections::HashSet;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use snakepit_core::dead_runs::{self, CleanupReport, DeadRun, Search};
use snakepit_core::marker::{self, Owner};
use snakepit_core::run_id::RunId;
use snakepit_core::table::Columns;
use snakepit_core::tree::{self, Roots};
use snakepit_core::{Identity, table};
use support::hidden::{Untraceable, where_processes_hide};
use support::spawn::Spawned;
use support::{NOBODY, eventually, is_root, plan};

fn stop_dead_runs(instance: &str, runs: &[DeadRun]) -> CleanupReport {
    let spared = HashSet::new();
    let search = Search { runs, instance: instance.as_bytes(), spared: &spared };
    dead_runs::stop(search, &plan(Duration::from_secs(1))).unwrap()
}

/// One that is hidden from `NOBODY`, whose own it is.
fn hidden(program: &Untraceable) -> Spawned {
    let spawned = Spawned::start(&mut program.command());
    let status = format!("/proc/{}/status", spawned.raw());
    eventually("it is an ordinary user's", || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        text.contains(&format!("Uid:\t{NOBODY}")) && text.contains("Name:\tsnakepit_untra")
    });
    spawned
}

fn is_hidden(identity: &Identity) -> bool {
    table::read_one(identity.pid, Columns::default()).unwrap().is_none()
}

#[test]
fn one_that_was_noted_and_is_hidden_is_ended_and_counted() {
    if !is_root("hiding processes") {
        return;
    }
    let program = Untraceable::new("cat");
    let one = hidden(&program);
    let known = one.identity();
    if known.handle.is_none() {
        eprintln!("skipped: without handles a hidden process cannot be identified");
        return;
    }
    let run_id = RunId::generate().unwrap();
    let runs = [DeadRun { run_id, identities: vec![known.clone()] }];
    let Some(report) = where_processes_hide(|| {
        assert!(is_hidden(&known));
        stop_dead_runs("hidden", &runs)
    }) else {
        return;
    };
    let cleanup = &report.runs[0];
    assert_eq!((cleanup.found, cleanup.stopped, cleanup.survivors.len()), (1, 1, 0));
    assert!(!one.lives());
}

#[test]
fn one_that_is_hidden_and_refuses_to_end_is_killed_with_its_tree() {
    if !is_root("hiding processes") {
        return;
    }
    let program = Untraceable::new("cat");
    let one = hidden(&program);
    let known = one.identity();
    if known.handle.is_none() {
        eprintln!("skipped: without handles a hidden process cannot be identified");
        return;
    }
    let identities = vec![known];
    let report = where_processes_hide(|| {
        let roots =
            Roots { identities, select: &|_| false, columns: Columns::default(), freeze: true };
        tree::kill(&roots, Instant::now() + Duration::from_secs(5)).unwrap()
    });
    let Some(report) = report else { return };
    assert_eq!((report.killed, report.survivors.len()), (1, 0));
    assert!(!one.lives());
}

#[test]
fn an_owner_that_is_hidden_is_alive() {
    if !is_root("hiding processes") {
        return;
    }
    let program = Untraceable::new("cat");
    let beam = hidden(&program);
    let owner = Owner::from(&beam.identity()).to_string();
    let instance = format!("hidden-{}", RunId::generate().unwrap());
    let mut command = Command::new("cat");
    command.uid(NOBODY).gid(NOBODY);
    command.env(marker::RUN_ID, RunId::generate().unwrap().to_string());
    command.env(marker::INSTANCE, &instance).env(marker::OWNER, owner);
    let worker = Spawned::start(&mut command);
    let Some(report) = where_processes_hide(|| stop_dead_runs(&instance, &[])) else { return };
    assert_eq!(report.strays.found, 0);
    assert!(worker.is_untouched());
    drop(beam);
    let Some(report) = where_processes_hide(|| stop_dead_runs(&instance, &[])) else { return };
    assert_eq!(report.strays.found, 1);
    assert!(!worker.lives());
}
