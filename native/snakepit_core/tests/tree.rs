//! A process and everything that descends from it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::time::{Duration, Instant};

use nix::errno::Errno;
use snakepit_core::Identity;
use snakepit_core::table::Columns;
use snakepit_core::tree::{self, KillReport, Roots};
use support::fork::Forked;
use support::pidfd::{Stray, catch_all};
use support::refusal::refusing;
use support::spawn::Spawned;
use support::{eventually, fixture, judge};

/// The top of a family and its five descendants.
fn family() -> (Spawned, Vec<Stray>) {
    let mut top = Spawned::start(&mut fixture("scatters_children.py"));
    let descendants = catch_all(&top.line());
    assert_eq!(descendants.len(), 5);
    (top, descendants)
}

fn roots(identities: Vec<Identity>, freeze: bool) -> Roots<'static> {
    Roots { identities, select: &|_| false, columns: Columns::default(), freeze }
}

fn kill(identities: Vec<Identity>, freeze: bool) -> KillReport {
    tree::kill(&roots(identities, freeze), Instant::now() + Duration::from_secs(10)).unwrap()
}

#[test]
fn descendants_die_whatever_group_session_or_environment_they_have() {
    for freeze in [true, false] {
        let (top, descendants) = family();
        let (other_top, other_descendants) = family();
        let report = kill(vec![top.identity()], freeze);
        assert_eq!((report.killed, report.survivors.len()), (6, 0));
        assert!(!top.lives());
        assert!(!descendants.iter().any(Stray::lives));
        assert!(other_top.is_untouched());
        assert!(other_descendants.iter().all(Stray::is_untouched));
    }
}

#[test]
fn a_tree_lists_children_before_their_parents() {
    let (top, descendants) = family();
    let list = roots(vec![top.identity()], false).list().unwrap();
    let listed: Vec<i32> = list.iter().map(|identity| identity.pid.as_raw()).collect();
    assert_eq!(listed.len(), 6);
    let place = |pid: i32| listed.iter().position(|listed| *listed == pid).expect("it is listed");
    for one in &descendants {
        assert!(place(one.pid) < place(judge::look(one.pid).unwrap().parent));
    }
    assert!(top.is_untouched() && descendants.iter().all(Stray::is_untouched));
}

#[test]
fn a_tree_whose_root_is_gone_has_no_members() {
    let (mut top, descendants) = family();
    let identity = top.identity();
    top.end();
    assert_eq!(kill(vec![identity], true).killed, 0);
    assert!(descendants.iter().all(Stray::is_untouched), "nothing leads to them");
}

#[test]
fn several_roots_and_the_selected_ones_are_one_tree() {
    let (first, first_descendants) = family();
    let (second, second_descendants) = family();
    let bystander = Spawned::polite();
    let selected = second.pid();
    let roots = Roots {
        identities: vec![first.identity(), first.identity()],
        select: &|entry| entry.pid == selected,
        columns: Columns::default(),
        freeze: true,
    };
    let report = tree::kill(&roots, Instant::now() + Duration::from_secs(10)).unwrap();
    assert_eq!((report.killed, report.survivors.len()), (12, 0));
    assert!(!first_descendants.iter().chain(&second_descendants).any(Stray::lives));
    assert!(bystander.is_untouched());
}

#[test]
fn one_that_had_the_pid_before_does_not_hide_who_has_it_now() {
    let (noted, selected) = (Spawned::polite(), Spawned::polite());
    let before = |child: &Spawned| {
        let own = support::identify(std::process::id().try_into().unwrap());
        Identity { pid: child.pid(), start: 1, ..own }
    };
    // Whichever of the two with the same pid comes first.
    for identities in [
        vec![before(&noted), noted.identity(), before(&selected)],
        vec![noted.identity(), before(&noted), before(&selected)],
    ] {
        let pid = selected.pid();
        let select = move |entry: &snakepit_core::table::Entry| entry.pid == pid;
        let columns = Columns::default();
        let list = Roots { identities, select: &select, columns, freeze: false }.list().unwrap();
        let mut pids: Vec<i32> = list.iter().map(|identity| identity.pid.as_raw()).collect();
        pids.sort_unstable();
        let mut expected = [noted.raw(), selected.raw()];
        expected.sort_unstable();
        assert_eq!(pids, expected);
    }
}

#[test]
fn this_process_and_its_ancestors_are_no_part_of_a_tree() {
    let (top, descendants) = family();
    let own = std::process::id().try_into().unwrap();
    let own_session = judge::look(own).unwrap().session;
    let list = roots(vec![support::identify(own)], false).list().unwrap();
    let listed = |pid: i32| list.iter().any(|identity| identity.pid.as_raw() == pid);
    assert!(!listed(own) && !listed(own_session));
    assert!(listed(top.raw()) && descendants.iter().all(|one| listed(one.pid)));
}

#[test]
fn a_member_that_may_not_be_signalled_is_named_and_the_others_are_killed() {
    for (freeze, errno) in [(true, Errno::EACCES), (false, Errno::EPERM), (true, Errno::EAGAIN)] {
        let (top, descendants) = family();
        let guarded = &descendants[2];
        let work = || kill(vec![top.identity()], freeze);
        let Some(report) = refusing(&[guarded.pid], errno, work) else { return };
        let named: Vec<i32> = report.survivors.iter().map(|one| one.pid.as_raw()).collect();
        assert_eq!((report.killed, named), (5, vec![guarded.pid]), "{errno}");
        assert!(guarded.is_untouched() && !top.lives(), "{errno}");
        assert_eq!(descendants.iter().filter(|one| one.lives()).count(), 1, "{errno}");
    }
}

#[test]
fn what_was_forked_a_moment_ago_is_listed_for_good() {
    // Enough for some to be in their first tick.
    for _ in 0..20 {
        let children: Vec<_> = (0..40).map(|_| Forked::new()).collect();
        let own = support::identify(std::process::id().try_into().unwrap());
        let list = roots(vec![own], false).list().unwrap();
        for child in &children {
            let listed = list.iter().find(|one| one.pid.as_raw() == child.pid).unwrap();
            assert!(listed.is_exact(), "{listed:?}");
        }
    }
}

#[test]
fn a_member_whose_main_thread_has_ended_does_not_hold_up_the_others() {
    let mut top = Spawned::start(&mut fixture("main_thread_exits.py"));
    top.line();
    eventually("the main thread has ended", || judge::state(top.raw()) == Some('Z'));
    let begun = Instant::now();
    let report = kill(vec![top.identity()], true);
    let took = begun.elapsed();
    assert_eq!((report.killed, report.survivors.len()), (1, 0));
    assert!(!top.lives());
    // One that is never seen at rest takes the whole second that there is for it, pass after pass. On a busy
    // machine it may need some passes to get there, or few that take long.
    let passes = report.passes;
    assert!(passes <= 6 || took < Duration::from_secs(1), "{passes} passes, {took:?}");
}
