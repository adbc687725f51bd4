//! What Linux writes under `/proc`, taken apart. Nothing is read here, and nothing here is particular
//! to the system it runs on: any bytes can be given to it.

use crate::Pid;
use crate::table::{Arguments, Entry, Environment, State};

/// `pid (comm) state ppid pgrp session … num_threads … starttime …`
///
/// `comm` is whatever the process likes, including `") R 1 1"` and newlines; nothing after it
/// contains a parenthesis, so the last one ends it.
pub fn stat(line: &[u8]) -> Option<Entry> {
    let open = line.iter().position(|byte| *byte == b'(')?;
    let pid = number(line.get(..open)?.trim_ascii())?;
    let mut fields = behind_name(line)?.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let parent = number(fields.next()?)?;
    let group = number(fields.next()?)?;
    let session = number(fields.next()?)?;
    let threads: i64 = number(fields.nth(13)?)?;
    let start = number(fields.nth(1)?)?;
    Some(Entry {
        pid: Pid::new(pid)?,
        parent,
        group,
        session,
        state: parse_state(state, threads),
        start,
        settled: false,
        uid: None,
        arguments: Arguments::default(),
        environment: Environment::NotRead,
    })
}

/// The leader of a process may end before its other threads: the process then runs on behind a
/// leader in state `Z`.
fn parse_state(letter: u8, threads: i64) -> State {
    match letter {
        b'Z' | b'X' | b'x' if threads <= 1 => State::Zombie,
        b'T' | b't' => State::Stopped,
        b'D' => State::Uninterruptible,
        _ => State::Alive,
    }
}

/// The pids in a list of children: numbers, each with a space behind it.
pub fn pids(list: &[u8]) -> impl Iterator<Item = i32> {
    list.split(|byte| *byte == b' ').filter_map(number::<i32>).filter(|pid| *pid > 0)
}

/// The letter of the state in `stat`.
pub fn state_letter(line: &[u8]) -> Option<u8> {
    behind_name(line)?.first().copied()
}

fn behind_name(line: &[u8]) -> Option<&[u8]> {
    let close = line.iter().rposition(|byte| *byte == b')')?;
    Some(line.get(close + 1..)?.trim_ascii())
}

/// The real user in `status`.
pub fn real_uid(status: &[u8]) -> Option<u32> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    number(line.trim_ascii().split(u8::is_ascii_whitespace).next()?)
}

/// The soft limit of file locks in `limits`; `None` if it is unlimited.
pub fn lock_limit(limits: &[u8]) -> Option<u64> {
    let mut lines = limits.split(|byte| *byte == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(b"Max file locks"))?;
    number(line.trim_ascii_start().split(u8::is_ascii_whitespace).next()?)
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(comm: &str) -> Vec<u8> {
        let tail = "S 17 42 43 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 987654 1 2 3";
        format!("4711 ({comm}) {tail}\n").into_bytes()
    }

    #[test]
    fn a_name_with_parentheses_spaces_and_newlines_does_not_shift_the_fields() {
        for comm in ["sleep", ") R 1 1 1", "a (b) c", "\n)\n(", "", "((((", "))))"] {
            let entry = stat(&line(comm)).unwrap();
            assert_eq!(entry.pid.as_raw(), 4711, "{comm:?}");
            assert_eq!((entry.parent, entry.group, entry.session), (17, 42, 43), "{comm:?}");
            assert_eq!(entry.start, 987_654, "{comm:?}");
        }
    }

    #[test]
    fn a_cut_line_is_no_entry() {
        let whole = line("x");
        let enough = whole.windows(6).position(|part| part == b"987654").unwrap() + 1;
        for length in 0..enough {
            assert!(stat(&whole[..length]).is_none(), "{length}");
        }
    }

    #[test]
    fn a_dead_leader_with_live_threads_is_a_live_process() {
        assert_eq!(parse_state(b'Z', 1), State::Zombie);
        assert_eq!(parse_state(b'Z', 2), State::Alive);
    }

    #[test]
    fn the_real_uid_is_the_first_of_the_line() {
        let status = b"Name:\tUid: 7\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\n";
        assert_eq!(real_uid(status), Some(1000));
        assert_eq!(real_uid(b"Name:\tx\n"), None);
    }
}
