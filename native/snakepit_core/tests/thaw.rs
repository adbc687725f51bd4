//! A tree that was frozen and could not be killed. In a file of its own, and one test: the limit of
//! descriptors is that of the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod support;

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use snakepit_core::table::{Columns, Entry};
use snakepit_core::tree::{self, Roots};
use support::spawn::Spawned;
use support::{eventually, judge, within};

const PAUSE: Duration = Duration::from_millis(100);

#[test]
fn a_stopped_process_is_continued_if_killing_fails() {
    let victim = Spawned::polite();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let restorer = RefCell::new(None);
    // No descriptor from the moment on at which it has been stopped, for a while.
    let select = |_: &Entry| {
        let mut restorer = restorer.borrow_mut();
        if restorer.is_none() && judge::state(victim.raw()) == Some('T') {
            setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
            *restorer = Some(thread::spawn(move || {
                thread::sleep(PAUSE);
                setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
            }));
        }
        false
    };
    let roots = Roots {
        identities: vec![victim.identity()],
        select: &select,
        columns: Columns::default(),
        freeze: true,
    };
    let failed = tree::kill(&roots, Instant::now() + Duration::from_secs(5));
    restorer.take().expect("it was stopped").join().unwrap();
    assert!(failed.is_err(), "{failed:?}");
    eventually("it runs again", || victim.is_untouched());
    assert!(!within(PAUSE, || !victim.lives()), "and goes on to");
}
