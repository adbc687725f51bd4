//! The guardian's decisions on a model of a kernel: processes that fork, daemonise, ignore, hide, refuse,
//! hang, and die at any step; pids that come back soon; lists that grow while they are read.
//!
//! Two promises are checked at every step: no process is signalled that the guardian did not start, and
//! no process is reported as gone, or left behind, that is still there.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod model;

use std::time::Duration;

use model::kernel::{Kernel, Nature, Process, State};
use model::shell::{GRACE, Shell};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use snakepit_core::Signal;
use snakepit_core::wire::{KillMode, Request, Scope};
use snakepit_guardian::Event;

/// How many steps all cases together have, on average, unless the environment says otherwise.
const STEPS: u32 = 1_000_000;
const MAX_GRACE: u32 = 200;

#[derive(Clone, Copy, Debug)]
enum Step {
    Turn,
    Wait(u8),
    /// So much time that the guardian lists its children.
    List,
    Start(Kind, Mode),
    /// A process of the guardian's does something.
    Act(u8, Act),
    Bystander(u8),
    Stop(u8, u8),
    Kill(u8),
    Extend(u8, u8),
    Signal(u8),
    Renew(u8, u8),
    Suspend(u8),
    StopAll(bool),
    ListFails(bool),
    BeamGone,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Polite,
    Stubborn,
    Bomb,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Tree,
    Group,
    Leader,
    Mixed,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Fork,
    Daemonise,
    Setsid,
    Scrub,
    Exit,
    Ignore,
    Hide,
    Refuse,
    Stick,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    let kind =
        prop_oneof![5 => Just(Kind::Polite), 2 => Just(Kind::Stubborn), 1 => Just(Kind::Bomb)];
    let mode =
        prop_oneof![Just(Mode::Tree), Just(Mode::Group), Just(Mode::Leader), Just(Mode::Mixed)];
    let act = prop_oneof![
        6 => Just(Act::Fork),
        3 => Just(Act::Daemonise),
        3 => Just(Act::Setsid),
        1 => Just(Act::Scrub),
        4 => Just(Act::Exit),
        1 => Just(Act::Ignore),
        1 => Just(Act::Hide),
        1 => Just(Act::Refuse),
        1 => Just(Act::Stick),
        1 => Just(Act::Release),
    ];
    prop_oneof![
        12 => Just(Step::Turn),
        4 => any::<u8>().prop_map(Step::Wait),
        6 => (kind, mode).prop_map(|(kind, mode)| Step::Start(kind, mode)),
        20 => (any::<u8>(), act).prop_map(|(pick, act)| Step::Act(pick, act)),
        4 => any::<u8>().prop_map(Step::Bystander),
        3 => any::<(u8, u8)>().prop_map(|(pick, grace)| Step::Stop(pick, grace)),
        1 => any::<u8>().prop_map(Step::Kill),
        1 => any::<(u8, u8)>().prop_map(|(pick, grace)| Step::Extend(pick, grace)),
        1 => any::<u8>().prop_map(Step::Signal),
        4 => any::<(u8, u8)>().prop_map(|(lease, ms)| Step::Renew(lease, ms)),
        1 => any::<u8>().prop_map(Step::Suspend),
        1 => any::<bool>().prop_map(Step::StopAll),
        1 => any::<bool>().prop_map(Step::ListFails),
    ]
}

/// A number that the environment sets to play something else.
fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn pick<T: Copy>(from: &[T], pick: u8) -> Option<T> {
    from.get(usize::from(pick) % from.len().max(1)).copied()
}

