//! The event loop: what the BEAM asks, what children say, what time brings.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signalfd::SignalFd;
use serde_bytes::ByteBuf;
use snakepit_core::run_id::RunId;
use snakepit_core::wire::{self, Event, Exit, Hello, Request, Step};
use snakepit_core::{Pid, Process};
use tracing::{debug, info, warn};

use super::children::{Child, Children, State, Verdict};
use super::door::Door;
use super::ending::Ending;
use super::frames::{Frames, Incoming};
use super::log;
use super::setup::Changes;
use super::tail::Tail;
use super::trees::{PERIOD, Trees};

/// What a descriptor is to the loop. The number of a child or visitor is in the lower bits.
const INPUT: u64 = 1 << 60;
const OUTPUT: u64 = 2 << 60;
const SIGNALS: u64 = 3 << 60;
const BEAM: u64 = 4 << 60;
const GATE: u64 = 5 << 60;
const TAIL: u64 = 6 << 60;
const DOOR: u64 = 7 << 60;
const VISITOR: u64 = 8 << 60;
const KIND: u64 = 15 << 60;

/// How long nobody is asked for before children are forked ahead again.
const QUIET: Duration = Duration::from_millis(10);

pub struct Guardian {
    pub(crate) epoll: Epoll,
    pub(crate) frames: Frames,
    signals: SignalFd,
    changes: Changes,
    beam: Option<Process>,
    pub(crate) hello: Hello,
    pub(crate) run_id: RunId,
    pub(crate) children: Children,
    pub(crate) trees: Trees,
    pub(crate) door: Option<Door>,
    pub(crate) ending: Option<Ending>,
    /// Children that the BEAM asked for beyond those kept ahead.
    wanted: u32,
    /// Until when no child is forked ahead, after that has failed.
    rest_until: Option<Instant>,
    /// When children are forked ahead again.
    refill_at: Option<Instant>,
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
        let epoll = match Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC) {
            Ok(epoll) => epoll,
            Err(errno) => return Err((frames, format!("no epoll: {errno}"))),
        };
        let directory = Path::new(OsStr::from_bytes(&hello.run_directory));
        let door = Door::open(beam.as_raw(), directory);
        let door = door.inspect_err(|errno| warn!("no door: {errno}")).ok();
        let children = Children::counted_from(hello.first_id);
        let mut guardian = Self {
            epoll,
            frames,
            signals,
            changes,
            beam: None,
            hello,
            run_id,
            children,
            trees: Trees::default(),
            door,
            ending: None,
            wanted: 0,
            rest_until: None,
            refill_at: None,
            done: false,
            output_watched: false,
        };
        guardian.watch_everything(beam);
        let socket = guardian.door.as_ref().map(|door| door.path().to_vec()).unwrap_or_default();
        let pid = Pid::current().as_raw().into();
        let welcome = Event::Welcome { version: wire::VERSION, pid, socket: ByteBuf::from(socket) };
        guardian.frames.send(&welcome);
        Ok(guardian)
    }

    fn watch_everything(&mut self, beam: Pid) {
        let _ = add(&self.epoll, self.frames.input.as_fd(), INPUT);
        let _ = add(&self.epoll, self.signals.as_fd(), SIGNALS);
        if let Some(door) = &self.door {
            let _ = add(&self.epoll, door.listener.as_fd(), DOOR);
        }
        // The port's end of file says the same, unless some stray process holds the port open.
        self.beam = Process::open(beam).ok().flatten();
        if let Some(beam) = &self.beam {
            let _ = add(&self.epoll, beam.as_fd(), BEAM);
        } else {
            // Gone already, so the port is about to say so.
            warn!("the BEAM has no process {beam}");
        }
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
            let mut reap = false;
            for event in &events[..count] {
                reap |= event.data() == SIGNALS;
                self.handle(event.data());
            }
            if reap {
                self.reap();
            }
            self.mind_time(Instant::now());
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
            TAIL => self.pump(number),
            DOOR => self.answer_door(),
            VISITOR => self.hear_visitor(number),
            // Output: flushed before each wait anyway.
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
            Request::Fork { count } => self.wanted = self.wanted.saturating_add(count),
            Request::Spawn(spawn) => {
                self.refill_at = None;
                self.assign(&spawn);
            }
            Request::Release { id } => self.release(id),
            Request::Stop { id, signal, grace_ms } => {
                self.stop(id, signal, Duration::from_millis(grace_ms));
            }
            Request::Signal { id, signal, scope } => self.signal(id, signal, scope),
            Request::StopAll { grace_ms } => self.stop_all(Duration::from_millis(grace_ms)),
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

    /// Keeps a few children waiting at the gate, so that the next one asked for is there already.
    fn fork_ahead(&mut self) {
        if self.ending.as_ref().is_some_and(Ending::is_final) {
            return;
        }
        let ahead = self.children.counts().ready;
        if self.wanted == 0 && !self.refill_is_due(ahead) {
            return;
        }
        self.refill_at = None;
        let target = if self.is_resting() { 0 } else { self.hello.ahead as usize };
        let missing = target.saturating_sub(ahead) + self.wanted as usize;
        // A few at a time: whoever was released meanwhile is served in between.
        for _ in 0..missing.min(16) {
            let asked = self.wanted > 0;
            self.wanted = self.wanted.saturating_sub(1);
            let id = self.children.next_id();
            let forked = Child::fork(self.run_id, id, self.changes);
            if let Err(errno) = forked.and_then(|child| self.announce(id, child)) {
                if asked {
                    self.frames.send(&Event::ForkFailed { errno: errno as i32 });
                }
                warn!("cannot fork: {errno}");
                self.rest_until = Some(Instant::now() + PERIOD);
                return;
            }
            // Whoever waits for the first does not wait for the others.
            self.frames.flush();
        }
    }

    /// All at once and when it is quiet, or when none is left. A fork costs the guardian a copy of each
    /// page that it writes to next, which the forks of a batch share; and it takes processor time from a child
    /// that is on its way to its program.
    fn refill_is_due(&mut self, ahead: usize) -> bool {
        if ahead >= self.hello.ahead as usize || self.is_resting() {
            self.refill_at = None;
            return false;
        }
        if ahead == 0 {
            return self.children.counts().released == 0;
        }
        let now = Instant::now();
        *self.refill_at.get_or_insert(now + QUIET) <= now
    }

    /// What failed a moment ago would fail again. Where it fails after the fork, the end of that child
    /// is what wakes the loop, so trying each time would never end.
    fn is_resting(&self) -> bool {
        self.rest_until.is_some_and(|until| until > Instant::now())
    }

    /// Tells the BEAM of a child that waits. Without an identity it must not run: nobody could find
    /// it again.
    fn announce(&mut self, id: u64, child: Child) -> Result<(), Errno> {
        let pid = child.pid;
        self.children.insert(id, child);
        let errno = match Process::open(pid) {
            Ok(Some(process)) => {
                let identity = ByteBuf::from(process.identity().encode());
                self.frames.send(&Event::Ready { id, pid: pid.as_raw().into(), identity });
                return Ok(());
            }
            Err(snakepit_core::Error::Os { errno, .. }) => errno,
            Ok(None) | Err(_) => Errno::ESRCH,
        };
        if let Some(mut child) = self.children.get_mut(id) {
            child.discard();
        }
        Err(errno)
    }

    fn release(&mut self, id: u64) {
        let Some(mut child) = self.children.get_mut(id) else { return };
        let result = child.release();
        if let (Some(gate), Ok(())) = (&child.gate, result) {
            let _ = add(&self.epoll, gate.as_fd(), GATE | id);
        }
        drop(child);
        if let Err(errno) = result {
            self.fail(id, Step::Descriptors, errno as i32);
        }
    }

    /// The child is told to go and the BEAM that it did not run.
    pub(crate) fn fail(&mut self, id: u64, step: Step, errno: i32) {
        if let Some(mut child) = self.children.get_mut(id) {
            child.discard();
            child.tail = None;
        }
        self.frames.send(&Event::Failed { id, step, errno });
    }

    fn hear_gate(&mut self, id: u64) {
        let verdict = match self.children.get(id) {
            Some(child) if matches!(child.state, State::Released) => child.verdict(),
            _ => return,
        };
        match verdict {
            Verdict::Pending => {}
            Verdict::Executed => {
                if let Some(mut child) = self.children.get_mut(id) {
                    child.gate = None;
                    child.state = State::Running;
                }
                self.frames.send(&Event::Started { id });
                self.trees.look_within(Instant::now() + PERIOD);
            }
            Verdict::Failed(step, errno) => self.fail(id, step, errno),
        }
    }

    fn pump(&mut self, id: u64) {
        let Some(mut child) = self.children.get_mut(id) else { return };
        if let Some(tail) = &mut child.tail {
            if !tail.pump() {
                let _ = self.epoll.delete(tail.output.as_fd());
            }
        }
    }

    /// Takes all connections that wait, and the tokens of those that have shown one.
    pub(crate) fn answer_door(&mut self) {
        let Some(door) = &mut self.door else { return };
        while let Some(number) = door.accept() {
            if let Some(stranger) = door.hear(number) {
                let _ = add(&self.epoll, stranger, VISITOR | number);
            }
        }
    }

    /// Reads the tokens of those that were let in before they had shown one.
    pub(crate) fn hear_strangers(&mut self) {
        let numbers = self.door.as_ref().map(Door::strangers).unwrap_or_default();
        for number in numbers {
            self.hear_visitor(number);
        }
    }

    fn hear_visitor(&mut self, number: u64) {
        let Some(door) = &mut self.door else { return };
        if let Some(stranger) = door.stranger(number) {
            // Before the connection changes hands: a child's copy would keep it in here.
            let _ = self.epoll.delete(stranger);
        }
        if let Some(stranger) = door.hear(number) {
            let _ = add(&self.epoll, stranger, VISITOR | number);
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

    /// Reaps all that have ended. When no child at all is left there is no descendant either: each
    /// would have become a child.
    pub(crate) fn reap(&mut self) {
        loop {
            let mut status = 0;
            // SAFETY: plain data, filled by the kernel.
            let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
            // SAFETY: both pointers are to locals.
            let pid = unsafe { libc::wait4(-1, &raw mut status, libc::WNOHANG, &raw mut usage) };
            match pid {
                0 => break,
                pid if pid > 0 => self.reaped(pid, exit_of(status, &usage)),
                _ if Errno::last() == Errno::EINTR => {}
                _ => {
                    self.trees.nobody_left();
                    break;
                }
            }
        }
    }

    fn reaped(&mut self, pid: i32, exit: Exit) {
        let Some(id) = self.children.id_of(pid) else {
            self.trees.forget(pid);
            self.note_end(pid);
            return;
        };
        // What it said before it ended comes first.
        self.hear_gate(id);
        let Some(mut child) = self.children.remove(id) else { return };
        self.note_child_end(&child);
        if self.ending.as_ref().is_some_and(Ending::is_final) {
            // Nobody is there to be told, and everything below is being ended anyway.
            return;
        }
        match child.state {
            State::Running => {
                let tail = child.tail.as_mut().map(Tail::take_stock);
                debug!(id, pid, status = ?exit.status, signal = ?exit.signal, "exited");
                let tail = ByteBuf::from(tail.unwrap_or_default());
                self.frames.send(&Event::Exited { id, exit, tail });
                self.trees.linger(id, pid);
            }
            // It never ran. If it was asked to stop, that is done.
            State::Discarded if child.kill_at.is_some() => {
                self.frames.send(&Event::TreeGone { id, killed: 0, survivors: Vec::new() });
            }
            State::Discarded => {}
            // Ended at the gate by someone else.
            _ => {
                let step = Step::Fork;
                self.frames.send(&Event::Failed { id, step, errno: libc::ECHILD });
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
        let next = [self.trees.next_look(), self.next_deadline(), self.refill_at]
            .into_iter()
            .flatten()
            .min();
        let Some(next) = next else {
            // Someone may be waiting for a fork that did not fit into this turn.
            return if self.wanted > 0 { EpollTimeout::ZERO } else { EpollTimeout::NONE };
        };
        if self.wanted > 0 {
            return EpollTimeout::ZERO;
        }
        let left = next.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000);
        EpollTimeout::try_from(i32::try_from(left).unwrap_or(i32::MAX))
            .unwrap_or(EpollTimeout::ZERO)
    }

    /// From here on the child's output is read.
    pub(crate) fn watch_tail(&self, id: u64, output: BorrowedFd) -> Result<(), Errno> {
        add(&self.epoll, output, TAIL | id)
    }
}

fn add(epoll: &Epoll, fd: BorrowedFd, data: u64) -> Result<(), Errno> {
    epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, data))
}

fn exit_of(status: libc::c_int, usage: &libc::rusage) -> Exit {
    let micros = |time: libc::timeval| {
        u64::try_from(time.tv_sec * 1_000_000 + time.tv_usec).unwrap_or_default()
    };
    Exit {
        status: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        signal: libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)),
        core: libc::WCOREDUMP(status),
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        max_rss_kb: u64::try_from(usage.ru_maxrss).unwrap_or_default(),
    }
}
