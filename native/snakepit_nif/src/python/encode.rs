//! A term as `MessagePack`.

use rustler::types::atom;
use rustler::types::map::MapIterator;
use rustler::types::tuple::get_tuple;
use rustler::{Atom, Binary, Encoder, Env, Term, TermType};
use snakepit_core::msgpack::{Date, MAX_DEPTH, Time, Writer};

use super::{FEW_BYTES, FEW_TERMS, atoms, copy};
#[cfg(target_os = "linux")]
use crate::memory as files;

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
        if !self.dirty && longer_than(FEW_TERMS, term) {
            return Err(Refusal::Large);
        }
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

/// To count all of a long list takes too long to find out only that.
fn longer_than(most: usize, list: Term) -> bool {
    let mut rest = list;
    for _ in 0..=most {
        match rest.list_get_cell() {
            Ok((_head, tail)) => rest = tail,
            Err(_) => return false,
        }
    }
    true
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
