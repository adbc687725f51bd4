//! Whose a process is, by its environment, its arguments and its lineage.

use snakepit_core::lineage::Lineage;
use snakepit_core::marker::{Markers, Owner};
use snakepit_core::run_id::RunId;
use snakepit_core::table::Arguments;

use super::script::Script;

pub fn check(bytes: &[u8]) {
    arguments(bytes);
    environment(bytes);
    lineage(Script(bytes).number());
}

fn arguments(bytes: &[u8]) {
    let found = RunId::from_arguments(Arguments::from_nul_separated(bytes).iter());
    let whole = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    let list: Vec<&[u8]> = whole.split(|byte| *byte == 0).collect();
    let expected = (0..list.len()).find_map(|index| slow_argument(&list[..=index]));
    assert_eq!(found.map(|id| id.to_string()), expected);
    assert_eq!(RunId::from_bytes(bytes).map(|id| id.to_string()), slow_id(bytes));
}

/// What the last of these says, with the one before it.
fn slow_argument(arguments: &[&[u8]]) -> Option<String> {
    let (last, before) = arguments.split_last()?;
    let flags = ["--run-id", "--snakepit-run-id"];
    let apart = before.last().filter(|one| flags.iter().any(|flag| flag.as_bytes() == **one));
    let joined =
        || flags.iter().find_map(|flag| slow_id(last.strip_prefix(format!("{flag}=").as_bytes())?));
    apart.and_then(|_| slow_id(last)).or_else(joined)
}

fn slow_id(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let valid = |one: char| one.is_ascii_digit() || one.is_ascii_lowercase();
    (text.len() == 7 && text.chars().all(valid)).then(|| text.to_owned())
}

fn environment(bytes: &[u8]) {
    let markers = Markers::from_environment(bytes);
    let first = |name: &str| {
        let label = format!("{name}=");
        bytes.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(label.as_bytes()))
    };
    let run_id = first("SNAKEPIT_RUN_ID").and_then(slow_id);
    assert_eq!(markers.run_id.map(|id| id.to_string()), run_id);
    assert_eq!(markers.worker_id.as_deref(), first("SNAKEPIT_WORKER_ID"));
    assert_eq!(markers.instance.as_deref(), first("SNAKEPIT_INSTANCE"));
    let owner = first("SNAKEPIT_OWNER").and_then(slow_owner);
    assert_eq!(markers.owner.as_ref().map(ToString::to_string), owner);
    if let Some(owner) = markers.owner {
        assert_eq!(Owner::parse(&owner.to_string()), Some(owner));
    }
}

/// Three numbers and 32 hexadecimal digits, as they are written.
fn slow_owner(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let fields: Vec<_> = text.split(':').collect();
    let [pid, start, namespace, boot] = fields[..] else { return None };
    let number = |text: &str| text.parse::<u64>().ok().filter(|number| number.to_string() == text);
    let pid = number(pid).filter(|pid| (1..=0x7fff_ffff).contains(pid));
    let digit = |one: char| one.is_ascii_digit() || ('a'..='f').contains(&one);
    let valid = pid.and(number(start)).and(number(namespace)).is_some();
    (valid && boot.len() == 32 && boot.chars().all(digit)).then(|| text.to_owned())
}

fn lineage(limit: u64) {
    match Lineage::from_limit(limit) {
        Some(lineage) => assert_eq!(lineage.to_limit(), limit),
        // The ids are the numbers below 36⁷.
        None => assert!(limit >> 26 >= 36_u64.pow(7)),
    }
}
