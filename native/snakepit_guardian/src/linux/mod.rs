//! The shell around the decisions, for Linux: subreaper, `epoll`, `wait4`, and the descriptors.
//!
//! | module | does |
//! |---|---|
//! | `shell` | the event loop |
//! | `perform` | carries out what was decided |
//! | `reap`, `scan` | reaps children, lists them, and finds what is below them |
//! | `gate` | what goes through a gate, in both directions |
//! | `streams`, `image`, `resources` | what a child gets, and what the guardian holds for it |
//! | `fork_batch`, `child`, `heap` | forks, and what a child does before its program |
//! | `listener` | connections for piped stdio and lifelines |
//! | `terminals` | sets the terminals of people to what they were |
//! | `frames`, `log`, `tail` | what goes to the BEAM: frames, log lines, the end of the output |
//! | `setup`, `filter` | how the guardian sets itself up, and which calls a filter lets it make |

mod child;
mod filter;
mod fork_batch;
mod frames;
mod gate;
mod heap;
mod image;
mod listener;
mod log;
mod perform;
mod reap;
mod resources;
mod scan;
mod setup;
mod shell;
mod streams;
mod tail;
mod terminals;

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
            let (number, name) = (errno as i32, errno.desc());
            eprintln!(
                "snakepit_guardian: descriptors 3 and 4 are not the BEAM's port, or signals cannot be set up: \
                 {name} (errno {number}). The Snakepit library starts this program so; by hand it has commands: snakepit_guardian --help"
            );
            ExitCode::FAILURE
        }
    }
}

fn start() -> Result<(), Errno> {
    let (input, output, closes_ranges) = setup::port()?;
    let signals = setup::signals()?;
    let subreaper = setup::become_subreaper();
    let settings = setup::raise_limits(closes_ranges);
    log::start();
    heap::exclude_from_fork();
    let mut frames = Frames::new(input, output);
    let (greeting, early) = match greeting(&mut frames)? {
        Some(Ok(greeting)) => greeting,
        Some(Err(reason)) => {
            refuse(frames, &Event::Refused { reason: reason.into() });
            return Ok(());
        }
        None => return Ok(()),
    };
    if let Err(Refusal { call, errno }) = subreaper {
        refuse(frames, &Event::Unable { call: call.into(), errno: errno as i32 });
        return Ok(());
    }
    log::set_level(&greeting.log_level);
    match Shell::greet(frames, signals, settings, greeting) {
        Ok(shell) => {
            heap::release_startup_code();
            shell.run(early);
        }
        Err((frames, reason)) => refuse(frames, &Event::Refused { reason }),
    }
    Ok(())
}

type Greeting = (snakepit_core::wire::Hello, Vec<Request>);

/// Returns the first frame, and those that came with it; `None` if the BEAM went away instead.
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

fn refuse(mut frames: Frames, reason: &Event) {
    frames.send(reason);
    frames.flush();
}
