//! The processes of a run, found by what they carry.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use snakepit_core::Pid;
use snakepit_core::marker::{self, Owner};
use snakepit_core::run::{self, Users};
use snakepit_core::run_id::RunId;
use support::pidfd::{Stray, catch_all};
use support::refusal::refusing;
use support::spawn::Spawned;
use support::{NOBODY, eventually, fixture, is_root, judge, plan};

const GRACE: Duration = Duration::from_secs(1);

/// Waits for its input to end. What follows `sh` in its arguments means nothing to it.
fn idle(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "read _", "sh"]).args(arguments);
    command
}

/// Carries the run in its environment.
fn marked(run_id: &str) -> Command {
    let mut command = idle(&[]);
    command.env(marker::RUN_ID, run_id);
    command
}

/// In each way that counts.
fn members(id: &str) -> Vec<Spawned> {
    let mut by_both = idle(&["--run-id", "zzzzzzz"]);
    [
        &mut marked(id),
        &mut idle(&["--run-id", id]),
        &mut idle(&[&format!("--run-id={id}")]),
        &mut idle(&["--snakepit-run-id", id, "-v"]),
        &mut idle(&[&format!("--snakepit-run-id={id}")]),
        by_both.env(marker::RUN_ID, id),
    ]
    .map(Spawned::start)
    .into()
}

/// In ways that look like it.
fn bystanders(id: &str) -> Vec<Spawned> {
    let other = RunId::generate().unwrap().to_string();
    let mut of_another_run = idle(&["--run-id", id]);
    let mut in_another_variable = idle(&[]);
    let script = format!("read _; true --run-id {id}");
    [
        &mut idle(&[]),
        &mut marked(&format!("{id}q")),
        &mut marked(&format!("q{id}")),
        &mut marked(&id[..6]),
        &mut marked(&other),
        &mut idle(&["--run-id", &format!("{id}q")]),
        &mut idle(&[&format!("--run-id={id}q")]),
        &mut idle(&[&format!("--run-id{id}")]),
        &mut idle(&["--run-id", &other]),
        &mut idle(&[id]),
        Command::new("sh").args(["-c", &script]),
        of_another_run.env(marker::RUN_ID, &other),
        in_another_variable.env("X_SNAKEPIT_RUN_ID", id),
    ]
    .map(Spawned::start)
    .into()
}

fn found(run_id: RunId, users: Users) -> BTreeSet<i32> {
    run::find(run_id, users).unwrap().iter().map(|identity| identity.pid.as_raw()).collect()
}

fn pids(children: &[Spawned]) -> BTreeSet<i32> {
    children.iter().map(Spawned::raw).collect()
}

#[test]
fn what_carries_the_run_id_is_found_and_ended_and_nothing_else() {
    let run_id = RunId::generate().unwrap();
    let members = members(&run_id.to_string());
    let bystanders = bystanders(&run_id.to_string());
    for users in [Users::Own, Users::Any] {
        assert_eq!(found(run_id, users), pids(&members));
    }
    let report = run::stop(run_id, Users::Own, &plan(GRACE)).unwrap();
    assert_eq!((report.stopped, report.killed), (members.len(), 0));
    assert!(report.survivors.is_empty());
    assert!(!members.iter().any(Spawned::lives));
    assert!(bystanders.iter().all(Spawned::is_untouched));
    assert!(found(run_id, Users::Any).is_empty());
}

#[test]
fn a_sweep_spares_those_of_another_beam_whose_run_has_the_same_id() {
    let run_id = RunId::generate().unwrap();
    let id = run_id.to_string();
    let own = Owner::current().unwrap();
    let another = Owner { start: own.start + 1, ..own.clone() };
    let mine = Spawned::start(marked(&id).env(marker::OWNER, own.to_string()));
    let others = [
        Spawned::start(marked(&id).env(marker::OWNER, another.to_string())),
        Spawned::start(marked(&id).env(marker::INSTANCE, "another")),
    ];
    let members = run::members(run_id).unwrap();
    assert_eq!(
        members.iter().map(|one| one.identity.pid.as_raw()).collect::<Vec<_>>(),
        [mine.raw()]
    );
    assert!(run::sweep(run_id, vec![], &plan(GRACE)).unwrap().survivors.is_empty());
    assert!(!mine.lives());
    assert!(others.iter().all(Spawned::is_untouched));
}

