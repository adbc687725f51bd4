//! Ending one child, all of them, or everything because the BEAM is gone.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use snakepit_core::group;
use snakepit_core::obituary::{self, Ended, Obituary};
use snakepit_core::process::Found;
use snakepit_core::table::{Columns, Entry};
use snakepit_core::tree::{self, Roots};
use snakepit_core::wire::{Event, Scope};
use snakepit_core::{Pid, Process, Signal};
use tracing::{Level, error, info, warn};

use super::children::{Child, State};
use super::guardian::Guardian;
use super::trees::{freezes, kill};

/// How long the kernel may take to carry out SIGKILL before what is left counts as surviving.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How long after the groups those are asked that left theirs.
const ASK_REST_AFTER: Duration = Duration::from_millis(20);

/// The end of everything, under way.
pub struct Ending {
    begun: Instant,
    kill_at: Instant,
    give_up_at: Instant,
    /// What gave the BEAM's death away; `None` if the BEAM lives and asked for this.
    mourning: Option<&'static str>,
    detected_at: i64,
    killed: HashSet<i32>,
    attempts: u32,
    ended: Vec<Ended>,
    /// Whether those that left their group have been asked.
    asked_rest: bool,
    /// Whether the process table was read since: only then is it known who was adopted.
    looked: bool,
}

impl Ending {
    fn new(grace: Duration, mourning: Option<&'static str>) -> Self {
        let begun = Instant::now();
        let kill_at = begun + grace;
        Self {
            begun,
            kill_at,
            give_up_at: kill_at + KILL_LIMIT,
            mourning,
            detected_at: wall_clock_ms(),
            killed: HashSet::new(),
            attempts: 0,
            ended: Vec::new(),
            asked_rest: false,
            looked: false,
        }
    }

    /// Whether the guardian ends with it.
    pub fn is_final(&self) -> bool {
        self.mourning.is_some()
    }
}

impl Guardian {
    /// SIGTERM and SIGCONT to the group now, SIGKILL to the tree when the grace period is over.
    pub(crate) fn stop(&mut self, id: u64, signal: i32, grace: Duration) {
        let gone = Event::TreeGone { id, killed: 0, survivors: Vec::new() };
        let Some(mut child) = self.children.get_mut(id) else {
            // One that lingers gets its answer when its tree is gone.
            if !self.trees.lingers(id) {
                self.frames.send(&gone);
            }
            return;
        };
        let kill_at = Instant::now() + grace.min(Duration::from_secs(u64::from(u32::MAX)));
        child.kill_at = Some(child.kill_at.map_or(kill_at, |earlier| earlier.min(kill_at)));
        if child.is_out() {
            let signal = Signal::from_number(signal.into()).unwrap_or(Signal::TERM);
            ask(child.pid, signal);
            if signal == Signal::KILL {
                child.kill_at = Some(Instant::now());
            }
        } else {
            child.discard();
        }
    }

    pub(crate) fn signal(&mut self, id: u64, signal: i32, scope: Scope) {
        let Ok(signal) = Signal::from_number(signal.into()) else { return };
        let Some(child) = self.children.get(id).filter(|child| child.is_out()) else { return };
        let pid = child.pid;
        let process = || Process::open(pid).ok().flatten();
        match scope {
            Scope::Process => {
                process().map(|process| process.signal(signal));
            }
            Scope::Group => drop(group::signal_of_child(pid, signal)),
            Scope::Tree => {
                let mut identities = self.adopted_of(id);
                identities.extend(process().map(|process| process.identity().clone()));
                let columns = Columns::default();
                let roots = Roots { identities, select: &|_| false, columns, freeze: false };
                if let Err(error) = tree::strike(&roots, signal, drop) {
                    warn!("cannot signal a tree: {error}");
                }
            }
        }
    }

    /// Children whose grace period is over, and all that descends from them.
    pub(crate) fn kill_overdue(&mut self) {
        let now = Instant::now();
        let mut overdue = Vec::new();
        if self.children.counts().stopping > 0 {
            overdue = self.children.ids(|child| child.is_overdue(now));
        }
        for id in overdue {
            let Some(mut child) = self.children.get_mut(id) else { continue };
            child.kills += 1;
            let (pid, attempts) = (child.pid, child.kills);
            drop(child);
            let leader = Process::open(pid).ok().flatten();
            let roots = leader.map(|leader| leader.identity().clone()).into_iter().collect();
            self.kill_tree(id, roots, attempts);
        }
        self.kill_everything_overdue(now);
    }

