//! What Linux writes under `/proc`, taken apart. Nothing is read here, and nothing here is particular
//! to the system it runs on: any bytes can be given to it.

use crate::Pid;
use crate::table::{Arguments, Entry, Environment, ProcessState};

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
fn parse_state(letter: u8, threads: i64) -> ProcessState {
    match letter {
        b'Z' | b'X' | b'x' if threads <= 1 => ProcessState::Zombie,
        b'T' | b't' => ProcessState::Stopped,
        b'D' => ProcessState::Uninterruptible,
        _ => ProcessState::Alive,
    }
}

/// Returns the pids in a list of children: numbers, each with a space behind it.
pub fn pids(list: &[u8]) -> impl Iterator<Item = i32> {
    list.split(|byte| *byte == b' ').filter_map(number::<i32>).filter(|pid| *pid > 0)
}

/// Returns the letter of the state in `stat`.
pub fn state_letter(line: &[u8]) -> Option<u8> {
    behind_name(line)?.first().copied()
}

/// Returns the number of threads in `stat`, those that have ended and not been reaped included; 0 if it
/// does not say.
pub fn thread_count(line: &[u8]) -> i64 {
    let fields = behind_name(line).map(|rest| rest.split(|byte| *byte == b' '));
    fields.and_then(|mut fields| number(fields.nth(17)?)).unwrap_or_default()
}

/// Returns the state of a process whose threads that have not ended are in these states: it is at rest if
/// all of them are.
pub fn state_of_all(letters: &[u8]) -> ProcessState {
    if letters.iter().all(|letter| matches!(letter, b'T' | b't')) {
        ProcessState::Stopped
    } else if letters.iter().all(|letter| matches!(letter, b'T' | b't' | b'D')) {
        ProcessState::Uninterruptible
    } else {
        ProcessState::Alive
    }
}

fn behind_name(line: &[u8]) -> Option<&[u8]> {
    let close = line.iter().rposition(|byte| *byte == b')')?;
    Some(line.get(close + 1..)?.trim_ascii())
}

/// Returns the real user in `status`.
pub fn real_uid(status: &[u8]) -> Option<u32> {
    number(words(field(status, b"Uid:")?).next()?)
}

/// Returns in how many pid namespaces, from that of `/proc` down to its own, a process has a pid; 0 if
/// `status` does not say.
pub fn namespaces(status: &[u8]) -> usize {
    field(status, b"NSpid:").map_or(0, |pids| words(pids).count())
}

/// Returns whether a process has this capability, in effect.
pub fn has_capability(status: &[u8], capability: u32) -> bool {
    let digits = field(status, b"CapEff:").and_then(|digits| std::str::from_utf8(digits).ok());
    let set = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or_default();
    set.checked_shr(capability).is_some_and(|bits| bits & 1 == 1)
}

/// Returns whether a filter decides on the system calls of a process (`SECCOMP_MODE_FILTER`).
pub fn is_filtered(status: &[u8]) -> bool {
    field(status, b"Seccomp:") == Some(b"2")
}

/// Returns whether `/proc` hides processes from one that has these groups and may not trace them, by
/// `mountinfo`. The last that was mounted there counts.
pub fn hides(mountinfo: &[u8], groups: &[u32]) -> bool {
    let mounts = mountinfo.split(|byte| *byte == b'\n');
    let mut options = mounts.filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let is_proc = fields.nth(4) == Some(b"/proc");
        // Those of the mount come before the type, those of the file system last.
        fields.next_back().filter(|_| is_proc)
    });
    let Some(options) = options.next_back() else { return false };
    let value = |name: &[u8]| {
        let mut options = options.split(|byte| *byte == b',');
        options.find_map(|option| option.strip_prefix(name)).map(<[u8]>::to_vec)
    };
    let exempt =
        value(b"gid=").and_then(|gid| number(&gid)).is_some_and(|gid| groups.contains(&gid));
    match value(b"hidepid=").as_deref() {
        None | Some(b"0" | b"off") => false,
        Some(b"4" | b"ptraceable") => true,
        Some(_) => !exempt,
    }
}

fn field<'a>(status: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut lines = status.split(|byte| *byte == b'\n');
    lines.find_map(|line| line.strip_prefix(name)).map(<[u8]>::trim_ascii)
}

fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
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
        assert_eq!(parse_state(b'Z', 1), ProcessState::Zombie);
        assert_eq!(parse_state(b'Z', 2), ProcessState::Alive);
    }

    #[test]
    fn the_real_uid_is_the_first_of_the_line() {
        let status = b"Name:\tUid: 7\nUmask:\t0022\nUid:\t1000\t0\t0\t0\nGid:\t5\t5\t5\t5\n";
        assert_eq!(real_uid(status), Some(1000));
        assert_eq!(real_uid(b"Name:\tx\n"), None);
    }

    #[test]
    fn a_status_tells_of_namespaces_capabilities_and_filters() {
        let status =
            b"NSpid:\t4711\t2\nCapEff:\t0000000000080020\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(namespaces(status), 2);
        assert!(has_capability(status, 5) && has_capability(status, 19));
        assert!(!has_capability(status, 0) && !has_capability(status, 64));
        assert!(is_filtered(status));
        assert_eq!((namespaces(b""), has_capability(b"", 5), is_filtered(b"")), (0, false, false));
        assert!(!is_filtered(b"Seccomp:\t0\n"));
    }

    #[test]
    fn the_last_mount_of_proc_says_whether_it_hides() {
        let mount = |place: &str, options: &str| {
            format!("30 23 0:5 / {place} rw,nosuid shared:9 - proc proc rw{options}\n")
        };
        let hides = |text: &str| hides(text.as_bytes(), &[7]);
        assert!(
            !hides("") && !hides(&mount("/proc", "")) && !hides(&mount("/proc", ",hidepid=off"))
        );
        for value in ["1", "2", "4", "noaccess", "invisible", "ptraceable"] {
            assert!(hides(&mount("/proc", &format!(",hidepid={value}"))), "{value}");
            assert!(!hides(&mount("/mnt/proc", &format!(",hidepid={value}"))), "{value}");
        }
        assert!(!hides(&mount("/proc", ",gid=7,hidepid=invisible")));
        assert!(hides(&mount("/proc", ",gid=8,hidepid=invisible")));
        assert!(hides(&mount("/proc", ",gid=7,hidepid=ptraceable")));
        let both = [mount("/proc", ",hidepid=2"), mount("/proc", "")].concat();
        assert!(!hides(&both));
    }
}
