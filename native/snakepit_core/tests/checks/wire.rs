//! Frames between BEAM and guardian.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use snakepit_core::wire::{Event, Request, decode, encode};

pub fn check(bytes: &[u8]) {
    message::<Request>(bytes);
    message::<Event>(bytes);
}

/// What is read is one whole value, and written again it is read as the same.
pub fn message<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let Some(message) = decode::<T>(bytes) else { return };
    assert_eq!(skip(bytes), Some(&[][..]), "a message is one value, whole");
    let written = encode(&message);
    assert_eq!(decode::<T>(&written).as_ref(), Some(&message));
    assert_eq!(decode::<T>(&[written.as_slice(), &[0xc0]].concat()), None, "nothing behind it");
    for cut in [bytes.len() % written.len(), written.len() - 1] {
        assert_eq!(decode::<T>(&written[..cut]), None, "cut at {cut} of {}", written.len());
    }
}

/// What follows the first `MessagePack` value; `None` if there is no whole one. By its own specification,
/// and by counting: a container owes as many values as it says.
fn skip(mut bytes: &[u8]) -> Option<&[u8]> {
    let mut owed: u64 = 1;
    while owed > 0 {
        let (tag, rest) = bytes.split_first()?;
        let (size, inside, after) = match *tag {
            0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => (0, 0, rest),
            0x80..=0x8f => (0, 2 * u64::from(tag & 15), rest),
            0x90..=0x9f => (0, u64::from(tag & 15), rest),
            0xa0..=0xbf => (u64::from(tag & 31), 0, rest),
            0xc1 => return None,
            0xc4..=0xc6 => sized(rest, 1 << (tag - 0xc4), 0)?,
            0xc7..=0xc9 => sized(rest, 1 << (tag - 0xc7), 1)?,
            0xca => (4, 0, rest),
            0xcb => (8, 0, rest),
            0xcc..=0xcf => (1 << (tag - 0xcc), 0, rest),
            0xd0..=0xd3 => (1 << (tag - 0xd0), 0, rest),
            0xd4..=0xd8 => (1 + (1 << (tag - 0xd4)), 0, rest),
            0xd9..=0xdb => sized(rest, 1 << (tag - 0xd9), 0)?,
            0xdc | 0xdd => many(rest, 2 << (tag - 0xdc), 1)?,
            0xde | 0xdf => many(rest, 2 << (tag - 0xde), 2)?,
        };
        bytes = after.get(usize::try_from(size).ok()?..)?;
        owed = owed - 1 + inside;
    }
    Some(bytes)
}

fn sized(bytes: &[u8], width: usize, more: u64) -> Option<(u64, u64, &[u8])> {
    let (length, rest) = length(bytes, width)?;
    Some((length + more, 0, rest))
}

fn many(bytes: &[u8], width: usize, times: u64) -> Option<(u64, u64, &[u8])> {
    let (length, rest) = length(bytes, width)?;
    Some((0, length * times, rest))
}

fn length(bytes: &[u8], width: usize) -> Option<(u64, &[u8])> {
    let (digits, rest) = bytes.split_at_checked(width)?;
    Some((digits.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)), rest))
}