    /// Whether something is being killed right now.
    pub(crate) fn is_chasing(&self) -> bool {
        let now = Instant::now();
        self.ending.as_ref().is_some_and(|ending| ending.kill_at <= now)
            || (self.children.counts().stopping > 0
                && self.children.iter().any(|(_, child)| child.is_overdue(now)))
    }

    /// When something has to be killed that is still in its grace period.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let mut first = None;
        if self.children.counts().stopping > 0 {
            let waiting = |child: &Child| child.is_out() && child.kills == 0;
            let children = self.children.iter().filter(|(_, child)| waiting(child));
            first = children.filter_map(|(_, child)| child.kill_at).min();
        }
        let ending = self.ending.as_ref().map(|ending| {
            if ending.kill_at > Instant::now() { ending.kill_at } else { ending.give_up_at }
        });
        [first, ending].into_iter().flatten().min()
    }

    pub(crate) fn mind_time(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.trees.next_look()) || due(self.next_deadline()) {
            self.look();
        }
        self.conclude();
    }

    pub(crate) fn stop_all(&mut self, grace: Duration) {
        if self.ending.is_none() {
            self.ending = Some(Ending::new(grace, None));
            self.ask_everyone();
        }
    }

    /// The BEAM is gone: so is everything that it asked for, soon.
    pub(crate) fn mourn(&mut self, by: &'static str) {
        if self.ending.as_ref().is_some_and(Ending::is_final) {
            return;
        }
        let _ = self.epoll.delete(&self.frames.input);
        self.stop_listening_to_beam();
        self.ending = Some(Ending::new(Duration::from_millis(self.hello.grace_ms), Some(by)));
        info!(by, beam = self.hello.beam_pid, "the BEAM is gone");
        for id in self.children.ids(|child| !child.is_out()) {
            if let Some(mut child) = self.children.get_mut(id) {
                child.discard();
            }
        }
        self.ask_everyone();
        self.reap();
    }

    /// Groups at once, which is quick. Those that left their group are asked a moment later: most of
    /// the others are gone by then, and do not have to be looked at one by one.
    fn ask_everyone(&mut self) {
        for (_, child) in self.children.iter().filter(|(_, child)| child.is_out()) {
            ask(child.pid, Signal::TERM);
        }
        self.trees.look_within(Instant::now() + ASK_REST_AFTER);
    }

    /// The rest of [`Guardian::ask_everyone`], once.
    fn ask_rest(&mut self) {
        let Some(ending) = self.ending.as_mut().filter(|ending| !ending.asked_rest) else { return };
        ending.asked_rest = true;
        let leaders: HashSet<i32> =
            self.children.iter().map(|(_, child)| child.pid.as_raw()).collect();
        if let Err(error) = self.ask_below(&|entry| !leaders.contains(&entry.group)) {
            warn!("cannot read the process table: {error}");
        }
    }

    /// Asks everything below the guardian of which `filter` is true.
    fn ask_below(&self, filter: &dyn Fn(&Entry) -> bool) -> Result<(), snakepit_core::Error> {
        let own = Pid::current().as_raw();
        let select = |entry: &Entry| entry.parent == own && !self.waits_at_gate(entry.pid);
        let columns = Columns::default();
        let roots = Roots { identities: Vec::new(), select: &select, columns, freeze: false };
        for identity in roots.list()? {
            let Found::Same(process) = Process::reopen(&identity, None)? else { continue };
            if process.inspect(columns)?.is_some_and(|entry| filter(&entry)) {
                // A refusal shows when it comes to killing.
                let _ = process.signal(Signal::TERM);
                let _ = process.signal(Signal::CONT);
            }
        }
        Ok(())
    }

    fn kill_everything_overdue(&mut self, now: Instant) {
        self.ask_rest();
        if let Some(ending) = &mut self.ending {
            ending.looked = true;
        }
        if self.ending.as_ref().is_none_or(|ending| ending.kill_at > now) {
            return;
        }
        let own = Pid::current().as_raw();
        let select = |entry: &Entry| entry.parent == own && !self.waits_at_gate(entry.pid);
        let attempt = self.ending.as_ref().map_or(1, |ending| ending.attempts + 1);
        let columns = Columns::default();
        let freeze = freezes(attempt);
        let killed = kill(&Roots { identities: Vec::new(), select: &select, columns, freeze });
        if let Some(ending) = &mut self.ending {
            ending.attempts = attempt;
            ending.killed.extend(killed.iter().map(|identity| identity.pid.as_raw()));
        }
    }

    fn waits_at_gate(&self, pid: Pid) -> bool {
        let child = self.children.id_of(pid.as_raw()).and_then(|id| self.children.get(id));
        child.is_some_and(|child| !child.is_out())
    }

    pub(crate) fn note_child_end(&mut self, child: &Child) {
        if matches!(child.state, State::Running | State::Released) {
            let worker_id = child.worker_id.to_string();
            self.note(child.pid.as_raw(), worker_id);
        }
    }

    pub(crate) fn note_end(&mut self, pid: i32) {
        self.note(pid, String::new());
    }

    fn note(&mut self, pid: i32, worker_id: String) {
        if let Some(ending) = &mut self.ending {
            let killed = ending.killed.contains(&pid);
            let after_ms = ending.begun.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
            ending.ended.push(Ended { worker_id, pid: pid.into(), killed, after_ms });
        }
    }

    /// Whether everything that is to end has ended, and what that means.
    fn conclude(&mut self) {
        let Some(ending) = &self.ending else { return };
        let (give_up_at, looked) = (ending.give_up_at, ending.looked);
        let gone = if ending.is_final() {
            self.has_no_child()
        } else {
            looked && self.children.counts().out == 0 && self.trees.is_quiet()
        };
        if !gone && Instant::now() < give_up_at {
            return;
        }
        let survivors = if gone { Vec::new() } else { descendants() };
        let Some(ending) = self.ending.take() else { return };
        let killed = ending.killed.len() as u64;
        let stopped = ending.ended.iter().filter(|one| !one.killed).count() as u64;
        if let Some(by) = ending.mourning {
            self.write_obituary(ending, by, survivors);
            self.door = None;
            self.done = true;
        } else {
            self.frames.send(&Event::AllGone { stopped, killed, survivors });
        }
    }

    /// The kernel's own word: with no child there is no descendant.
    fn has_no_child(&mut self) -> bool {
        self.reap();
        // SAFETY: null asks for nothing but whether there is a child.
        let result = unsafe {
            libc::waitid(
                libc::P_ALL,
                0,
                std::ptr::null_mut(),
                libc::WEXITED | libc::WNOHANG | libc::WNOWAIT,
            )
        };
        result < 0
    }

    pub(crate) fn run_directory(&self) -> PathBuf {
        Path::new(std::ffi::OsStr::from_bytes(&self.hello.run_directory)).to_path_buf()
    }

    fn write_obituary(&mut self, ending: Ending, by: &str, survivors: Vec<i64>) {
        if !survivors.is_empty() {
            error!(?survivors, "processes survived");
        }
        let record = Obituary {
            run_id: self.hello.run_id.clone(),
            beam_pid: self.hello.beam_pid,
            detected_at: ending.detected_at,
            detected_by: by.to_owned(),
            duration_ms: ending.begun.elapsed().as_millis().try_into().unwrap_or(u64::MAX),
            processes: ending.ended,
            survivors,
        };
        if let Err(error) = obituary::write(&self.run_directory(), &record) {
            error!("cannot write the obituary: {error}");
        }
        let count = record.processes.len();
        info!(count, duration_ms = record.duration_ms, "everything is gone");
        // The log goes to the file from here on, so it is written before the ending is forgotten.
        for (level, message) in super::log::take() {
            self.write_log(level, &message);
        }
    }

    pub(crate) fn write_log(&self, level: Level, message: &str) {
        let path = self.run_directory().join("guardian.log");
        let file = OpenOptions::new().append(true).create(true).open(path);
        let _ = file.and_then(|mut file| writeln!(file, "{} {level} {message}", wall_clock_ms()));
    }
}

/// Pids of everything that is still there.
fn descendants() -> Vec<i64> {
    let own = Pid::current().as_raw();
    let select = |entry: &Entry| entry.parent == own;
    let roots = Roots {
        identities: Vec::new(),
        select: &select,
        columns: Columns::default(),
        freeze: false,
    };
    let left = roots.list().unwrap_or_default();
    left.iter().map(|identity| identity.pid.as_raw().into()).collect()
}

/// Asks a group to end: the signal, and SIGCONT in case it is stopped.
fn ask(leader: Pid, signal: Signal) {
    let result = group::signal_of_child(leader, signal);
    if let Err(error) = result.and_then(|_| group::signal_of_child(leader, Signal::CONT)) {
        warn!("cannot signal group {leader}: {error}");
    }
}

/// For people only: no decision depends on it.
fn wall_clock_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(i64::MAX)
}
