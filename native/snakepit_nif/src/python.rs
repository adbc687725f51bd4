//! Terms as MessagePack and back, for Python workers. The format is `snakepit_core::msgpack`'s.
//!
//! What is small is done on a normal scheduler. What turns out not to be is refused with `large`, after a fraction of
//! a millisecond, and done again on a dirty one: only they may touch memory files.

use rustler::types::atom;
use rustler::types::map::MapIterator;
use rustler::types::tuple::get_tuple;
use rustler::{Atom, Binary, Encoder, Env, NewBinary, Term, TermType};
use snakepit_core::msgpack::{Date, Fault, MAX_DEPTH, Reader, Time, Token, Writer};

#[cfg(target_os = "linux")]
use crate::memory as files;

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

/// Why a term cannot be carried, and where in the whole term it is, the innermost step first.
enum Refusal<'a> {
    Large,
    Here {
        what: Term<'a>,
        why: &'static str,
        path: Vec<Term<'a>>,
    },
    #[cfg(target_os = "linux")]
    Memory(Atom),
}

struct Encode<'a> {
    env: Env<'a>,
    writer: Writer,
    terms: usize,
    // Bytes of at least this length go into a memory file.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    beyond: usize,
    dirty: bool,
    files: Vec<Term<'a>>,
}

type Encoded<'a> = Result<(), Refusal<'a>>;

