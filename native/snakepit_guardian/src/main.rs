//! The guardian: one small process beside the BEAM that starts, watches and ends all others.
//!
//! ```text
//!  beam.smp ──── port: frames of MessagePack ────▶ snakepit_guardian ── fork ──▶ child at its gate
//!     │                                             one thread, one loop            │ release
//!     └── connections through the door ───────────▶ handed on to the child          ▼
//!                                                                                 program
//! ```
//!
//! The life of a child:
//!
//! 1. **Ready**. It is forked ahead of need, becomes leader of a session, marks itself, arranges to
//!    die with the guardian, and waits at its gate, a socket pair. The BEAM learns pid and identity.
//! 2. **Assigned**. The BEAM says what it is to run; streams and image are packed.
//! 3. **Released**. The BEAM has recorded the pid. What was packed goes through the gate; the child
//!    becomes what it was asked to be and executes the program. Its end of the gate closes with that,
//!    or carries the step that failed and why.
//! 4. **Running**, until it is reaped. Its exit is reported at once, whoever still holds its output.
//! 5. **Lingering**, until nothing that descends from it is left.
//!
//! If the BEAM dies, its end of the port closes and its pidfd fires: everything is asked to end, then
//! killed, and when the kernel says that the guardian has no child left, the obituary is written and
//! the guardian ends. If the guardian dies, gates close and the kernel kills its children.

#[cfg(target_os = "linux")]
mod assign;
#[cfg(target_os = "linux")]
mod child;
#[cfg(target_os = "linux")]
mod children;
#[cfg(target_os = "linux")]
mod door;
#[cfg(target_os = "linux")]
mod ending;
#[cfg(target_os = "linux")]
mod frames;
#[cfg(target_os = "linux")]
mod guardian;
#[cfg(target_os = "linux")]
mod image;
#[cfg(target_os = "linux")]
mod log;
#[cfg(target_os = "linux")]
mod setup;
#[cfg(target_os = "linux")]
mod tail;
#[cfg(target_os = "linux")]
mod trees;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!("snakepit_guardian: this system has no guardian yet");
    std::process::ExitCode::FAILURE
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::AsFd;
    use std::process::ExitCode;

    use nix::errno::Errno;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use snakepit_core::wire::{Event, Request};

    use crate::frames::{Frames, Incoming};
    use crate::guardian::Guardian;
    use crate::{log, setup};

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
        let (input, output) = setup::port()?;
        let signals = setup::signals()?;
        setup::subreaper()?;
        let changes = setup::endure();
        log::start();
        let mut frames = Frames::new(input, output);
        let (greeting, early) = match greeting(&mut frames)? {
            Some(Ok(greeting)) => greeting,
            Some(Err(reason)) => {
                refuse(frames, reason.into());
                return Ok(());
            }
            None => return Ok(()),
        };
        match Guardian::greet(frames, signals, changes, greeting) {
            Ok(guardian) => guardian.run(early),
            Err((frames, reason)) => refuse(frames, reason),
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

    fn refuse(mut frames: Frames, reason: String) {
        frames.send(&Event::Refused { reason });
        frames.flush();
    }
}
