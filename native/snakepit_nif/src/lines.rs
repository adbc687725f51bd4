//! Output that is cut into lines: where most of the time would go into the cutting.

use rustler::types::atom::Atom;
use rustler::{Binary, Env, NewBinary, Term};

rustler::atoms! { more, rest, too_long }

/// The most lines of one call, which takes some 50 µs then.
const MOST: usize = 1024;

/// `Snakepit.Native.lines_cut/3`: the lines of `data` behind `from`, each a copy with its newline, and where the next
/// one begins. Then `rest` if that has no end yet, `too_long` if it is longer than `limit` bytes, or `more`.
#[rustler::nif]
fn lines_cut<'a>(
    env: Env<'a>,
    data: Binary,
    from: usize,
    limit: usize,
) -> (Vec<Term<'a>>, usize, Atom) {
    let mut lines = Vec::new();
    let mut from = from.min(data.len());
    while lines.len() < MOST {
        let left = &data[from..];
        let Some(at) = left.iter().position(|byte| *byte == b'\n') else {
            return (lines, from, rest());
        };
        let (line, _) = left.split_at(at + 1);
        if line.len() > limit {
            return (lines, from, too_long());
        }
        // A copy, or a line that somebody keeps would keep all the others.
        let mut copy = NewBinary::new(env, line.len());
        copy.as_mut_slice().copy_from_slice(line);
        lines.push(copy.into());
        from += line.len();
    }
    (lines, from, more())
}
