//! `MessagePack` as a term.

use rustler::types::atom;
use rustler::types::tuple::make_tuple;
use rustler::{Atom, Binary, Encoder, Env, Term};
use snakepit_core::msgpack::{Date, Fault, MAX_DEPTH, Reader, Time, Token};

use super::{FEW_BYTES, FEW_TERMS, atoms, copy};
#[cfg(target_os = "linux")]
use crate::memory as files;

/// Why bytes are not a term.
enum Unreadable {
    Fault(Fault),
    TooDeep,
    Large,
    Memory(Atom),
}

impl From<Fault> for Unreadable {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

struct Decode<'a, 'm> {
    env: Env<'a>,
    reader: Reader<'m>,
    dirty: bool,
    terms: usize,
    // Descriptors of the other side that are not needed any more.
    mapped: Vec<u32>,
}

impl<'a> Decode<'a, '_> {
    fn term(&mut self, depth: usize) -> Result<Term<'a>, Unreadable> {
        self.terms += 1;
        if !self.dirty && self.terms > FEW_TERMS {
            return Err(Unreadable::Large);
        }
        if depth > MAX_DEPTH {
            return Err(Unreadable::TooDeep);
        }
        let env = self.env;
        let term = match self.reader.token()? {
            Token::Nil => atom::nil().encode(env),
            Token::Bool(value) => value.encode(env),
            Token::Int(value) => value.encode(env),
            Token::Uint(value) => value.encode(env),
            Token::BigInteger(negative, magnitude) => self.big_integer(negative, magnitude)?,
            Token::Float(value) => float(env, value),
            Token::Text(text) => copy(env, text.as_bytes()),
            Token::Bytes(bytes) => copy(env, bytes),
            Token::Atom(name) => existing_atom(env, name),
            Token::List(length) => self.elements(length, depth)?.encode(env),
            Token::Tuple(length) => make_tuple(env, &self.elements(length, depth)?),
            Token::Map(length) => self.map(length, depth)?,
            Token::Date(date) => with_struct(env, atoms::date(), &date_fields(env, date)),
            Token::Time(time) => with_struct(env, atoms::time(), &time_fields(env, time)),
            Token::Naive(date, time) => {
                let fields = [&date_fields(env, date)[..], &time_fields(env, time)].concat();
                with_struct(env, atoms::naive(), &fields)
            }
            Token::Aware(date, time, offset) => {
                // The other side has made it UTC: there are no time zones to look it up in.
                if offset != 0 {
                    return Err(Fault::Malformed.into());
                }
                let fields = [&date_fields(env, date)[..], &time_fields(env, time), &utc(env)];
                with_struct(env, atoms::aware(), &fields.concat())
            }
            Token::Memory(memory) => {
                if !self.dirty {
                    return Err(Unreadable::Large);
                }
                self.mapped.push(memory.fd);
                self.memory(memory)?
            }
        };
        Ok(term)
    }

    #[cfg(target_os = "linux")]
    fn memory(&self, memory: snakepit_core::msgpack::Memory) -> Result<Term<'a>, Unreadable> {
        files::map(self.env, memory).map_err(Unreadable::Memory)
    }

    #[cfg(not(target_os = "linux"))]
    fn memory(&self, _memory: snakepit_core::msgpack::Memory) -> Result<Term<'a>, Unreadable> {
        Err(Unreadable::Memory(atoms::malformed()))
    }

    fn elements(&mut self, length: usize, depth: usize) -> Result<Vec<Term<'a>>, Unreadable> {
        let mut elements = Vec::with_capacity(length);
        for _ in 0..length {
            elements.push(self.term(depth + 1)?);
        }
        Ok(elements)
    }

    fn map(&mut self, length: usize, depth: usize) -> Result<Term<'a>, Unreadable> {
        let mut keys = Vec::with_capacity(length);
        let mut values = Vec::with_capacity(length);
        for _ in 0..length {
            keys.push(self.term(depth + 1)?);
            values.push(self.term(depth + 1)?);
        }
        if let Ok(map) = Term::map_from_term_arrays(self.env, &keys, &values) {
            return Ok(map);
        }
        // Two keys are the same term here, such as a text and its bytes: the last one counts.
        let pairs = keys.into_iter().zip(values);
        pairs
            .into_iter()
            .try_fold(Term::map_new(self.env), |map, (key, value)| map.map_put(key, value))
            .map_err(|_| Fault::Malformed.into())
    }

    /// By way of the external term format: there is no other function for it.
    fn big_integer(&self, negative: bool, magnitude: &[u8]) -> Result<Term<'a>, Unreadable> {
        let length = u32::try_from(magnitude.len()).map_err(|_| Fault::Malformed)?;
        let mut external = vec![131, 111];
        external.extend_from_slice(&length.to_be_bytes());
        external.push(negative.into());
        external.extend_from_slice(magnitude);
        let (term, _length) = self.env.binary_to_term(&external).ok_or(Fault::Malformed)?;
        Ok(term)
    }
}

