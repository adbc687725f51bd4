//! The event loop: requests of the BEAM, reports of children, timers.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signalfd::SignalFd;
use serde_bytes::ByteBuf;
use snakepit_core::descendants::{Descendant, OwnChildren};
use snakepit_core::run_id::RunId;
use snakepit_core::wire::{self, Hello, Request};
use snakepit_core::{Error, Identity, Pid, Process, forked, threads};
use snakepit_guardian::budget::Budget;
use snakepit_guardian::event::Time;
use snakepit_guardian::{Event, Machine};
use tracing::{info, warn};

use super::frames::{Frames, Incoming};
use super::lease_timer::LeaseTimer;
use super::listener::Listener;
use super::resources::ChildResources;
use super::setup::{ForkSettings, Rights};
use super::{image, log};

/// What a descriptor is to the loop. The number of a child or connection is in the lower bits.
const INPUT: u64 = 1 << 60;
const OUTPUT: u64 = 2 << 60;
const SIGNALS: u64 = 3 << 60;
const BEAM: u64 = 4 << 60;
pub const GATE: u64 = 5 << 60;
const TAILS: u64 = 6 << 60;
pub const LISTENER: u64 = 7 << 60;
pub const CONNECTION: u64 = 8 << 60;
const THREAD: u64 = 9 << 60;
pub const CHANNEL: u64 = 10 << 60;
pub const TERMINAL: u64 = 11 << 60;
pub const LEASES: u64 = 12 << 60;
const KIND: u64 = 15 << 60;

pub struct Shell {
    pub machine: Machine,
    begun: Instant,
    pub epoll: Epoll,
    pub frames: Frames,
    signals: SignalFd,
    pub settings: ForkSettings,
    pub rights: Rights,
    beam: Option<Process>,
    /// Threads of the BEAM, whose end is the first sign of the BEAM's.
    threads: Vec<OwnedFd>,
    pub run_id: RunId,
    pub run_directory: PathBuf,
    pub tail_bytes: usize,
    /// What belongs to each child.
    pub resources: HashMap<u64, ChildResources>,
    /// How many payloads wait in memory for their release.
    pub packed: usize,
    /// What the last walks have found.
    pub held: HashMap<i32, Descendant>,
    pub own_children: OwnChildren,
    /// Whether a child was reaped since the list of children was last read.
    pub reaped_since_list: bool,
    /// Children that were in the midst of `execve(2)` when the list was last read, and since when they have been.
    pub executing: HashMap<i32, Time>,
    /// Of the output of all children, so that all of it can be left alone for a while.
    pub tails: Epoll,
    budget: Budget,
    pub listener: Option<Listener>,
    pub lease_timer: LeaseTimer,
    /// When connections are accepted again, if there was no descriptor for one.
    pub accepts_at: Option<Time>,
    /// What children inherit.
    pub environment: Vec<Vec<u8>>,
    /// `/dev/null`, once it was needed.
    pub null: Option<Rc<OwnedFd>>,
    /// How long the file of adopted processes was when it was last compacted.
    pub adopted_bytes: u64,
    output_watched: bool,
}

impl Shell {
    /// Answers the BEAM's first frame. `Err` is what to tell the BEAM before ending.
    pub fn greet(
        frames: Frames,
        signals: SignalFd,
        settings: ForkSettings,
        hello: Hello,
    ) -> Result<Self, (Frames, String)> {
        let run_id = RunId::from_bytes(hello.run_id.as_bytes());
        let beam = Pid::new(hello.beam_pid);
        let (Some(run_id), Some(beam)) = (run_id, beam) else {
            return Err((frames, "the greeting names no run or no BEAM".into()));
        };
        if hello.version != wire::VERSION {
            let (theirs, ours) = (hello.version, wire::VERSION);
            let reason = format!("the BEAM speaks version {theirs} and the guardian {ours}");
            return Err((frames, reason));
        }
        let made = || Ok::<_, Errno>((new_epoll()?, new_epoll()?));
        let (epoll, tails) = match made() {
            Ok(both) => both,
            Err(errno) => return Err((frames, format!("epoll_create1: {errno}"))),
        };
        let own_children = match OwnChildren::open() {
            Ok(own_children) => own_children,
            Err(error) => return Err((frames, format!("{error}"))),
        };
        let run_directory = Path::new(OsStr::from_bytes(&hello.run_directory)).to_path_buf();
        let listener = Listener::open(beam.as_raw(), &run_directory);
        let listener = listener.inspect_err(|errno| {
            warn!(
                "cannot create the socket for piped stdio and lifelines in {run_directory:?}: {errno}; \
                 workers that need one cannot start"
            );
        });
        let mut shell = Self {
            tail_bytes: usize::try_from(hello.tail_bytes).unwrap_or(usize::MAX / 4),
            machine: Machine::new(hello, run_id),
            begun: Instant::now(),
            epoll,
            frames,
            signals,
            settings,
            rights: Rights::own(),
            beam: None,
            threads: threads::watch_schedulers(beam),
            run_id,
            run_directory,
            resources: HashMap::new(),
            packed: 0,
            held: HashMap::new(),
            own_children,
            reaped_since_list: true,
            executing: HashMap::new(),
            tails,
            budget: Budget::default(),
            listener: listener.ok(),
            lease_timer: LeaseTimer::default(),
            accepts_at: None,
            environment: image::own_environment(),
            null: None,
            adopted_bytes: 0,
            output_watched: false,
        };
        if let Err(why) = shell.watch_everything(beam) {
            return Err((shell.frames, why));
        }
        let socket = shell.listener.as_ref().map(|one| one.path().to_vec()).unwrap_or_default();
        shell.frames.send(&wire::Event::Welcome {
            version: wire::VERSION,
            pid: Pid::current().as_raw().into(),
            identity: own_identity().map(|own| own.encode()).unwrap_or_default().into(),
            socket: ByteBuf::from(socket),
        });
        Ok(shell)
    }

