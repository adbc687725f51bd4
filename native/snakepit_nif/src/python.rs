//! Terms as `MessagePack` and back, for Python workers. The format is `snakepit_core::msgpack`'s.
//!
//! What is small is done on a normal scheduler. What turns out not to be is refused with `large`, after a fraction of
//! a millisecond, and done again on a dirty one: only they may touch memory files.

use rustler::{Env, NewBinary, Term};

mod decode;
mod encode;

#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
mod atoms {
    rustler::atoms! {
        large,
        index,
        key,
        inner,
        infinity,
        neg_infinity,
        nan,
        cut,
        trailing,
        malformed,
        too_deep,
        memory,
        struct_ = "__struct__",
        calendar,
        iso = "Elixir.Calendar.ISO",
        date = "Elixir.Date",
        time = "Elixir.Time",
        naive = "Elixir.NaiveDateTime",
        aware = "Elixir.DateTime",
        bytes = "Elixir.Snakepit.Python.Bytes",
        data,
        year,
        month,
        day,
        hour,
        minute,
        second,
        microsecond,
        time_zone,
        zone_abbr,
        utc_offset,
        std_offset,
    }
}

/// More terms than that are not for a normal scheduler, and neither are more bytes.
const FEW_TERMS: usize = 2_000;
const FEW_BYTES: usize = 65_536;

/// A binary of its own.
fn copy<'a>(env: Env<'a>, bytes: &[u8]) -> Term<'a> {
    let mut binary = NewBinary::new(env, bytes.len());
    binary.as_mut_slice().copy_from_slice(bytes);
    binary.into()
}
