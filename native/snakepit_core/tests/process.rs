//! Opening, knowing again and signalling one process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use snakepit_core::process::{self, Delivery, Found};
use snakepit_core::run_id::RunId;
use snakepit_core::table::{self, Columns, ProcessState};
use snakepit_core::{Error, Identity, Process, Signal, marker};
use support::fork::Forked;
use support::pidfd::{open, send};
use support::spawn::Spawned;
use support::{NOBODY, as_user, eventually, fixture, is_root, judge, pid, within};

fn is_same(identity: &Identity) -> bool {
    matches!(Process::reopen(identity, None).unwrap(), Found::Same(_))
}

fn is_gone(identity: &Identity) -> bool {
    matches!(Process::reopen(identity, None).unwrap(), Found::Gone)
}

#[test]
fn a_live_process_opens_and_one_that_was_reaped_does_not() {
    let mut child = Spawned::polite();
    let process = Process::open_settled(child.pid()).unwrap().unwrap();
    assert!(process.is_alive().unwrap());
    assert!(is_same(process.identity()));

    child.end();
    assert!(!process.is_alive().unwrap());
    assert!(process.inspect(Columns::default()).unwrap().is_none());
    assert_eq!(process.signal(Signal::TERM).unwrap(), Delivery::Gone);
    assert!(Process::open(child.pid()).unwrap().is_none());
    assert!(is_gone(process.identity()));
}

#[test]
fn a_zombie_opens_and_is_not_alive() {
    let zombie = Spawned::zombie();
    let process = Process::open_settled(zombie.pid()).unwrap().expect("a zombie opens");
    assert!(!process.is_alive().unwrap());
    assert!(is_same(process.identity()));
    let columns = Columns { uid: true, arguments: true, markers: true };
    let entry = process.inspect(columns).unwrap().expect("a zombie is in the table");
    assert_eq!(entry.state, ProcessState::Zombie);
}

#[test]
fn who_still_runs_is_known_with_a_handle_and_without() {
    let (mut child, other, zombie) = (Spawned::polite(), Spawned::polite(), Spawned::zombie());
    let without_handle =
        |child: &Spawned| Identity { handle: None, settled: true, ..child.identity() };
    let still_runs = |identity| Process::still_runs(&identity).unwrap();
    assert!(still_runs(child.identity()));
    assert!(still_runs(without_handle(&child)));
    assert!(!still_runs(zombie.identity()));
    assert!(!still_runs(without_handle(&zombie)));

    // Whoever has the pid now, it is not the one with that handle, or with that start time.
    if other.identity().handle.is_some() {
        assert!(!still_runs(Identity { handle: other.identity().handle, ..child.identity() }));
    }
    let start = child.identity().start + 1;
    assert!(!still_runs(Identity { start, ..without_handle(&child) }));

    let (known, known_by_start) = (child.identity(), without_handle(&child));
    child.end();
    assert!(!still_runs(known));
    assert!(!still_runs(known_by_start));

    let unsettled = Identity { settled: false, ..without_handle(&other) };
    assert!(matches!(Process::still_runs(&unsettled), Err(Error::Ambiguous(_))));
}

#[test]
fn one_in_doubt_has_not_ended_until_the_owner_of_its_pid_has() {
    let (mut child, mut stopped) = (Spawned::polite(), Spawned::polite());
    let in_doubt = |child: &Spawned| Identity { handle: None, settled: false, ..child.identity() };
    let elsewhere = Identity { namespace: 1, ..child.identity() };
    let known = [in_doubt(&child), stopped.identity(), in_doubt(&stopped), elsewhere.clone()];
    let await_ends = |time| {
        let left = process::await_ends(&known, Instant::now() + Duration::from_millis(time));
        left.unwrap().iter().map(|one| (one.pid, one.namespace)).collect::<HashSet<_>>()
    };
    let both = HashSet::from([&child, &stopped].map(|one| (one.pid(), known[0].namespace)));
    let other = HashSet::from([(elsewhere.pid, elsewhere.namespace)]);
    assert_eq!(await_ends(0), &both | &other);
    assert_eq!(await_ends(50), &both | &other);

    // As a zombie it has its pid, and cannot run.
    send(&open(child.raw()).unwrap(), libc::SIGKILL).unwrap();
    eventually("it is a zombie", || judge::state(child.raw()) == Some('Z'));
    stopped.end();
    assert_eq!(await_ends(0), other);
    child.end();
    assert_eq!(await_ends(0), other);
}

