//! An own, independent reading of `/proc`: what it says is what a test believes.

use std::fs;

/// One process.
#[derive(Clone, Debug)]
pub struct Seen {
    pub pid: i32,
    pub state: char,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    pub threads: i32,
    pub start: u64,
    pub uid: u32,
}

impl Seen {
    /// Not a zombie, or only in name: other threads go on.
    pub fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X') || self.threads > 1
    }

    /// Runs and has not been stopped.
    pub fn is_untouched(&self) -> bool {
        self.runs() && !matches!(self.state, 'T' | 't')
    }
}

pub fn look(pid: i32) -> Option<Seen> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name is the second field, in parentheses, and may contain anything.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 2..].split_whitespace().collect();
    let number = |index: usize| fields[index].parse().unwrap();
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    Some(Seen {
        pid,
        state: fields[0].chars().next()?,
        parent: number(1),
        group: number(2),
        session: number(3),
        threads: number(17),
        start: fields[19].parse().unwrap(),
        uid: uid.split_whitespace().next()?.parse().unwrap(),
    })
}

pub fn all() -> Vec<Seen> {
    let names = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| look(name.parse().ok()?)).collect()
}

/// The processes of this user that can still run.
pub fn of_user(uid: u32) -> Vec<Seen> {
    all().into_iter().filter(|seen| seen.uid == uid && seen.runs()).collect()
}

/// Whether `pid` can run. Only for one whose pid cannot have changed hands: an unreaped child.
pub fn runs(pid: i32) -> bool {
    look(pid).is_some_and(|seen| seen.runs())
}

pub fn state(pid: i32) -> Option<char> {
    look(pid).map(|seen| seen.state)
}
