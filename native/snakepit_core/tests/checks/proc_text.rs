//! `/proc/<pid>/stat`, `status`, `limits` and `cmdline`.

use snakepit_core::proc_text::{lock_limit, real_uid, stat, state_letter, thread_count};
use snakepit_core::table::Arguments;

use super::script::Script;

pub fn check(bytes: &[u8]) {
    anything(bytes);
    any_name(&mut Script(bytes));
    any_arguments(bytes);
}

/// The same answers as by taking the text apart into a list first.
fn anything(bytes: &[u8]) {
    let entry = stat(bytes);
    let found = entry.as_ref().map(|entry| {
        let numbers = [entry.parent, entry.group, entry.session].map(i64::from);
        (i64::from(entry.pid.as_raw()), numbers, entry.start)
    });
    assert_eq!(found, slow_stat(bytes));
    if let Some(entry) = entry {
        let may_be_dead = matches!(state_letter(bytes), Some(b'Z' | b'X' | b'x'));
        assert!(entry.is_alive() || may_be_dead, "both find the same letter");
    }
    assert_eq!(real_uid(bytes), slow_line(bytes, "Uid:").and_then(|text| text.parse().ok()));
    let limit = slow_line(bytes, "Max file locks").and_then(|text| text.parse().ok());
    assert_eq!(lock_limit(bytes), limit);
}

fn slow_stat(bytes: &[u8]) -> Option<(i64, [i64; 3], u64)> {
    let pieces: Vec<_> = bytes.split(|byte| *byte == b')').collect();
    let (behind, named) = pieces.split_last().filter(|(_, named)| !named.is_empty())?;
    let fields: Vec<_> = behind.trim_ascii().split(|byte| *byte == b' ').collect();
    let field = |index: usize| std::str::from_utf8(fields.get(index)?).ok();
    let number = |index: usize| field(index)?.parse::<i32>().ok().map(i64::from);
    field(17)?.parse::<i64>().ok()?;
    let before = bytes.split(|byte| *byte == b'(').next().filter(|_| bytes.contains(&b'('))?;
    let pid: i64 = std::str::from_utf8(before.trim_ascii()).ok()?.parse().ok()?;
    fields[0].first().filter(|_| (1..=i64::from(i32::MAX)).contains(&pid) && !named.is_empty())?;
    Some((pid, [number(1)?, number(2)?, number(3)?], field(19)?.parse().ok()?))
}

/// The first word behind a label that begins a line.
fn slow_line<'a>(bytes: &'a [u8], label: &str) -> Option<&'a str> {
    let line =
        bytes.split(|byte| *byte == b'\n').find(|line| line.starts_with(label.as_bytes()))?;
    let mut words = line[label.len()..].split(u8::is_ascii_whitespace);
    std::str::from_utf8(words.find(|word| !word.is_empty())?).ok()
}

/// Whatever a process calls itself, its numbers are those that the kernel wrote.
fn any_name(script: &mut Script) {
    let name = script.string();
    let letter = b"RSDZTtXxI"[script.index(9)];
    let pid = i32::try_from(script.number() % 0x7fff_ffff).unwrap() + 1;
    let [parent, group, session] = [(); 3].map(|()| script.signed() as i32);
    let (threads, start) = (script.signed(), script.number());
    let between = "0 -1 4194304 1 2 3 4 5 6 7 8 20 0";
    let head = format!("{pid} (").into_bytes();
    let letter_text = char::from(letter);
    let tail =
        format!(") {letter_text} {parent} {group} {session} {between} {threads} 0 {start} 1\n");
    let line = [&head, name, tail.as_bytes()].concat();
    let entry = stat(&line).unwrap();
    assert_eq!((entry.pid.as_raw(), entry.start), (pid, start));
    assert_eq!((entry.parent, entry.group, entry.session), (parent, group, session));
    assert_eq!((state_letter(&line), thread_count(&line)), (Some(letter), threads));
    let dead = matches!(letter, b'Z' | b'X' | b'x') && threads <= 1;
    assert_eq!(entry.is_alive(), !dead);

    // In `status` the kernel writes a newline in a name as two characters.
    let shown: Vec<u8> =
        name.iter().map(|byte| if *byte == b'\n' { b'n' } else { *byte }).collect();
    let status = [b"Name:\t", &shown[..], format!("\nUid:\t{group}\t0\n").as_bytes()].concat();
    assert_eq!(real_uid(&status), u32::try_from(group).ok());
}

/// Arguments end with a NUL, of which the last may be missing.
fn any_arguments(bytes: &[u8]) {
    let whole = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    let mut expected = vec![Vec::new()];
    for byte in whole {
        match byte {
            0 => expected.push(Vec::new()),
            byte => expected.last_mut().unwrap().push(*byte),
        }
    }
    if whole.is_empty() {
        expected.clear();
    }
    let found: Vec<_> = Arguments::from_nul_separated(bytes).iter().map(<[u8]>::to_vec).collect();
    assert_eq!(found, expected);
}