    /// Adds all descriptors to `epoll`. A guardian that misses any of them would be worse than none.
    fn watch_everything(&mut self, beam: Pid) -> Result<(), String> {
        // The port's end of file says the same, unless some stray process holds the port open.
        self.beam = match Process::open(beam) {
            Ok(found) => found,
            Err(Error::Os { call, errno }) => return Err(format!("{call} of the BEAM: {errno}")),
            Err(_unclear) => None,
        };
        if self.beam.is_none() {
            // The port is about to report it, too.
            warn!("the BEAM, pid {beam}, has no process: it has ended, and everything is about to");
        }
        let sources = [
            (Some(self.frames.input.as_fd()), INPUT),
            (Some(self.signals.as_fd()), SIGNALS),
            (Some(self.tails.0.as_fd()), TAILS),
            (self.listener.as_ref().map(AsFd::as_fd), LISTENER),
            (self.beam.as_ref().map(AsFd::as_fd), BEAM),
        ];
        for (source, token) in sources {
            let watched = source.map_or(Ok(()), |source| add(&self.epoll, source, token));
            watched.map_err(|errno| format!("epoll_ctl: {errno}"))?;
        }
        for thread in &self.threads {
            let watched = add(&self.epoll, thread.as_fd(), THREAD);
            watched.map_err(|errno| format!("epoll_ctl of the BEAM's threads: {errno}"))?;
        }
        Ok(())
    }

