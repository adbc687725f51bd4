//! What dead runs have left behind is ended, and nothing else is.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::collections::HashSet;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use snakepit_core::dead_runs::{self, CleanupReport, DeadRun, Proof, RunCleanup, Search};
use snakepit_core::lineage::Lineage;
use snakepit_core::marker::{self, Owner};
use snakepit_core::run_id::RunId;
use snakepit_core::{Identity, Pid};
use support::pidfd::{Stray, catch_all};
use support::refusal::refusing;
use support::spawn::Spawned;
use support::{eventually, fixture, plan};

const GRACE: Duration = Duration::from_secs(1);

/// Waits for its input to end.
fn idle() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "read _"]);
    command
}

fn mark(command: &mut Command, run_id: RunId, instance: &str, owner: &str) {
    command.env(marker::RUN_ID, run_id.to_string());
    command.env(marker::INSTANCE, instance).env(marker::OWNER, owner);
}

fn marked(run_id: RunId, instance: &str, owner: &str) -> Spawned {
    let mut command = idle();
    mark(&mut command, run_id, instance, owner);
    Spawned::start(&mut command)
}

/// By the judge's own reading.
fn is_marked(pid: i32) -> bool {
    let of_owner = |text: &[u8]| text.starts_with(format!("{}=", marker::OWNER).as_bytes());
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|text| text.split(|byte| *byte == 0).any(of_owner))
}

/// With an empty environment; only the limit that it inherits names its run.
fn of_lineage(run_id: RunId) -> Spawned {
    let limit = Lineage::new(run_id, 1).to_limit();
    let mut command = Command::new("prlimit");
    command.arg(format!("--locks={limit}:")).args(["env", "-i", "sh", "-c", "echo; read _"]);
    let mut spawned = Spawned::start(&mut command);
    spawned.line();
    spawned
}

/// A BEAM that has ended, as a marker names it.
fn dead_owner() -> String {
    let mut one = Spawned::polite();
    let owner = Owner::from(&one.identity()).to_string();
    one.end();
    owner
}

/// Of each test its own: they run at once, and to another of the same the marked would be strays.
fn instance() -> String {
    format!("test-{}", fresh())
}

fn fresh() -> RunId {
    RunId::generate().unwrap()
}

fn run(run_id: RunId, identities: Vec<Identity>) -> DeadRun {
    DeadRun { run_id, identities }
}

fn stop_dead_runs(instance: &str, runs: &[DeadRun], spared: &[RunId]) -> CleanupReport {
    let spared: HashSet<_> = spared.iter().copied().collect();
    let search = Search { runs, instance: instance.as_bytes(), spared: &spared };
    let listed = dead_runs::list(search).unwrap();
    let report = dead_runs::stop(search, &plan(GRACE)).unwrap();
    // What is shown to people first is what is ended then.
    for (index, cleanup) in report.runs.iter().chain([&report.strays]).enumerate() {
        let mut shown: Vec<_> = listed.processes.iter().filter(|one| one.run == index).collect();
        assert_eq!(shown.len(), cleanup.found, "{shown:?}");
        shown.retain(|one| !cleanup.survivors.contains(&one.identity));
        assert_eq!(shown.len(), cleanup.ended.len());
        for ended in &cleanup.ended {
            assert!(shown.iter().any(|one| one.identity.pid == ended.identity.pid), "{ended:?}");
        }
        let ambiguous = listed.ambiguous.iter().filter(|(run, _)| *run == index);
        assert_eq!(ambiguous.count(), cleanup.ambiguous.len());
    }
    report
}

fn proof_of(run: DeadRun, instance: &str, pid: Pid) -> Option<Proof> {
    let runs = [run];
    let spared = HashSet::new();
    let search = Search { runs: &runs, instance: instance.as_bytes(), spared: &spared };
    let listed = dead_runs::list(search).unwrap().processes;
    listed.into_iter().find(|one| one.identity.pid == pid).map(|one| one.proof)
}

#[test]
fn what_is_listed_has_its_proof_and_lives_on() {
    let (instance, run_id) = (instance(), fresh());
    let noted = Spawned::polite();
    let by_marker = marked(run_id, &instance, &dead_owner());
    let by_lineage = of_lineage(run_id);
    let mut parent = Spawned::start(&mut fixture("scatters_children.py"));
    let children = catch_all(&parent.line());
    let below = Pid::new(children[0].pid.into()).unwrap();
    for (pid, proof) in [
        (noted.pid(), Some(Proof::Recorded)),
        (by_marker.pid(), Some(Proof::Marked)),
        (by_lineage.pid(), Some(Proof::Lineage)),
        (below, Some(Proof::Descends)),
        (Pid::current(), None),
    ] {
        let run = run(run_id, vec![noted.identity(), parent.identity()]);
        assert_eq!(proof_of(run, &instance, pid), proof);
    }
    assert!([&noted, &by_marker].iter().all(|one| one.is_untouched()));
    assert!(children.iter().all(Stray::lives));
}