impl<'a> Encode<'a> {
    fn refuse(what: Term<'a>, why: &'static str) -> Encoded<'a> {
        Err(Refusal::Here { what, why, path: Vec::new() })
    }

    /// Says where it was, if it was refused.
    fn at(&self, result: Encoded<'a>, kind: Atom, step: Term<'a>) -> Encoded<'a> {
        result.map_err(|refusal| match refusal {
            Refusal::Here { what, why, mut path } => {
                path.push((kind, step).encode(self.env));
                Refusal::Here { what, why, path }
            }
            other => other,
        })
    }

    fn term(&mut self, term: Term<'a>, depth: usize) -> Encoded<'a> {
        self.terms += 1;
        if !self.dirty && (self.terms > FEW_TERMS || self.writer.length() > FEW_BYTES) {
            return Err(Refusal::Large);
        }
        if depth > MAX_DEPTH {
            return Self::refuse(atom::nil().encode(self.env), "it is nested too deeply");
        }
        match term.get_type() {
            TermType::Atom => self.atom(term),
            TermType::Binary => self.binary(term),
            TermType::Integer => self.integer(term),
            TermType::Float => {
                self.writer.float(term.decode().unwrap_or(f64::NAN));
                Ok(())
            }
            TermType::List => self.list(term, depth, false),
            TermType::Tuple => self.tuple(term, depth),
            TermType::Map => self.map(term, depth),
            TermType::Pid => Self::refuse(term, "a pid cannot be carried"),
            TermType::Fun => Self::refuse(term, "a function cannot be carried"),
            TermType::Ref => Self::refuse(term, "a reference cannot be carried"),
            TermType::Port => Self::refuse(term, "a port cannot be carried"),
            TermType::Unknown => Self::refuse(term, "it cannot be carried"),
        }
    }

    fn atom(&mut self, term: Term<'a>) -> Encoded<'a> {
        if atom::nil() == term {
            self.writer.nil();
        } else if atom::true_() == term {
            self.writer.bool(true);
        } else if atom::false_() == term {
            self.writer.bool(false);
        } else if atoms::infinity() == term {
            self.writer.float(f64::INFINITY);
        } else if atoms::neg_infinity() == term {
            self.writer.float(f64::NEG_INFINITY);
        } else if atoms::nan() == term {
            self.writer.float(f64::NAN);
        } else {
            match term.atom_to_string() {
                Ok(name) => self.writer.atom(&name),
                Err(_) => return Self::refuse(term, "this atom cannot be carried"),
            }
        }
        Ok(())
    }

    fn binary(&mut self, term: Term<'a>) -> Encoded<'a> {
        let Ok(binary) = Binary::from_term(term) else {
            return Self::refuse(term, "a bitstring that is not whole bytes cannot be carried");
        };
        self.small(binary.len())?;
        match std::str::from_utf8(&binary) {
            Ok(text) => self.writer.text(text),
            Err(_) => return self.bytes(term, &binary),
        }
        Ok(())
    }

    fn small(&self, length: usize) -> Encoded<'a> {
        if self.dirty || length <= FEW_BYTES { Ok(()) } else { Err(Refusal::Large) }
    }

    fn bytes(&mut self, term: Term<'a>, bytes: &[u8]) -> Encoded<'a> {
        self.small(bytes.len())?;
        #[cfg(target_os = "linux")]
        if bytes.len() >= self.beyond {
            let (memory, file) = files::create(self.env, bytes).map_err(Refusal::Memory)?;
            self.writer.memory(memory);
            self.files.push(file);
            return Ok(());
        }
        if u32::try_from(bytes.len()).is_err() {
            return Self::refuse(term, "4 GiB and more cannot be carried");
        }
        self.writer.bytes(bytes);
        Ok(())
    }

    fn integer(&mut self, term: Term<'a>) -> Encoded<'a> {
        if let Ok(value) = term.decode::<i64>() {
            self.writer.int(value);
        } else if let Ok(value) = term.decode::<u64>() {
            self.writer.uint(value);
        } else {
            // The external term format: 131, 110 and a length of one byte, or 111 and one of four; sign, magnitude.
            let external = term.to_binary();
            match external.as_slice() {
                [131, 110, _, sign, magnitude @ ..]
                | [131, 111, _, _, _, _, sign, magnitude @ ..] => {
                    self.small(magnitude.len())?;
                    self.writer.big_integer(*sign != 0, magnitude);
                }
                _ => return Self::refuse(term, "this integer cannot be carried"),
            }
        }
        Ok(())
    }

    fn list(&mut self, term: Term<'a>, depth: usize, is_key: bool) -> Encoded<'a> {
        let Ok(length) = term.list_length() else {
            return Self::refuse(term, "an improper list cannot be carried");
        };
        let Ok(length) = u32::try_from(length) else {
            return Self::refuse(
                atom::nil().encode(self.env),
                "a list of this length cannot be carried",
            );
        };
        let begin = if is_key {
            Some(self.writer.begin_tuple(length))
        } else {
            self.writer.list(length);
            None
        };
        let mut rest = term;
        for index in 0..length {
            let Ok((head, tail)) = rest.list_get_cell() else { break };
            let result = self.element(head, depth, is_key);
            self.at(result, atoms::index(), index.encode(self.env))?;
            rest = tail;
        }
        if let Some(begin) = begin {
            self.writer.end_tuple(begin);
        }
        Ok(())
    }

    fn element(&mut self, term: Term<'a>, depth: usize, in_key: bool) -> Encoded<'a> {
        if in_key { self.key(term, depth + 1) } else { self.term(term, depth + 1) }
    }

    fn tuple(&mut self, term: Term<'a>, depth: usize) -> Encoded<'a> {
        self.elements(term, depth, false)
    }

    fn elements(&mut self, term: Term<'a>, depth: usize, in_key: bool) -> Encoded<'a> {
        let elements = get_tuple(term).unwrap_or_default();
        let begin = self.writer.begin_tuple(u32::try_from(elements.len()).unwrap_or(u32::MAX));
        for (index, element) in elements.into_iter().enumerate() {
            let result = self.element(element, depth, in_key);
            self.at(result, atoms::index(), index.encode(self.env))?;
        }
        self.writer.end_tuple(begin);
        Ok(())
    }

    /// A list as a key is a tuple: what can change cannot be a key in Python.
    fn key(&mut self, term: Term<'a>, depth: usize) -> Encoded<'a> {
        if depth > MAX_DEPTH {
            return Self::refuse(atom::nil().encode(self.env), "it is nested too deeply");
        }
        match term.get_type() {
            TermType::List => self.list(term, depth, true),
            TermType::Tuple => self.elements(term, depth, true),
            TermType::Map if term.map_get(atoms::struct_()).is_err() => {
                Self::refuse(term, "a map cannot be a key in Python")
            }
            _ => self.term(term, depth),
        }
    }

    fn map(&mut self, term: Term<'a>, depth: usize) -> Encoded<'a> {
        if let Ok(module) = term.map_get(atoms::struct_()) {
            return self.a_struct(term, module);
        }
        let length = u32::try_from(term.map_size().unwrap_or(0)).unwrap_or(u32::MAX);
        self.writer.map(length);
        let Some(pairs) = MapIterator::new(term) else { return Ok(()) };
        for (key, value) in pairs {
            let result = self.key(key, depth + 1);
            self.at(result, atoms::inner(), key)?;
            let result = self.term(value, depth + 1);
            self.at(result, atoms::key(), key)?;
        }
        Ok(())
    }

    fn a_struct(&mut self, term: Term<'a>, module: Term<'a>) -> Encoded<'a> {
        let written = if atoms::bytes() == module {
            match term.map_get(atoms::data()).and_then(Binary::from_term) {
                Ok(data) => return self.bytes(term, &data),
                Err(_) => None,
            }
        } else if atoms::date() == module {
            date(term).map(|date| self.writer.date(date))
        } else if atoms::time() == module {
            time(term).map(|time| self.writer.time(time))
        } else if atoms::naive() == module {
            date(term).zip(time(term)).map(|(date, time)| self.writer.naive(date, time))
        } else if atoms::aware() == module {
            let offset = number::<i32>(term, atoms::utc_offset())
                .zip(number::<i32>(term, atoms::std_offset()))
                .map(|(utc, std)| utc + std);
            date(term)
                .zip(time(term))
                .zip(offset)
                .map(|((date, time), offset)| self.writer.aware(date, time, offset))
        } else {
            let why = "a struct of this module cannot be carried: make a map of it";
            return Self::refuse(module, why);
        };
        written.map_or_else(|| Self::refuse(term, "this value of its struct cannot be carried"), Ok)
    }
}

fn number<'a, T: rustler::Decoder<'a>>(term: Term<'a>, key: Atom) -> Option<T> {
    term.map_get(key).ok()?.decode().ok()
}

fn is_iso(term: Term) -> bool {
    term.map_get(atoms::calendar()).is_ok_and(|calendar| atoms::iso() == calendar)
}

fn date(term: Term) -> Option<Date> {
    if !is_iso(term) {
        return None;
    }
    Some(Date {
        year: number(term, atoms::year())?,
        month: number(term, atoms::month())?,
        day: number(term, atoms::day())?,
    })
}

fn time(term: Term) -> Option<Time> {
    if !is_iso(term) {
        return None;
    }
    let (microsecond, _precision) = number::<(u32, u8)>(term, atoms::microsecond())?;
    Some(Time {
        hour: number(term, atoms::hour())?,
        minute: number(term, atoms::minute())?,
        second: number(term, atoms::second())?,
        microsecond,
    })
}

fn encode<'a>(env: Env<'a>, head: Binary, term: Term<'a>, beyond: usize, dirty: bool) -> Term<'a> {
    let writer = Writer::after(&head);
    let mut encode = Encode { env, writer, terms: 0, beyond, dirty, files: Vec::new() };
    match encode.term(term, 0) {
        Ok(()) => {
            let message = encode.writer.into_message();
            (atom::ok(), copy(env, &message), encode.files).encode(env)
        }
        Err(Refusal::Large) => atoms::large().encode(env),
        Err(Refusal::Here { what, why, mut path }) => {
            path.reverse();
            (atom::error(), path, what, why).encode(env)
        }
        #[cfg(target_os = "linux")]
        Err(Refusal::Memory(reason)) => (atom::error(), (atoms::memory(), reason)).encode(env),
    }
}

fn copy<'a>(env: Env<'a>, bytes: &[u8]) -> Term<'a> {
    let mut binary = NewBinary::new(env, bytes.len());
    binary.as_mut_slice().copy_from_slice(bytes);
    binary.into()
}

/// `Snakepit.Native.python_encode/3`: a packet that begins with `head`, and the memory files that it names; `large`
/// if that is for `python_encode_large`.
#[rustler::nif]
fn python_encode<'a>(env: Env<'a>, head: Binary, term: Term<'a>, beyond: usize) -> Term<'a> {
    encode(env, head, term, beyond, false)
}

/// `Snakepit.Native.python_encode_large/3`.
#[rustler::nif(schedule = "DirtyCpu")]
fn python_encode_large<'a>(env: Env<'a>, head: Binary, term: Term<'a>, beyond: usize) -> Term<'a> {
    encode(env, head, term, beyond, true)
}

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
            Token::Tuple(length) => {
                rustler::types::tuple::make_tuple(env, &self.elements(length, depth)?)
            }
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

fn date_fields<'a>(env: Env<'a>, date: Date) -> [Field<'a>; 3] {
    [
        (atoms::year(), date.year.encode(env)),
        (atoms::month(), date.month.encode(env)),
        (atoms::day(), date.day.encode(env)),
    ]
}

fn time_fields<'a>(env: Env<'a>, time: Time) -> [Field<'a>; 4] {
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
