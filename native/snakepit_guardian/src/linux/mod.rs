//! The shell around the decisions, for Linux: subreaper, `epoll`, `wait4`, and the descriptors.
//!
//! | module | does |
//! |---|---|
//! | `shell` | the event loop |
//! | `perform` | carries out what was decided |
//! | `kin` | reaps, reads the list of children, looks below them |
//! | `gate`, `streams`, `image` | what a child is given, and how it gets there |
//! | `midwife`, `child`, `heap` | forks, and what a child does before its program |
//! | `listener` | connections for piped stdio and lifelines |
//! | `frames`, `log`, `tail` | what is said to the BEAM |
//! | `setup`, `filter` | what the guardian makes of itself first, and what it may not |

mod child;
mod filter;
mod frames;
mod gate;
mod heap;
mod image;
mod kin;
mod listener;
mod log;
mod midwife;
mod perform;
mod setup;
mod shell;
mod streams;
mod tail;

use std::os::fd::AsFd;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use snakepit_core::self_test::Refusal;
use snakepit_core::wire::{Event, Request};

use frames::{Frames, Incoming};
use shell::Shell;

pub fn main() -> ExitCode {
    match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => {
            eprintln!("snakepit_guardian: {errno}. It is started by Snakepit, not by hand.");
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<(), Errno> {
    let (input, output, closes_ranges) = setup::port()?;
    let signals = setup::signals()?;
    let office = setup::take_office();
    let changes = setup::endure(closes_ranges);
    log::start();
    heap::keep();
    let mut frames = Frames::new(input, output);
    let (greeting, early) = match greeting(&mut frames)? {
        Some(Ok(greeting)) => greeting,
        Some(Err(reason)) => {
            refuse(frames, &Event::Refused { reason: reason.into() });
            return Ok(());
        }
        None => return Ok(()),
    };
    if let Err(Refusal { call, errno }) = office {
        refuse(frames, &Event::Unable { call: call.into(), errno: errno as i32 });
        return Ok(());
    }
    log::set_level(&greeting.log_level);
    match Shell::greet(frames, signals, changes, greeting) {
        Ok(shell) => {
            heap::release_startup_code();
            shell.run(early);
        }
        Err((frames, reason)) => refuse(frames, &Event::Refused { reason }),
    }
    Ok(())
}

type Greeting = (snakepit_core::wire::Hello, Vec<Request>);

/// The first frame, and those that came with it. `None` if the BEAM went away instead.
fn greeting(frames: &mut Frames) -> Result<Option<Result<Greeting, &'static str>>, Errno> {
    loop {
        let mut fds = [PollFd::new(frames.input.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let mut requests = match frames.receive() {
            Incoming::Requests(requests) => requests.into_iter(),
            Incoming::Closed => return Ok(None),
            Incoming::Garbage(reason) => return Ok(Some(Err(reason))),
        };
        match requests.next() {
            Some(Request::Hello(hello)) => return Ok(Some(Ok((hello, requests.collect())))),
            Some(_) => return Ok(Some(Err("the first frame is not a greeting"))),
            None => {}
        }
    }
}

fn refuse(mut frames: Frames, last_word: &Event) {
    frames.send(last_word);
    frames.flush();
}