#[test]
fn the_end_of_one_in_doubt_is_noticed() {
    let child = Spawned::polite();
    let in_doubt = [Identity { handle: None, settled: false, ..child.identity() }];
    let deadline = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| process::await_ends(&in_doubt, deadline).unwrap());
        assert!(!within(Duration::from_millis(50), || waiting.is_finished()));
        send(&open(child.raw()).unwrap(), libc::SIGKILL).unwrap();
        assert!(waiting.join().unwrap().is_empty());
    });
    assert!(Instant::now() < deadline);
}

#[test]
fn who_waits_for_the_tick_gets_a_settled_identity() {
    for _ in 0..20 {
        let child = Forked::new();
        let process = Process::open_settled(pid(child.pid)).unwrap().unwrap();
        assert!(process.identity().is_exact());
        assert_eq!(process.settled_identity().as_ref(), Some(process.identity()));
        assert!(is_same(process.identity()));
    }
    let mut gone = Spawned::polite();
    gone.end();
    assert!(Process::open_settled(gone.pid()).unwrap().is_none());
}

#[test]
fn a_thread_is_not_a_process() {
    std::thread::spawn(|| {
        let tid = nix::unistd::gettid().as_raw();
        assert!(Process::open(support::pid(tid)).unwrap().is_none());
    })
    .join()
    .unwrap();
}

/// This test program, started again: prints what it finds for an identity.
const IDENTITY: &str = "SNAKEPIT_TEST_IDENTITY";

#[test]
fn another_program_knows_the_process_again() {
    if let Ok(text) = std::env::var(IDENTITY) {
        let bytes: Vec<u8> = text.split(' ').map(|byte| byte.parse().unwrap()).collect();
        let identity = Identity::decode(&bytes).unwrap();
        println!("{} same, {} gone", is_same(&identity), is_gone(&identity));
        return;
    }
    let mut child = Spawned::polite();
    let bytes: Vec<String> = child.identity().encode().iter().map(u8::to_string).collect();
    let verdict = || {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "another_program_knows_the_process_again", "--nocapture"]);
        let output = again.env(IDENTITY, bytes.join(" ")).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(verdict().contains("true same, false gone"));
    child.end();
    assert!(verdict().contains("false same, true gone"));
}

#[test]
fn without_a_kernel_handle_only_the_marker_confirms_in_the_first_tick() {
    let run_id = RunId::generate().unwrap();
    let marked = Spawned::start(Command::new("cat").env(marker::RUN_ID, run_id.to_string()));
    let unmarked = Spawned::polite();
    let early = |child: &Spawned| Identity { handle: None, settled: false, ..child.identity() };
    let is_same = |child: &Spawned, run_id| match Process::reopen(&early(child), run_id).unwrap() {
        Found::Same(_) => true,
        Found::Ambiguous => false,
        Found::Gone => panic!("{} is there", child.raw()),
    };
    assert!(is_same(&marked, Some(run_id)));
    assert!(!is_same(&marked, None));
    assert!(!is_same(&marked, Some(RunId::generate().unwrap())));
    assert!(!is_same(&unmarked, Some(run_id)));
    let late = Identity { settled: true, ..early(&unmarked) };
    assert!(matches!(Process::reopen(&late, None).unwrap(), Found::Same(_)));
}

#[test]
fn root_signals_a_process_of_another_user() {
    if !is_root("a process of another user") {
        return;
    }
    let child = Spawned::start(Command::new("cat").uid(NOBODY));
    assert_eq!(judge::look(child.raw()).unwrap().uid, NOBODY);
    let process = Process::open(child.pid()).unwrap().unwrap();
    assert_eq!(process.signal(Signal::TERM).unwrap(), Delivery::Sent);
    eventually("it has ended", || !child.lives());
}