fn counts(cleanup: &RunCleanup) -> (usize, usize, usize, usize, usize) {
    let survivors = cleanup.survivors.len();
    (cleanup.found, cleanup.stopped, cleanup.killed, cleanup.ambiguous.len(), survivors)
}

#[test]
fn what_is_noted_marked_or_descends_is_ended_and_counted_with_its_run() {
    let instance = instance();
    let (one, other) = (fresh(), fresh());
    let owner = dead_owner();
    let noted = Spawned::start(&mut idle());
    let by_marker = marked(one, &instance, &owner);
    let by_lineage = of_lineage(one);
    // Only the parent is noted, and two of its children are in sessions of their own.
    let mut parent = Spawned::start(&mut fixture("scatters_children.py"));
    let children = catch_all(&parent.line());

    let runs = [run(one, vec![noted.identity()]), run(other, vec![parent.identity()])];
    let report = stop_dead_runs(&instance, &runs, &[]);
    assert_eq!(counts(&report.runs[0]), (3, 3, 0, 0, 0));
    assert_eq!(counts(&report.runs[1]), (1 + children.len(), 1 + children.len(), 0, 0, 0));
    assert_eq!(counts(&report.strays), (0, 0, 0, 0, 0));
    assert!(![&noted, &by_marker, &by_lineage, &parent].iter().any(|one| one.lives()));
    assert!(!children.iter().any(Stray::lives));
}

#[test]
fn a_daemon_that_is_marked_is_ended_with_its_child_that_is_not() {
    let instance = instance();
    let run_id = fresh();
    let mut command = fixture("daemonizes.py");
    mark(&mut command, run_id, &instance, &dead_owner());
    let mut parent = Spawned::start(&mut command);
    let family = catch_all(&parent.line());
    eventually("the parent has ended", || !parent.lives());
    let report = stop_dead_runs(&instance, &[run(run_id, vec![])], &[]);
    assert_eq!(counts(&report.runs[0]), (2, 2, 0, 0, 0));
    assert!(!family.iter().any(Stray::lives));
}

#[test]
fn what_may_be_anybodys_is_left_alone() {
    let instance = instance();
    let (run_id, other, spared) = (fresh(), fresh(), fresh());
    let owner = dead_owner();
    let beam = Spawned::polite();
    let living = Owner::from(&beam.identity()).to_string();
    let mut elsewhere = Owner::current().unwrap();
    elsewhere.namespace += 1;
    let mut earlier = Owner::current().unwrap();
    earlier.boot[0] ^= 1;
    let mut by_arguments = idle();
    by_arguments.args(["sh", "--run-id", &run_id.to_string()]);
    let mut without_owner = idle();
    without_owner.env(marker::RUN_ID, run_id.to_string()).env(marker::INSTANCE, &instance);

    let bystanders = [
        Spawned::polite(),
        Spawned::start(&mut by_arguments),
        Spawned::start(&mut without_owner),
        marked(run_id, "another", &owner),
        marked(run_id, &instance, &living),
        marked(run_id, &instance, &elsewhere.to_string()),
        marked(run_id, &instance, &earlier.to_string()),
        marked(spared, &instance, &owner),
        of_lineage(other),
        of_lineage(spared),
    ];
    let report = stop_dead_runs(&instance, &[run(run_id, vec![])], &[spared]);
    assert_eq!(counts(&report.runs[0]), (0, 0, 0, 0, 0));
    assert_eq!(counts(&report.strays), (0, 0, 0, 0, 0));
    assert!(bystanders.iter().all(Spawned::is_untouched));
}

#[test]
fn an_earlier_run_of_the_one_who_asks_is_dead_and_the_present_one_is_not() {
    let instance = instance();
    let (earlier, present) = (fresh(), fresh());
    let own = Owner::current().unwrap().to_string();
    let orphan = marked(earlier, &instance, &own);
    let bystander = marked(present, &instance, &own);
    let report = stop_dead_runs(&instance, &[run(earlier, vec![])], &[present]);
    assert_eq!(counts(&report.runs[0]), (1, 1, 0, 0, 0));
    assert!(!orphan.lives());
    assert!(bystander.is_untouched());
}