fn float(env: Env<'_>, value: f64) -> Term<'_> {
    if value.is_nan() {
        atoms::nan().encode(env)
    } else if value == f64::INFINITY {
        atoms::infinity().encode(env)
    } else if value == f64::NEG_INFINITY {
        atoms::neg_infinity().encode(env)
    } else {
        value.encode(env)
    }
}

/// The name, if there is no such atom: what comes from outside makes none.
fn existing_atom<'a>(env: Env<'a>, name: &[u8]) -> Term<'a> {
    match Atom::try_from_bytes(env, name) {
        Ok(Some(atom)) => atom.encode(env),
        _ => copy(env, name),
    }
}

type Field<'a> = (Atom, Term<'a>);

fn date_fields(env: Env<'_>, date: Date) -> [Field<'_>; 3] {
    [
        (atoms::year(), date.year.encode(env)),
        (atoms::month(), date.month.encode(env)),
        (atoms::day(), date.day.encode(env)),
    ]
}

fn time_fields(env: Env<'_>, time: Time) -> [Field<'_>; 4] {
    [
        (atoms::hour(), time.hour.encode(env)),
        (atoms::minute(), time.minute.encode(env)),
        (atoms::second(), time.second.encode(env)),
        (atoms::microsecond(), (time.microsecond, 6).encode(env)),
    ]
}

fn utc(env: Env<'_>) -> [Field<'_>; 4] {
    [
        (atoms::time_zone(), "Etc/UTC".encode(env)),
        (atoms::zone_abbr(), "UTC".encode(env)),
        (atoms::utc_offset(), 0.encode(env)),
        (atoms::std_offset(), 0.encode(env)),
    ]
}

fn with_struct<'a>(env: Env<'a>, module: Atom, fields: &[Field<'a>]) -> Term<'a> {
    let fixed =
        [(atoms::struct_(), module.encode(env)), (atoms::calendar(), atoms::iso().encode(env))];
    let (keys, values): (Vec<_>, Vec<_>) = fixed
        .into_iter()
        .chain(fields.iter().copied())
        .map(|(key, value)| (key.encode(env), value))
        .unzip();
    // The keys are different ones.
    Term::map_from_term_arrays(env, &keys, &values).unwrap_or_else(|_| atom::nil().encode(env))
}

fn decode<'a>(env: Env<'a>, message: &[u8], dirty: bool) -> Term<'a> {
    let reader = Reader::new(message);
    let mut decode = Decode { env, reader, dirty, terms: 0, mapped: Vec::new() };
    let result = decode
        .term(0)
        .and_then(|term| decode.reader.finish().map(|()| term).map_err(Unreadable::Fault));
    let reason = match result {
        Ok(term) => return (atom::ok(), term, decode.mapped).encode(env),
        Err(Unreadable::Large) => return atoms::large().encode(env),
        Err(Unreadable::Fault(Fault::Cut)) => atoms::cut(),
        Err(Unreadable::Fault(Fault::Trailing)) => atoms::trailing(),
        Err(Unreadable::Fault(Fault::Malformed)) => atoms::malformed(),
        Err(Unreadable::TooDeep) => atoms::too_deep(),
        Err(Unreadable::Memory(reason)) => reason,
    };
    (atom::error(), reason).encode(env)
}

/// `Snakepit.Native.python_decode/1`: the term, and the descriptors of the worker that were mapped for it; `large` if
/// that is for `python_decode_large`.
#[rustler::nif]
fn python_decode<'a>(env: Env<'a>, message: Binary) -> Term<'a> {
    if message.len() > FEW_BYTES {
        return atoms::large().encode(env);
    }
    decode(env, &message, false)
}

/// `Snakepit.Native.python_decode_large/1`.
#[rustler::nif(schedule = "DirtyCpu")]
fn python_decode_large<'a>(env: Env<'a>, message: Binary) -> Term<'a> {
    decode(env, &message, true)
}