fn take(shell: &mut Shell, step: Step) {
    let out: Vec<u64> = shell.out.keys().copied().collect();
    match step {
        Step::Turn => shell.turn(),
        Step::Wait(ms) => shell.kernel.now += Duration::from_millis(ms.into()),
        Step::List => {
            shell.kernel.now += Duration::from_secs(1);
            shell.turn();
        }
        Step::Start(kind, mode) => {
            let nature = Nature {
                ignores_term: matches!(kind, Kind::Stubborn | Kind::Bomb),
                bomb: matches!(kind, Kind::Bomb),
                reaps: shell.kernel.random(2) == 0,
                ..Nature::default()
            };
            let mode = match mode {
                Mode::Tree => KillMode::Tree,
                Mode::Group => KillMode::Group,
                Mode::Leader => KillMode::Leader,
                Mode::Mixed => KillMode::Mixed,
            };
            shell.start(mode, nature);
        }
        Step::Act(which, act) => {
            // Those at the gate do nothing.
            let running: Vec<i32> = shell
                .kernel
                .living()
                .filter(|(_, one)| one.state == State::Alive && !one.nature.stuck)
                .filter(|(pid, _)| may_run(shell, *pid))
                .map(|(pid, _)| pid)
                .collect();
            if let Some(pid) = pick(&running, which) {
                do_act(&mut shell.kernel, pid, act);
            }
        }
        Step::Bystander(which) => bystander(&mut shell.kernel, which),
        Step::Stop(which, grace) => {
            if let Some(id) = pick(&out, which) {
                let (signal, grace_ms) = (Signal::TERM.as_raw(), u64::from(grace));
                shell.request(Request::Stop { id, signal, grace_ms });
            }
        }
        Step::Kill(which) => {
            if let Some(id) = pick(&out, which) {
                let signal = Signal::KILL.as_raw();
                shell.request(Request::Stop { id, signal, grace_ms: 0 });
            }
        }
        Step::Extend(which, grace) => {
            if let Some(id) = pick(&out, which) {
                shell.request(Request::Extend { id, grace_ms: grace.into() });
            }
        }
        Step::Signal(which) => {
            if let Some(id) = pick(&out, which) {
                let signal = Signal::STOP.as_raw();
                shell.request(Request::Signal { id, signal, scope: Scope::Tree });
            }
        }
        Step::Renew(lease, ms) => shell.renew(u64::from(lease % 4), ms.into()),
        Step::Suspend(ms) => shell.suspended += Duration::from_millis(ms.into()),
        Step::StopAll(strict) => {
            let ids = out.into_iter().filter(|id| !shell.gone.contains(id)).collect::<Vec<_>>();
            shell.scope.get_or_insert_default().extend(ids);
            shell.request(Request::StopAll { grace_ms: 100, strict });
        }
        Step::ListFails(fails) => shell.list_fails = fails,
        Step::BeamGone => shell.dispatch(Event::BeamGone { by: "port", at_ms: 0 }),
    }
}

/// Whether a process is of a child that has been released.
fn may_run(shell: &Shell, pid: i32) -> bool {
    let process = &shell.kernel.processes[&pid];
    let Some(id) = process.tree else { return false };
    // A leader has its session's number; any other process descends from one that ran.
    let leader = process.session == pid && process.parent == model::kernel::GUARDIAN;
    !leader || (shell.out.contains_key(&id) && shell.machine.released(pid).is_none())
}

fn do_act(kernel: &mut Kernel, pid: i32, act: Act) {
    let change = |kernel: &mut Kernel, change: fn(&mut Process)| {
        if let Some(process) = kernel.processes.get_mut(&pid) {
            change(process);
        }
    };
    match act {
        Act::Fork => drop(kernel.fork(pid)),
        Act::Daemonise => {
            if let Some(middle) = kernel.fork(pid) {
                kernel.setsid(middle);
                kernel.fork(middle);
                kernel.exit(middle, 0);
            }
        }
        Act::Setsid => kernel.setsid(pid),
        Act::Scrub => change(kernel, |one| one.marked = None),
        Act::Exit => kernel.exit(pid, 0),
        Act::Ignore => change(kernel, |one| one.nature.ignores_term = true),
        // A bomb that cannot be seen is beyond any guardian without a container around it.
        Act::Hide => change(kernel, |one| one.nature.hidden = !one.nature.bomb),
        Act::Refuse => change(kernel, |one| one.nature.refuses = Some(libc::EACCES)),
        Act::Stick => change(kernel, |one| one.nature.stuck = true),
        Act::Release => release(kernel),
    }
}

/// Those that hang or refuse are as others again.
fn release(kernel: &mut Kernel) {
    kernel.let_go_at = kernel.now;
    let pids: Vec<i32> = kernel.processes.keys().copied().collect();
    for pid in pids {
        let Some(process) = kernel.processes.get_mut(&pid) else { continue };
        process.nature.refuses = None;
        process.nature.stuck = false;
        if std::mem::take(&mut process.nature.kill_pending) {
            kernel.exit(pid, Signal::KILL.as_raw());
        }
    }
}

/// Another program's process, which takes a pid that may have been ours, or frees one.
fn bystander(kernel: &mut Kernel, which: u8) {
    let others: Vec<i32> = kernel
        .processes
        .iter()
        .filter(|(_, one)| one.tree.is_none())
        .map(|(pid, _)| *pid)
        .collect();
    if which % 2 == 0 || others.is_empty() {
        let process = Process {
            serial: 0,
            parent: 1,
            group: 1,
            session: 1,
            born: Duration::ZERO,
            lineage: None,
            marked: None,
            tree: None,
            state: State::Alive,
            nature: Nature::default(),
            asked: 0,
            moved: false,
        };
        if let Some(pid) = kernel.spawn(process) {
            kernel.lead(pid);
        }
    } else if let Some(pid) = pick(&others, which) {
        kernel.exit(pid, 0);
    }
}

fn check_asked_once(shell: &Shell) {
    for (pid, process) in &shell.kernel.processes {
        assert!(process.asked <= 1 || process.moved, "{pid} was asked twice: {process:?}");
    }
}