#[test]
fn a_run_without_a_directory_is_found_by_its_markers_alone() {
    let instance = instance();
    let (run_id, owner) = (fresh(), dead_owner());
    let strays = [marked(run_id, &instance, &owner), marked(run_id, &instance, &owner)];
    let report = stop_dead_runs(&instance, &[], &[]);
    assert!(report.runs.is_empty());
    assert_eq!(counts(&report.strays), (2, 2, 0, 0, 0));
    assert!(!strays.iter().any(Spawned::lives));
}

/// What a guardian is to everybody else: its name, its run, and what is below it.
fn like_a_guardian(run_id: RunId, instance: &str, owner: &str) -> (Spawned, Vec<Stray>) {
    let directory = std::env::temp_dir().join(format!("snakepit_reap_{run_id}"));
    std::fs::create_dir_all(&directory).unwrap();
    let child = format!("{}=$RUN {}=$OF {}=$BY", marker::RUN_ID, marker::INSTANCE, marker::OWNER);
    let script = format!("{child} sleep 600 & echo $!; read _");
    std::fs::write(directory.join(run_id.to_string()), script).unwrap();
    let mut command = Command::new("sh");
    command.arg0("snakepit_guardian").arg(run_id.to_string()).current_dir(&directory);
    command.env("RUN", run_id.to_string()).env("OF", instance).env("BY", owner);
    let mut guardian = Spawned::start(&mut command);
    let children = catch_all(&guardian.line());
    eventually("the child is marked", || is_marked(children[0].pid));
    std::fs::remove_dir_all(&directory).unwrap();
    (guardian, children)
}

#[test]
fn what_is_below_a_living_guardian_is_no_stray() {
    let instance = instance();
    let (mut guardian, children) = like_a_guardian(fresh(), &instance, &dead_owner());
    assert_eq!(counts(&stop_dead_runs(&instance, &[], &[]).strays), (0, 0, 0, 0, 0));
    assert!(children.iter().all(Stray::lives));
    guardian.end();
    assert_eq!(stop_dead_runs(&instance, &[], &[]).strays.found, 1);
    assert!(!children.iter().any(Stray::lives));
}

#[test]
fn what_is_noted_and_gone_is_not_who_has_its_pid_now() {
    let instance = instance();
    let run_id = fresh();
    let mut gone = Spawned::polite();
    let mut recycled = gone.identity();
    gone.end();
    // Of a later tick, as a successor of a settled process is.
    let bystander = Spawned::polite();
    // As if the kernel had given its pid to the bystander.
    recycled.pid = bystander.pid();
    let report = stop_dead_runs(&instance, &[run(run_id, vec![recycled])], &[]);
    assert_eq!(counts(&report.runs[0]), (0, 0, 0, 0, 0));
    assert!(bystander.is_untouched());
}

#[test]
fn an_ambiguous_process_is_counted_and_left_alone() {
    let instance = instance();
    let run_id = fresh();
    let bystander = Spawned::polite();
    let mut identity = bystander.identity();
    identity.namespace += 1;
    let report = stop_dead_runs(&instance, &[run(run_id, vec![identity])], &[]);
    assert_eq!(counts(&report.runs[0]), (0, 0, 0, 1, 0));
    assert!(bystander.is_untouched());
}

#[test]
fn the_stubborn_are_killed_after_one_grace_period() {
    let instance = instance();
    let run_id = fresh();
    let mut command = fixture("ignores_sigterm.py");
    let mut stubborn = Spawned::start(command.arg("9"));
    let children = catch_all(&stubborn.line());
    let polite = Spawned::polite();
    let report = stop_dead_runs(
        &instance,
        &[run(run_id, vec![stubborn.identity(), polite.identity()])],
        &[],
    );
    assert_eq!(counts(&report.runs[0]), (11, 1, 10, 0, 0));
    assert!(!stubborn.lives() && !polite.lives() && !children.iter().any(Stray::lives));
}

#[test]
fn one_that_may_not_be_signalled_is_named_and_the_others_are_ended() {
    let instance = instance();
    let run_id = fresh();
    let (noted, guarded) = (Spawned::polite(), Spawned::polite());
    let by_marker = marked(run_id, &instance, &dead_owner());
    let runs = [run(run_id, vec![guarded.identity(), noted.identity()])];
    let work = || stop_dead_runs(&instance, &runs, &[]);
    let Some(report) = refusing(&[guarded.raw()], Errno::EACCES, work) else { return };
    assert_eq!(counts(&report.runs[0]), (3, 2, 0, 0, 1));
    assert_eq!(report.runs[0].survivors[0].pid, guarded.pid());
    assert!(guarded.is_untouched() && !noted.lives() && !by_marker.lives());
}
