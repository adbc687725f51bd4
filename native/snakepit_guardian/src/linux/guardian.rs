//! The event loop: what the BEAM asks, what children say, what time brings.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signalfd::SignalFd;
use serde_bytes::ByteBuf;
use snakepit_core::run_id::RunId;
use snakepit_core::wire::{self, Event, Hello, Request};
use snakepit_core::{Error, Pid, Process};
use tracing::{info, warn};

use super::ahead::Ahead;
use super::children::Children;
use super::door::Door;
use super::ending::Ending;
use super::frames::{Frames, Incoming};
use super::setup::Changes;
use super::tail::Tail;
use super::tails::Tails;
use super::trees::Trees;
use super::{image, log};

/// What a descriptor is to the loop. The number of a child or visitor is in the lower bits.
const INPUT: u64 = 1 << 60;
const OUTPUT: u64 = 2 << 60;
const SIGNALS: u64 = 3 << 60;
const BEAM: u64 = 4 << 60;
pub(crate) const GATE: u64 = 5 << 60;
pub(crate) const TAILS: u64 = 6 << 60;
const DOOR: u64 = 7 << 60;
pub(crate) const VISITOR: u64 = 8 << 60;
const KIND: u64 = 15 << 60;

pub struct Guardian {
    pub(crate) epoll: Epoll,
    pub(crate) frames: Frames,
    signals: SignalFd,
    pub(crate) changes: Changes,
    beam: Option<Process>,
    pub(crate) hello: Hello,
    pub(crate) run_id: RunId,
    pub(crate) children: Children,
    pub(crate) tails: Tails,
    pub(crate) trees: Trees,
    pub(crate) door: Option<Door>,
    /// What children inherit.
    pub(crate) environment: Vec<Vec<u8>>,
    /// `/dev/null`, once it was needed.
    pub(crate) null: Option<Rc<OwnedFd>>,
    pub(crate) ending: Option<Ending>,
    pub(crate) ahead: Ahead,
    pub(crate) done: bool,
    output_watched: bool,
}

impl Guardian {
    /// Reads the BEAM's first frame and answers it. `Err` is what to tell the BEAM before ending.
    pub fn greet(
        frames: Frames,
        signals: SignalFd,
        changes: Changes,
        hello: Hello,
    ) -> Result<Self, (Frames, String)> {
        let run_id = RunId::from_bytes(hello.run_id.as_bytes());
        let beam = Pid::new(hello.beam_pid);
        let (Some(run_id), Some(beam)) = (run_id, beam) else {
            return Err((frames, "the greeting names no run or no BEAM".into()));
        };
        if hello.version != wire::VERSION {
            let reason = format!(
                "the BEAM speaks version {} and the guardian {}",
                hello.version,
                wire::VERSION
            );
            return Err((frames, reason));
        }
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
        let (epoll, tails) = match epoll.and_then(|epoll| Ok((epoll, Tails::new()?))) {
            Ok(both) => both,
            Err(errno) => return Err((frames, format!("no epoll: {errno}"))),
        };
        let directory = Path::new(OsStr::from_bytes(&hello.run_directory));
        let door = Door::open(beam.as_raw(), directory);
        let door = door.inspect_err(|errno| warn!("no door: {errno}")).ok();
        let children = Children::counted_from(hello.first_id);
        let ahead = Ahead::new(hello.ahead);
        let mut guardian = Self {
            epoll,
            frames,
            signals,
            changes,
            beam: None,
            hello,
            run_id,
            children,
            tails,
            trees: Trees::default(),
            door,
            environment: image::own_environment(),
            null: None,
            ending: None,
            ahead,
            done: false,
            output_watched: false,
        };
        if let Err(why) = guardian.watch_everything(beam) {
            return Err((guardian.frames, why));
        }
        let socket = guardian.door.as_ref().map(|door| door.path().to_vec()).unwrap_or_default();
        let pid = Pid::current().as_raw().into();
        let welcome = Event::Welcome {
            version: wire::VERSION,
            pid,
            identity: ByteBuf::new(),
            socket: ByteBuf::from(socket),
        };
        guardian.frames.send(&welcome);
        Ok(guardian)
    }

    /// One that is deaf to any of these would be worse than none.
    fn watch_everything(&mut self, beam: Pid) -> Result<(), String> {
        // The port's end of file says the same, unless some stray process holds the port open.
        self.beam = match Process::open(beam) {
            Ok(found) => found,
            Err(Error::Os { call, errno }) => return Err(format!("{call} of the BEAM: {errno}")),
            Err(_unclear) => None,
        };
        if self.beam.is_none() {
            // Gone already, so the port is about to say so.
            warn!("the BEAM has no process {beam}");
        }
        let sources = [
            (Some(self.frames.input.as_fd()), INPUT),
            (Some(self.signals.as_fd()), SIGNALS),
            (Some(self.tails.epoll.0.as_fd()), TAILS),
            (self.door.as_ref().map(|door| door.listener.as_fd()), DOOR),
            (self.beam.as_ref().map(AsFd::as_fd), BEAM),
        ];
        for (source, token) in sources {
            let watched = source.map_or(Ok(()), |source| add(&self.epoll, source, token));
            watched.map_err(|errno| format!("cannot watch everything: {errno}"))?;
        }
        Ok(())
    }