/// Turns the loop for half a minute at the most.
fn run_until(shell: &mut Shell, condition: impl Fn(&Shell) -> bool) -> bool {
    for turn in 0..500 {
        shell.turn();
        check_asked_once(shell);
        if condition(shell) {
            return true;
        }
        shell.kernel.now += Duration::from_millis(if turn < 250 { 10 } else { 100 });
    }
    false
}

fn run(seed: u64, forgetful: bool, steps: &[Step]) {
    let mut shell = Shell::new(seed);
    shell.forgetful = forgetful;
    for step in steps {
        take(&mut shell, *step);
        check_asked_once(&shell);
        if shell.concluded.is_some() {
            return;
        }
    }
    // Every request is answered, and in the end the guardian leaves nothing that can be ended.
    shell.list_fails = false;
    if shell.scope.is_some() {
        let answered = run_until(&mut shell, |shell| shell.scope.is_none());
        assert!(answered, "StopAll is not answered: {:?}", shell.machine);
    }
    take(&mut shell, Step::BeamGone);
    run_until(&mut shell, |shell| shell.concluded.is_some());
    let survivors = shell.concluded.as_ref().expect("the guardian comes to an end");
    for pid in survivors {
        let nature =
            shell.kernel.processes.get(&i32::try_from(*pid).unwrap()).map(|one| one.nature);
        let nature = nature.unwrap_or_default();
        let stays = nature.stuck || nature.refuses.is_some();
        assert!(stays, "{pid} could have been ended: {nature:?}");
    }
}

/// What an orderly program does before it is asked to end.
fn orderly_step() -> impl Strategy<Value = Step> {
    let act = prop_oneof![
        4 => Just(Act::Fork),
        2 => Just(Act::Daemonise),
        2 => Just(Act::Setsid),
        2 => Just(Act::Exit),
    ];
    prop_oneof![
        2 => Just(Step::Turn),
        // Far less than the grace period, which the guardian sleeps through otherwise.
        1 => (0..8_u8).prop_map(Step::Wait),
        1 => Just(Step::List),
        3 => (any::<u8>(), act).prop_map(|(pick, act)| Step::Act(pick, act)),
    ]
}

/// What a process that is being asked may still do: leave its group, or end.
fn leaving_step() -> impl Strategy<Value = Step> {
    let act = prop_oneof![Just(Act::Setsid), Just(Act::Exit)];
    (any::<u8>(), act).prop_map(|(pick, act)| Step::Act(pick, act))
}

/// A tree that ends when it is asked to, and has its grace period: no process of it has to be killed.
fn run_orderly(seed: u64, steps: &[Step], later: &[Step]) {
    let mut shell = Shell::new(seed);
    run_until(&mut shell, |shell| !shell.ready.is_empty());
    shell.start(KillMode::Tree, Nature { reaps: seed % 2 == 0, ..Nature::default() });
    let Some((id, leader)) = shell.out.iter().next().map(|(id, pid)| (*id, *pid)) else { return };
    run_until(&mut shell, |shell| shell.out.values().all(|pid| may_run(shell, *pid)));
    for step in steps {
        // The end of the leader is the end of all: a process that is started after that is not asked, and the
        // grace period has begun.
        let ending =
            shell.kernel.processes.get(&leader).is_none_or(|one| one.state != State::Alive);
        if !(ending && matches!(step, Step::List | Step::Act(_, Act::Fork | Act::Daemonise))) {
            take(&mut shell, *step);
        }
    }
    if shell.gone.contains(&id) {
        return;
    }
    let grace_ms = GRACE.as_millis().try_into().unwrap();
    shell.request(Request::Stop { id, signal: Signal::TERM.as_raw(), grace_ms });
    // What is under way when it is asked goes on for a moment.
    for step in later {
        take(&mut shell, *step);
    }
    run_until(&mut shell, |shell| shell.gone.contains(&id));
    // Others have run nothing: they waited at the gate, and were too many.
    let killed: Vec<_> =
        shell.kernel.killed_unasked.iter().filter(|(_, tree)| *tree == Some(id)).collect();
    assert!(killed.is_empty(), "{killed:?} were not asked: {:?}", shell.machine);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2 * setting("SNAKEPIT_SIMULATION_STEPS", STEPS) / MAX_GRACE,
        // The same each time, unless the environment asks for others.
        rng_seed: RngSeed::Fixed(setting("SNAKEPIT_SIMULATION_SEED", 1)),
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_is_left_and_no_other_process_is_signalled(
        seed in any::<u64>(),
        forgetful in any::<bool>(),
        steps in vec(step(), 1..MAX_GRACE as usize),
    ) {
        run(seed, forgetful, &steps);
    }
    #[test]
    fn a_process_that_would_end_when_asked_is_asked(
        seed in any::<u64>(),
        steps in vec(orderly_step(), 1..20),
        later in vec(leaving_step(), 0..3),
    ) {
        run_orderly(seed, &steps, &later);
    }
}