    /// Runs until there is nothing left to guard.
    pub fn run(mut self, early: Vec<Request>) {
        for request in early {
            self.handle_request(request);
        }
        let mut events = [EpollEvent::empty(); 128];
        while !self.machine.is_done() {
            self.pass_lease_time();
            self.machine.pass_time(self.now());
            self.perform_all();
            self.lease_timer.set(&self.epoll, self.machine.lease_deadline());
            self.forward_log();
            self.flush();
            if self.machine.is_done() {
                break;
            }
            // Interrupted or not, there may be something to do.
            let count = self.epoll.wait(&mut events, self.timeout()).unwrap_or_default();
            // Order: children that have ended are reaped last, after what they reported before. Output that
            // the guardian only keeps comes after everything that a caller waits for.
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
                self.read_tails();
            }
            self.resume_accepting();
            if self.budget.resume(self.now()) {
                let _ = add(&self.epoll, self.tails.0.as_fd(), TAILS);
            }
        }
        self.forward_log();
        self.frames.flush();
    }

    /// Returns how long the guardian has run.
    pub fn now(&self) -> Time {
        self.begun.elapsed()
    }

    pub fn dispatch(&mut self, event: Event) {
        let now = self.now();
        self.machine.handle(now, event);
    }

    fn handle(&mut self, data: u64) {
        let number = data & !KIND;
        match data & KIND {
            INPUT => self.read_requests(),
            SIGNALS => self.drain_signals(),
            BEAM => self.beam_gone("pidfd"),
            THREAD => self.beam_gone("thread"),
            GATE => {
                if let Some(result) =
                    self.resources.get(&number).and_then(ChildResources::exec_result)
                {
                    self.close_gate(number);
                    self.dispatch(Event::Gate { id: number, result });
                    self.perform_all();
                }
            }
            LISTENER => self.accept(),
            CONNECTION => self.read_token(number),
            CHANNEL => self.receive_passed(number),
            TERMINAL => self.receive_of_terminal(number),
            LEASES => self.lease_timer.clear(),
            // What is to be written is flushed before each wait, and what children print is read after it.
            _ => {}
        }
    }

    fn read_requests(&mut self) {
        match self.frames.receive() {
            Incoming::Requests(requests) => {
                for request in requests {
                    self.handle_request(request);
                }
            }
            Incoming::Closed => self.beam_gone("port"),
            Incoming::Garbage(reason) => {
                // Nothing after it can be trusted, so this is as if the BEAM were gone.
                warn!("the BEAM's port: {reason}; all processes are ended");
                self.frames.send(&wire::Event::Refused { reason: reason.into() });
                self.frames.flush();
                self.beam_gone("port");
            }
        }
    }

    /// Order: all that follows from a request is done before the next one is looked at.
    fn handle_request(&mut self, request: Request) {
        // Order: it may have been sent long ago, to a guardian that was stopped.
        if matches!(request, Request::Spawn(_) | Request::Release { .. }) {
            self.pass_lease_time();
        }
        self.dispatch(Event::Request(request));
        self.perform_all();
    }

    fn beam_gone(&mut self, by: &'static str) {
        if self.machine.beam_is_gone() {
            return;
        }
        let _ = self.epoll.delete(&self.frames.input);
        if let Some(beam) = self.beam.take() {
            let _ = self.epoll.delete(beam.as_fd());
        }
        // Closed, they are out of the loop as well.
        self.threads.clear();
        self.dispatch(Event::BeamGone { by, at_ms: wall_clock_ms() });
        self.perform_all();
        // Order: after the signals, which are the promise.
        self.restore_terminals();
        self.reap();
    }

    fn drain_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if signal.ssi_signo == libc::SIGTERM as u32 {
                // A service manager signals every process of the service. While the BEAM lives it decides;
                // afterwards the guardian is ending everything already.
                info!("ignored SIGTERM from pid {}: stop the BEAM instead", signal.ssi_pid);
            }
        }
    }

    /// Reads once from each child that has printed something.
    fn read_tails(&mut self) {
        let begun = self.now();
        let mut events = [EpollEvent::empty(); 128];
        let count = self.tails.wait(&mut events, EpollTimeout::ZERO).unwrap_or_default();
        for event in &events[..count] {
            let tail =
                self.resources.get_mut(&event.data()).and_then(|resources| resources.tail.as_mut());
            if let Some(tail) = tail {
                if !tail.read() {
                    let _ = self.tails.delete(&tail.output);
                }
            }
        }
        if self.budget.spend(begun, self.now()) {
            let _ = self.epoll.delete(&self.tails.0);
        }
    }

    fn forward_log(&mut self) {
        for (level, message) in log::take() {
            if self.machine.beam_is_gone() || self.machine.is_done() {
                log::write(&self.run_directory, level, &message);
            } else {
                let level = level.as_str().to_ascii_lowercase();
                self.frames.send(&wire::Event::Log { level, message });
            }
        }
    }

    pub fn flush(&mut self) {
        let waiting = self.frames.flush();
        if waiting != self.output_watched {
            let output = self.frames.output.as_fd();
            let event = EpollEvent::new(EpollFlags::EPOLLOUT, OUTPUT);
            let _ = if waiting { self.epoll.add(output, event) } else { self.epoll.delete(output) };
            self.output_watched = waiting;
        }
    }

    fn timeout(&self) -> EpollTimeout {
        if self.machine.must_fork_now() {
            return EpollTimeout::ZERO;
        }
        let own = self.machine.deadline();
        let deadlines = [own, self.budget.deadline(), self.accepts_at, self.lease_deadline()];
        let next = deadlines.into_iter().flatten().min();
        let Some(next) = next else { return EpollTimeout::NONE };
        let left = next.saturating_sub(self.now()).as_micros().div_ceil(1000);
        EpollTimeout::try_from(i32::try_from(left).unwrap_or(i32::MAX))
            .unwrap_or(EpollTimeout::ZERO)
    }
}

fn new_epoll() -> Result<Epoll, Errno> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
}

/// `epoll_ctl(2)`: reports from now on when there is something to read; `data` says for whom.
pub fn add(epoll: &Epoll, fd: BorrowedFd, data: u64) -> Result<(), Errno> {
    epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, data))
}

/// Returns the guardian's identity, once no other process can get this pid and start time any more, which is
/// at once where the kernel has handles.
fn own_identity() -> Option<Identity> {
    let own = || Process::open(Pid::current()).ok()?.map(|process| process.identity().clone());
    let identity = own()?;
    if identity.handle.is_some() || identity.settled {
        return Some(identity);
    }
    std::thread::sleep(forked::settles_in(identity.start));
    own()
}

/// Returns milliseconds since the epoch, for people: no decision depends on it.
pub fn wall_clock_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(i64::MAX)
}