#[test]
fn a_refusal_by_the_kernel_is_reported_as_such() {
    if !is_root("a thread of another user") {
        return;
    }
    let child = Spawned::polite();
    let result = as_user(NOBODY, || {
        let process = Process::open(child.pid()).unwrap().unwrap();
        assert!(process.is_alive().unwrap());
        process.signal(Signal::KILL)
    });
    let Err(Error::Signal { pid, signal, errno }) = result else { panic!("{result:?}") };
    assert_eq!((pid, signal, errno), (child.pid(), Signal::KILL, Errno::EPERM));
    assert!(child.lives());
}

#[test]
fn a_process_whose_main_thread_has_ended_is_alive() {
    let mut child = Spawned::start(&mut fixture("main_thread_exits.py"));
    child.line();
    eventually("the main thread has ended", || judge::state(child.raw()) == Some('Z'));

    let process = Process::open(child.pid()).unwrap().unwrap();
    assert!(process.is_alive().unwrap());
    let columns = Columns { uid: true, arguments: true, markers: true };
    for columns in [Columns::default(), columns] {
        let entry = process.inspect(columns).unwrap().expect("it is in the table");
        assert!(entry.is_alive());
    }
    assert_eq!(process.signal(Signal::KILL).unwrap(), Delivery::Sent);
    eventually("it has ended", || !child.lives());
    assert!(!process.is_alive().unwrap());
}

/// Stopped by a tracer, as a debugger may, and not by a signal: that one stops all threads.
#[test]
fn a_process_of_which_one_thread_is_stopped_is_not_at_rest() {
    let mut child = Spawned::start(&mut fixture("two_threads.py"));
    child.line();
    assert_eq!(judge::look(child.raw()).unwrap().threads, 2);
    let state = || table::read_one(child.pid(), Columns::default()).unwrap().unwrap().state;
    assert_eq!(state(), ProcessState::Alive);

    // SAFETY: neither uses an address. The child is killed if this thread ends first.
    let trace = |request| unsafe {
        let data =
            i64::from(if request == libc::PTRACE_SEIZE { libc::PTRACE_O_EXITKILL } else { 0 });
        Errno::result(libc::ptrace(request, child.raw(), 0_usize, data)).unwrap()
    };
    trace(libc::PTRACE_SEIZE);
    trace(libc::PTRACE_INTERRUPT);
    eventually("the leader is held", || judge::state(child.raw()) == Some('t'));
    assert_eq!(state(), ProcessState::Alive);

    let process = Process::open(child.pid()).unwrap().unwrap();
    assert_eq!(process.signal(Signal::STOP).unwrap(), Delivery::Sent);
    eventually("all are", || state() == ProcessState::Stopped);
    assert_eq!(process.signal(Signal::KILL).unwrap(), Delivery::Sent);
}

#[test]
fn a_process_that_executes_from_a_second_thread_stays_the_same() {
    let mut child = Spawned::start(&mut fixture("executes_from_a_thread.py"));
    let process = Process::open_settled(child.pid()).unwrap().unwrap();
    child.write_line();
    let name = || std::fs::read_to_string(format!("/proc/{}/comm", child.raw())).unwrap();
    eventually("it is another program", || name() == "cat\n");
    assert!(process.is_alive().unwrap());
    assert!(is_same(process.identity()));
    assert_eq!(process.signal(Signal::TERM).unwrap(), Delivery::Sent);
    eventually("it has ended", || !child.lives());
}

#[test]
fn hostile_names_and_arguments_arrive_as_they_are() {
    let long = vec![b'x'; 100_000];
    let hostile: [&[u8]; 6] = [b"", b"\xff\xfe", b"a b\nc", b") R 1 1", &long, b""];
    let mut command = fixture("lies_about_its_name.py");
    let mut child = Spawned::start(command.args(hostile.map(OsStr::from_bytes)));
    child.line();

    let columns = Columns { uid: true, arguments: true, markers: true };
    let entry = table::read_one(child.pid(), columns).unwrap().unwrap();
    let arguments: Vec<&[u8]> = entry.arguments.iter().skip(2).collect();
    assert!(arguments == hostile, "{} arguments", arguments.len());
    let seen = judge::look(child.raw()).unwrap();
    assert_eq!((entry.parent, entry.group, entry.session), (seen.parent, seen.group, seen.session));
    assert_eq!((entry.start, entry.uid), (seen.start, Some(seen.uid)));
    assert_eq!(entry.parent, nix::unistd::getpid().as_raw());
    assert!(entry.is_alive());
}