    /// Runs until there is nothing left to guard.
    pub fn run(mut self, early: Vec<Request>) {
        for request in early {
            self.obey(request);
        }
        let mut events = [EpollEvent::empty(); 128];
        while !self.done {
            self.pass_on_log();
            // Before forking, which takes longer than whoever waits for an answer should.
            self.flush();
            self.fork_ahead();
            self.flush();
            // Interrupted or not, there may be something to do.
            let count = self.epoll.wait(&mut events, self.timeout()).unwrap_or_default();
            // Children that have ended are reaped last: what they said before comes first.
            // Output that the guardian only keeps comes after everything that someone waits for.
            let (mut reap, mut pump) = (false, false);
            for event in &events[..count] {
                reap |= event.data() == SIGNALS;
                pump |= event.data() == TAILS;
                self.handle(event.data());
            }
            if reap {
                self.reap();
            }
            if pump {
                self.pump_tails();
            }
            let now = Instant::now();
            self.resume_tails(now);
            self.mind_time(now);
        }
        self.pass_on_log();
        self.frames.flush();
    }

    fn handle(&mut self, data: u64) {
        let number = data & !KIND;
        match data & KIND {
            INPUT => self.listen(),
            SIGNALS => self.drain_signals(),
            BEAM => self.mourn("pidfd"),
            GATE => self.hear_gate(number),
            DOOR => self.answer_door(),
            VISITOR => self.hear_visitor(number),
            // What is to be written is flushed before each wait, and what children print is read after it.
            _ => {}
        }
    }

    fn listen(&mut self) {
        match self.frames.receive() {
            Incoming::Requests(requests) => requests.into_iter().for_each(|one| self.obey(one)),
            Incoming::Closed => self.mourn("port"),
            Incoming::Garbage(reason) => {
                // Nothing after it can be trusted, so nobody is there to serve any more.
                warn!("{reason}");
                self.frames.send(&Event::Refused { reason: reason.into() });
                self.frames.flush();
                self.mourn("port");
            }
        }
    }

    fn obey(&mut self, request: Request) {
        match request {
            Request::Hello(_) => warn!("greeted twice"),
            Request::Fork { count } => self.ahead.want(count),
            Request::Spawn(spawn) => {
                self.ahead.put_off();
                self.assign(&spawn);
            }
            Request::Release { id } => self.release(id),
            Request::Stop { id, signal, grace_ms } => {
                self.stop(id, signal, Duration::from_millis(grace_ms));
            }
            Request::Signal { id, signal, scope } => self.signal(id, signal, scope),
            Request::StopAll { grace_ms, .. } => self.stop_all(Duration::from_millis(grace_ms)),
            Request::Tail { id } => {
                let mut child = self.children.get_mut(id);
                let tail = child.as_mut().and_then(|child| child.tail.as_mut());
                let tail = tail.map(Tail::take_stock).unwrap_or_default();
                self.frames.send(&Event::Tail { id, tail: ByteBuf::from(tail) });
            }
            Request::Info => self.frames.send(&Event::Info {
                children: self.children.counts().out as u64,
                ahead: self.children.counts().ready as u64,
                adopted: self.trees.adopted() as u64,
            }),
        }
    }

    fn drain_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if signal.ssi_signo == libc::SIGTERM as u32 {
                // A service manager addresses everyone. While the BEAM lives it is the BEAM's to
                // decide; afterwards the guardian is at it already.
                info!("ignored SIGTERM from {}", signal.ssi_pid);
            }
        }
    }

    fn pass_on_log(&mut self) {
        for (level, message) in log::take() {
            if self.ending.as_ref().is_some_and(Ending::is_final) {
                self.write_log(level, &message);
            } else {
                let level = level.as_str().to_ascii_lowercase();
                self.frames.send(&Event::Log { level, message });
            }
        }
    }

    pub(crate) fn stop_listening_to_beam(&mut self) {
        if let Some(beam) = self.beam.take() {
            let _ = self.epoll.delete(beam.as_fd());
        }
    }

    fn flush(&mut self) {
        let waiting = self.frames.flush();
        if waiting != self.output_watched {
            let output = self.frames.output.as_fd();
            let event = EpollEvent::new(EpollFlags::EPOLLOUT, OUTPUT);
            let _ = if waiting { self.epoll.add(output, event) } else { self.epoll.delete(output) };
            self.output_watched = waiting;
        }
    }

    fn timeout(&self) -> EpollTimeout {
        if self.ahead.is_wanted() {
            return EpollTimeout::ZERO;
        }
        let next = [
            self.trees.next_look(),
            self.next_deadline(),
            self.ahead.next_refill(),
            self.tails.rest_until(),
        ]
        .into_iter()
        .flatten()
        .min();
        let Some(next) = next else { return EpollTimeout::NONE };
        let left = next.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
        EpollTimeout::try_from(i32::try_from(left).unwrap_or(i32::MAX))
            .unwrap_or(EpollTimeout::ZERO)
    }
}

/// From here on the loop hears when there is something to read; `data` says for whom.
pub(crate) fn add(epoll: &Epoll, fd: BorrowedFd, data: u64) -> Result<(), Errno> {
    epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, data))
}