#[test]
fn strays_are_those_that_are_not_below_who_they_belong_to() {
    let run_id = RunId::generate().unwrap();
    let id = run_id.to_string();
    let owner = Owner::current().unwrap().to_string();
    let mine = Spawned::start(marked(&id).env(marker::OWNER, &owner));
    let bystander = Spawned::start(&mut idle(&[&id]));
    let strays = |root| -> Vec<_> {
        let strays = run::strays(run_id, root).unwrap();
        strays.iter().map(|identity| identity.pid.as_raw()).collect()
    };
    assert!(strays(Pid::current()).is_empty());
    assert_eq!(strays(Pid::new(bystander.raw().into()).unwrap()), [mine.raw()]);
    // Nobody is below itself.
    assert_eq!(strays(Pid::new(mine.raw().into()).unwrap()), [mine.raw()]);
    assert!(mine.is_untouched() && bystander.is_untouched());
}

#[test]
fn another_users_processes_count_only_if_everyones_do() {
    if !is_root("a process of another user") {
        return;
    }
    let run_id = RunId::generate().unwrap();
    let id = run_id.to_string();
    let own = [Spawned::start(&mut marked(&id))];
    let commands = [&mut marked(&id), &mut idle(&["--run-id", &id])];
    let foreign = commands.map(|command| Spawned::start(command.uid(NOBODY)));
    assert_eq!(found(run_id, Users::Own), pids(&own));
    assert_eq!(found(run_id, Users::Any), &pids(&own) | &pids(&foreign));

    run::stop(run_id, Users::Own, &plan(GRACE)).unwrap();
    assert!(!own[0].lives());
    assert!(foreign.iter().all(Spawned::is_untouched));
    run::stop(run_id, Users::Any, &plan(GRACE)).unwrap();
    assert!(!foreign.iter().any(Spawned::lives));
}

#[test]
fn the_stubborn_are_killed_and_counted_as_such() {
    let run_id = RunId::generate().unwrap();
    let mut stubborn = fixture("ignores_sigterm.py");
    let mut stubborn = Spawned::start(stubborn.arg("9").env(marker::RUN_ID, run_id.to_string()));
    let children = catch_all(&stubborn.line());
    let polite = Spawned::start(&mut marked(&run_id.to_string()));
    let report = run::stop(run_id, Users::Own, &plan(GRACE)).unwrap();
    assert_eq!((report.stopped, report.killed, report.survivors.len()), (1, 10, 0));
    assert!(!stubborn.lives() && !polite.lives() && !children.iter().any(Stray::lives));
}

#[test]
fn one_that_may_not_be_signalled_is_named_and_the_others_are_ended() {
    let run_id = RunId::generate().unwrap();
    let [guarded, polite] = [(); 2].map(|()| Spawned::start(&mut marked(&run_id.to_string())));
    let work = || run::stop(run_id, Users::Own, &plan(GRACE)).unwrap();
    let Some(report) = refusing(&[guarded.raw()], Errno::EACCES, work) else { return };
    let survivors: Vec<i32> = report.survivors.iter().map(|one| one.pid.as_raw()).collect();
    assert_eq!((report.stopped, report.killed, survivors), (1, 0, vec![guarded.raw()]));
    assert!(guarded.is_untouched() && !polite.lives());
}

#[test]
fn daemons_are_found_and_so_are_their_children_with_an_empty_environment() {
    let run_id = RunId::generate().unwrap();
    let mut command = fixture("daemonizes.py");
    let mut parent = Spawned::start(command.env(marker::RUN_ID, run_id.to_string()));
    let [daemon, child] = catch_all(&parent.line()).try_into().unwrap();
    eventually("the parent has ended", || !parent.lives());
    assert_ne!(judge::look(daemon.pid).unwrap().parent, parent.raw());
    assert_eq!(found(run_id, Users::Own), BTreeSet::from([daemon.pid]));
    let report = run::stop(run_id, Users::Own, &plan(GRACE)).unwrap();
    assert_eq!((report.stopped, report.killed, report.survivors.len()), (2, 0, 0));
    assert!(!daemon.lives() && !child.lives());
}

#[test]
fn a_process_whose_main_thread_has_ended_belongs_to_its_run() {
    let run_id = RunId::generate().unwrap();
    let mut command = fixture("main_thread_exits.py");
    let mut child = Spawned::start(command.env(marker::RUN_ID, run_id.to_string()));
    child.line();
    eventually("the main thread has ended", || judge::state(child.raw()) == Some('Z'));
    assert_eq!(found(run_id, Users::Own), BTreeSet::from([child.raw()]));
    run::stop(run_id, Users::Own, &plan(GRACE)).unwrap();
    assert!(!child.lives());
}
