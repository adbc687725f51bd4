//! Process groups.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::unistd::{getpgrp, getsid};
use snakepit_core::group::{self, Group};
use snakepit_core::process::Delivery;
use snakepit_core::stop::Outcome;
use snakepit_core::{Error, Signal};
use support::pidfd::Stray;
use support::spawn::Spawned;
use support::{NOBODY, as_user, eventually, fixture, is_root, judge, pid, plan};

const GRACE: Duration = Duration::from_secs(1);

/// The leader and three more.
fn group_of_four() -> Vec<Spawned> {
    let mut members = vec![Spawned::in_group(0)];
    let leader = members[0].raw();
    members.extend((0..3).map(|_| Spawned::in_group(leader)));
    assert!(members.iter().all(|one| judge::look(one.raw()).unwrap().group == leader));
    members
}

fn stubborn_in_group(group: i32) -> Spawned {
    let mut stubborn = Spawned::start(fixture("ignores_sigterm.py").process_group(group));
    stubborn.line();
    stubborn
}

fn numbered(leader: &Spawned) -> Group {
    Group::Number(leader.pid())
}

#[test]
fn a_signal_reaches_every_member_and_no_other_process() {
    let members = group_of_four();
    let bystanders = [Spawned::polite(), Spawned::in_group(0)];
    assert_eq!(group::signal(&numbered(&members[0]), Signal::TERM).unwrap(), Delivery::Sent);
    eventually("all have ended", || !members.iter().any(Spawned::lives));
    assert!(bystanders.iter().all(Spawned::is_untouched));
}

#[test]
fn a_group_whose_leader_is_gone_is_reached_all_the_same() {
    let mut members = group_of_four();
    let bystander = Spawned::in_group(0);
    let mut leader = members.remove(0);
    leader.end();
    assert!(judge::look(leader.raw()).is_none());
    assert_eq!(group::signal(&numbered(&leader), Signal::TERM).unwrap(), Delivery::Sent);
    eventually("all have ended", || !members.iter().any(Spawned::lives));
    assert_eq!(group::stop(&numbered(&leader), &plan(GRACE)).unwrap(), Outcome::Gone);
    assert!(bystander.is_untouched());
}

#[test]
fn a_leader_that_has_moved_to_another_group_is_left_alone() {
    let mut leader = Spawned::start(&mut fixture("leaves_its_group.py"));
    let member = Stray::catch(leader.line().parse().unwrap());
    assert_eq!(judge::look(member.pid).unwrap().group, leader.raw());
    assert_ne!(judge::look(leader.raw()).unwrap().group, leader.raw());
    assert_eq!(group::stop(&numbered(&leader), &plan(GRACE)).unwrap(), Outcome::Stopped);
    assert!(!member.lives());
    assert!(leader.is_untouched());
}

/// With a signal that does no harm, should it get through.
#[test]
fn the_groups_of_this_process_and_its_session_are_refused() {
    let session = getsid(None).unwrap().as_raw();
    for own in [getpgrp().as_raw(), session, 1].into_iter().filter(|own| *own > 0) {
        let result = group::signal(&Group::Number(pid(own)), Signal::CONT);
        assert!(matches!(result, Err(Error::Protected(_))), "{own}: {result:?}");
    }
}

#[test]
fn stopping_a_group_ends_the_suspended_and_kills_the_stubborn() {
    let leader = Spawned::in_group(0);
    let member = || Spawned::in_group(leader.raw());
    let stubborn = stubborn_in_group(leader.raw());
    let members = [member(), member().suspended(), stubborn, leader];
    let bystanders = [Spawned::polite(), Spawned::in_group(0).suspended()];
    assert_eq!(group::stop(&numbered(&members[3]), &plan(GRACE)).unwrap(), Outcome::Killed);
    assert!(!members.iter().any(Spawned::lives));
    assert!(bystanders[0].is_untouched());
    assert_eq!(judge::state(bystanders[1].raw()), Some('T'));
}

#[test]
fn a_group_that_ends_when_asked_is_not_killed() {
    let mut members = group_of_four();
    let last = members.pop().unwrap().suspended();
    members.push(last);
    let group = numbered(&members[0]);
    assert_eq!(group::stop(&group, &plan(Duration::from_secs(10))).unwrap(), Outcome::Stopped);
    assert!(!members.iter().any(Spawned::lives));
}

#[test]
fn the_group_of_a_leader_that_was_known_is_reached_or_left_alone() {
    let mut members = group_of_four();
    let group = Group::LedBy(members[0].identity());
    assert_eq!(group::signal(&group, Signal::CONT).unwrap(), Delivery::Sent);
    members[0].end();
    let ambiguous = |result| matches!(result, Err(Error::Ambiguous(_)));
    assert!(ambiguous(group::signal(&group, Signal::TERM).map(drop)));
    assert!(ambiguous(group::stop(&group, &plan(GRACE)).map(drop)));
    assert!(members[1..].iter().all(Spawned::is_untouched));
    members.iter_mut().for_each(Spawned::end);
    assert_eq!(group::signal(&group, Signal::TERM).unwrap(), Delivery::Gone);
    assert_eq!(group::stop(&group, &plan(GRACE)).unwrap(), Outcome::Gone);
}

#[test]
fn a_known_leader_may_be_the_first_of_its_group_to_go() {
    let leader = Spawned::in_group(0);
    let stubborn = stubborn_in_group(leader.raw());
    let group = Group::LedBy(leader.identity());
    assert_eq!(group::stop(&group, &plan(GRACE)).unwrap(), Outcome::Killed);
    assert!(!leader.lives() && !stubborn.lives());
}

#[test]
fn a_group_that_may_not_be_signalled_says_so() {
    if !is_root("a thread of another user") {
        return;
    }
    let mut members = group_of_four();
    let group = numbered(&members[0]);
    let refused = || {
        as_user(NOBODY, || {
            let result = group::signal(&group, Signal::TERM);
            assert!(matches!(result, Err(Error::Signal { errno: Errno::EPERM, .. })), "{result:?}");
            assert_eq!(group::stop(&group, &plan(GRACE)).unwrap(), Outcome::NotPermitted);
        });
    };
    refused();
    assert!(members.iter().all(Spawned::is_untouched));
    members[0].end();
    refused();
    assert!(members[1..].iter().all(Spawned::is_untouched));

    let mut own = Command::new("cat");
    let own = Spawned::start(own.uid(NOBODY).process_group(members[0].raw()));
    let sent = as_user(NOBODY, || group::signal(&group, Signal::TERM).unwrap());
    assert_eq!(sent, Delivery::Sent);
    eventually("the one that may be signalled has ended", || !own.lives());
    assert!(members[1..].iter().all(Spawned::is_untouched));
}
