//! The guardian's own children: reaping them, listing them, and looking below them.

use std::mem::MaybeUninit;

use nix::errno::Errno;
use nix::unistd::{getpgid, getsid};
use snakepit_core::lineage::Lineage;
use snakepit_core::offspring::{self, Relative};
use snakepit_core::run_id::RunId;
use snakepit_core::table::{self, Columns, Entry, Environment, State};
use snakepit_core::wire::Exit;
use snakepit_core::{Pid, Process};
use snakepit_guardian::Event;
use snakepit_guardian::event::{Member, Purpose, Seen, Time, Verdict};

use super::shell::Shell;

impl Shell {
    /// Reaps all that have ended, and does what follows from that.
    pub(super) fn reap(&mut self) {
        self.reap_each();
        self.perform_all();
    }

    /// Each is looked at before it is reaped, so that nobody goes of whom it is not known whose it was.
    fn reap_each(&mut self) {
        loop {
            let pid = match next_to_reap() {
                Ok(Some(pid)) => pid,
                Ok(None) => return,
                Err(Errno::EINTR) => continue,
                Err(_no_child) => {
                    self.tell(Event::Alone);
                    return;
                }
            };
            if !self.machine.knows(pid) {
                self.tell(Event::Adopted(seen(self.now(), pid, self.run_id, false)));
            }
            // What it said before it ended comes first. That it has executed its program shows in the end
            // of the gate, and not even then: a sibling that was forked a moment ago, and has not had a
            // processor since, holds a copy of it. But who could not execute has said so.
            if let Some(id) = self.machine.released(pid) {
                let verdict = self.kept.get(&id).and_then(super::gate::Kept::verdict);
                let verdict = verdict.unwrap_or(Verdict::Executed);
                self.tell(Event::Gate { id, verdict });
            }
            // Order: what was decided is done before anyone is reaped. After that, a pid may be another's.
            self.perform_all();
            let Some(exit) = wait_for(pid) else { return };
            self.reaped_since_list = true;
            self.tell(Event::Reaped { pid, exit });
        }
    }

    /// Reads the list of children, and tells of those in it that are not known.
    pub(super) fn list(&mut self) {
        let only_new = !std::mem::take(&mut self.reaped_since_list);
        let Ok(pids) = self.own_children.read(only_new) else {
            self.reaped_since_list = true;
            self.tell(Event::NotListed);
            return;
        };
        for pid in pids {
            if !self.machine.knows(pid) {
                self.tell(Event::Adopted(seen(self.now(), pid, self.run_id, true)));
            }
        }
        self.tell(Event::Listed);
    }

    /// Looks at what is below children. What is found is held until all actions are carried out.
    pub(super) fn walk(&mut self, tree: u64, purpose: Purpose, roots: &[i32]) {
        let pids: Vec<Pid> = roots.iter().filter_map(|pid| Pid::new((*pid).into())).collect();
        if purpose == Purpose::Count {
            // Nobody is held: there may be more than there are descriptors. And nobody is counted where that
            // takes a look at the whole process table for each tree.
            let listed = self.own_children.is_listed();
            let below = if listed { offspring::below(&pids) } else { Vec::new() };
            let now = self.now();
            let members = below.iter().map(|relative| member(now, relative)).collect();
            self.tell(Event::Below { tree, purpose, members });
            return;
        }
        let mut members: Vec<Member> = pids.iter().map(|pid| child(self.now(), *pid)).collect();
        for relative in offspring::below(&pids) {
            members.push(member(self.now(), &relative));
            self.held.insert(relative.entry.pid.as_raw(), relative);
        }
        self.tell(Event::Below { tree, purpose, members });
    }
}

fn member(now: Time, relative: &Relative) -> Member {
    from_entry(now, relative.entry.pid, Some(&relative.entry))
}

fn child(now: Time, pid: Pid) -> Member {
    let entry = table::read_one(pid, Columns::default()).ok().flatten();
    from_entry(now, pid, entry.as_ref())
}

/// Of a child that is hidden no more is known than what the kernel tells its parent.
fn from_entry(now: Time, pid: Pid, entry: Option<&Entry>) -> Member {
    let group = || getpgid(Some(raw(pid))).map_or(0, nix::unistd::Pid::as_raw);
    Member {
        pid: pid.as_raw(),
        start: entry.map_or(0, |entry| entry.start),
        group: entry.map_or_else(group, |entry| entry.group),
        // Order: the age is measured after `now`. A wait in between makes it seem older, never younger.
        started: entry.and_then(offspring::age).map(|age| now.saturating_sub(age)),
        at_rest: entry.is_none_or(|entry| entry.state != State::Alive),
    }
}

/// One that has become a child, and what tells whose it is.
fn seen(now: Time, pid: i32, run_id: RunId, alive: bool) -> Seen {
    let Some(pid) = Pid::new(pid.into()) else { return nobody(pid) };
    let lineage = Lineage::of(pid).ok().flatten();
    let own = lineage.is_some_and(|lineage| lineage.run_id == run_id);
    let marked = if own { None } else { marked_child(pid, run_id) };
    let process = if alive { Process::open(pid).ok().flatten() } else { None };
    Seen {
        member: child(now, pid),
        session: getsid(Some(raw(pid))).map_or(0, nix::unistd::Pid::as_raw),
        lineage,
        child: marked,
        identity: process.map(|process| process.identity().clone()),
    }
}

fn nobody(pid: i32) -> Seen {
    let member = Member { pid, start: 0, group: 0, started: None, at_rest: true };
    Seen { member, session: 0, lineage: None, child: None, identity: None }
}

/// Without a lineage: where the hard limit leaves no room for one, or the process has set its own.
fn marked_child(pid: Pid, run_id: RunId) -> Option<u64> {
    let columns = Columns { markers: true, ..Columns::default() };
    let entry = table::read_one(pid, columns).ok().flatten()?;
    let Environment::Read(markers) = entry.environment else { return None };
    markers.child.filter(|_| markers.is_of_run(run_id))
}

fn raw(pid: Pid) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(pid.as_raw())
}

/// A child that has ended, which stays as it is; `None` if none has.
fn next_to_reap() -> Result<Option<i32>, Errno> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is to a local.
    Errno::result(unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) })?;
    // SAFETY: all zeroes, or filled by the kernel for a child.
    let pid = unsafe { info.assume_init().si_pid() };
    Ok((pid > 0).then_some(pid))
}

fn wait_for(pid: i32) -> Option<Exit> {
    let mut status = 0;
    // SAFETY: plain data, filled by the kernel.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to locals.
        let result = unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) };
        match result {
            result if result == pid => return Some(exit_of(status, &usage)),
            -1 if Errno::last() == Errno::EINTR => {}
            _ => return None,
        }
    }
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
