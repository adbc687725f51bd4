//! `MessagePack` as it travels between the BEAM and a Python worker.
//!
//! What `MessagePack` has no type for is an extension. `snakepit_bridge/codec.py` is the other side.
//!
//! | code | what | payload |
//! |---|---|---|
//! | 1 | integer beyond 64 bits | sign (0 or 1), then the magnitude, least significant byte first |
//! | 2 | tuple | an array, as `MessagePack` |
//! | 3 | atom | its name |
//! | 4 | date | year `i16`, month, day |
//! | 5 | time | hour, minute, second, microseconds `u32` |
//! | 6 | date and time | 4, then 5 |
//! | 7 | the same in a time zone | 6, then its offset in seconds, `i32` |
//! | 8 | bytes in a memory file | pid `u32`, descriptor `u32`, length `u64` |
//!
//! Numbers in payloads begin with the most significant byte.

use rmp::Marker;
use rmp::decode::{RmpRead, read_marker};
use rmp::encode as put;

/// How deep a term may be. Both sides go into it recursively.
pub const MAX_DEPTH: usize = 256;

const BIG_INTEGER: i8 = 1;
const TUPLE: i8 = 2;
const ATOM: i8 = 3;
const DATE: i8 = 4;
const TIME: i8 = 5;
const NAIVE: i8 = 6;
const AWARE: i8 = 7;
const MEMORY: i8 = 8;

/// A day of the proleptic Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// Also before the year 1, which Python has not.
    pub year: i16,
    /// From 1.
    pub month: u8,
    /// From 1.
    pub day: u8,
}

/// A time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// From 0 to 23.
    pub hour: u8,
    /// From 0 to 59.
    pub minute: u8,
    /// From 0 to 59.
    pub second: u8,
    /// Below a million.
    pub microsecond: u32,
}

/// Where the bytes are that do not go through the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Whose descriptor it is.
    pub pid: u32,
    /// Its number there.
    pub fd: u32,
    /// How many bytes.
    pub length: u64,
}

/// The next thing in a message. What contains others is followed by them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'m> {
    /// `None`
    Nil,
    /// `True` or `False`
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// One that does not fit into the signed.
    Uint(u64),
    /// Its sign, and its magnitude, least significant byte first.
    BigInteger(bool, &'m [u8]),
    /// Also infinite, or not a number.
    Float(f64),
    /// UTF-8.
    Text(&'m str),
    /// `bytes`
    Bytes(&'m [u8]),
    /// The name of an atom.
    Atom(&'m [u8]),
    /// So many elements follow.
    List(usize),
    /// So many elements follow.
    Tuple(usize),
    /// So many pairs of a key and a value follow.
    Map(usize),
    /// A date.
    Date(Date),
    /// A time.
    Time(Time),
    /// A date and time without a time zone.
    Naive(Date, Time),
    /// One with its offset from UTC, in seconds.
    Aware(Date, Time, i32),
    /// Bytes that are elsewhere.
    Memory(Memory),
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It ends before it is complete.
    Cut,
    /// There is more behind its end.
    Trailing,
    /// It has a marker, extension or text that is not allowed.
    Malformed,
}

/// Takes a message apart.
#[derive(Debug)]
pub struct Reader<'m> {
    rest: &'m [u8],
}

impl<'m> Reader<'m> {
    /// A message of these bytes.
    pub fn new(message: &'m [u8]) -> Self {
        Self { rest: message }
    }

    /// # Errors
    ///
    /// [`Fault::Trailing`] if there is more.
    pub fn finish(&self) -> Result<(), Fault> {
        if self.rest.is_empty() { Ok(()) } else { Err(Fault::Trailing) }
    }

    /// The next token.
    ///
    /// A number of elements is never more than there are bytes left, so that room for them can be reserved.
    ///
    /// # Errors
    ///
    /// See [`Fault`].
    pub fn token(&mut self) -> Result<Token<'m>, Fault> {
        let token = match read_marker(&mut self.rest).map_err(|_| Fault::Cut)? {
            Marker::Null => Token::Nil,
            Marker::True => Token::Bool(true),
            Marker::False => Token::Bool(false),
            Marker::FixPos(value) => Token::Int(value.into()),
            Marker::FixNeg(value) => Token::Int(value.into()),
            Marker::U8 => Token::Int(self.number::<1>()?.into()),
            Marker::U16 => Token::Int(u16::from_be_bytes(self.bytes()?).into()),
            Marker::U32 => Token::Int(u32::from_be_bytes(self.bytes()?).into()),
            Marker::U64 => {
                let value = u64::from_be_bytes(self.bytes()?);
                i64::try_from(value).map_or(Token::Uint(value), Token::Int)
            }
            Marker::I8 => Token::Int(i8::from_be_bytes(self.bytes()?).into()),
            Marker::I16 => Token::Int(i16::from_be_bytes(self.bytes()?).into()),
            Marker::I32 => Token::Int(i32::from_be_bytes(self.bytes()?).into()),
            Marker::I64 => Token::Int(i64::from_be_bytes(self.bytes()?)),
            Marker::F32 => Token::Float(f32::from_be_bytes(self.bytes()?).into()),
            Marker::F64 => Token::Float(f64::from_be_bytes(self.bytes()?)),
            Marker::FixStr(length) => self.text(length.into())?,
            Marker::Str8 => self.sized::<1>(Self::text)?,
            Marker::Str16 => self.sized::<2>(Self::text)?,
            Marker::Str32 => self.sized::<4>(Self::text)?,
            Marker::Bin8 => self.sized::<1>(Self::blob)?,
            Marker::Bin16 => self.sized::<2>(Self::blob)?,
            Marker::Bin32 => self.sized::<4>(Self::blob)?,
            Marker::FixArray(length) => self.list(length.into())?,
            Marker::Array16 => self.sized::<2>(Self::list)?,
            Marker::Array32 => self.sized::<4>(Self::list)?,
            Marker::FixMap(length) => self.map(length.into())?,
            Marker::Map16 => self.sized::<2>(Self::map)?,
            Marker::Map32 => self.sized::<4>(Self::map)?,
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 => self.sized::<1>(Self::extension)?,
            Marker::Ext16 => self.sized::<2>(Self::extension)?,
            Marker::Ext32 => self.sized::<4>(Self::extension)?,
            Marker::Reserved => return Err(Fault::Malformed),
        };
        Ok(token)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.rest.read_exact_buf(&mut bytes).map_err(|_| Fault::Cut)?;
        Ok(bytes)
    }

    fn number<const N: usize>(&mut self) -> Result<u32, Fault> {
        Ok(self.bytes::<N>()?.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    }

    fn sized<const N: usize>(
        &mut self,
        then: impl FnOnce(&mut Self, usize) -> Result<Token<'m>, Fault>,
    ) -> Result<Token<'m>, Fault> {
        let length = self.number::<N>()?;
        then(self, length as usize)
    }

    fn take(&mut self, length: usize) -> Result<&'m [u8], Fault> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Fault::Cut)?;
        self.rest = rest;
        Ok(taken)
    }

    fn text(&mut self, length: usize) -> Result<Token<'m>, Fault> {
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| Fault::Malformed)?;
        Ok(Token::Text(text))
    }

    fn blob(&mut self, length: usize) -> Result<Token<'m>, Fault> {
        self.take(length).map(Token::Bytes)
    }

    fn list(&mut self, length: usize) -> Result<Token<'m>, Fault> {
        self.at_least(length)?;
        Ok(Token::List(length))
    }

    fn map(&mut self, length: usize) -> Result<Token<'m>, Fault> {
        self.at_least(length.saturating_mul(2))?;
        Ok(Token::Map(length))
    }

    /// Each element has a byte at least.
    fn at_least(&self, elements: usize) -> Result<(), Fault> {
        if elements <= self.rest.len() { Ok(()) } else { Err(Fault::Cut) }
    }

    fn extension(&mut self, length: usize) -> Result<Token<'m>, Fault> {
        let code = i8::from_be_bytes(self.bytes()?);
        if code == TUPLE {
            // Its payload is what comes next.
            return match self.token()? {
                Token::List(length) => Ok(Token::Tuple(length)),
                _ => Err(Fault::Malformed),
            };
        }
        let mut payload = Self { rest: self.take(length)? };
        let token = match code {
            BIG_INTEGER => {
                let negative = payload.number::<1>()? != 0;
                return Ok(Token::BigInteger(negative, payload.rest));
            }
            ATOM => return Ok(Token::Atom(payload.rest)),
            DATE => Token::Date(payload.date()?),
            TIME => Token::Time(payload.time()?),
            NAIVE => Token::Naive(payload.date()?, payload.time()?),
            AWARE => {
                let (date, time) = (payload.date()?, payload.time()?);
                Token::Aware(date, time, i32::from_be_bytes(payload.bytes()?))
            }
            MEMORY => Token::Memory(Memory {
                pid: payload.number::<4>()?,
                fd: payload.number::<4>()?,
                length: u64::from_be_bytes(payload.bytes()?),
            }),
            _ => return Err(Fault::Malformed),
        };
        payload.finish().map_err(|_| Fault::Malformed)?;
        Ok(token)
    }

    fn date(&mut self) -> Result<Date, Fault> {
        let year = i16::from_be_bytes(self.bytes()?);
        let [month, day] = self.bytes()?;
        Ok(Date { year, month, day })
    }

    fn time(&mut self) -> Result<Time, Fault> {
        let [hour, minute, second] = self.bytes()?;
        Ok(Time { hour, minute, second, microsecond: self.number::<4>()? })
    }
}

/// Puts a message together.
///
/// Nothing of it fails: the only writer is memory.
#[derive(Debug, Default)]
pub struct Writer {
    message: Vec<u8>,
}

impl Writer {
    /// A message that begins with these bytes.
    pub fn after(head: &[u8]) -> Self {
        Self { message: head.to_vec() }
    }

    /// What has been written.
    pub fn into_message(self) -> Vec<u8> {
        self.message
    }

    /// How long it is so far.
    pub fn length(&self) -> usize {
        self.message.len()
    }

    /// `None`
    pub fn nil(&mut self) {
        let _ = put::write_nil(&mut self.message);
    }

    /// `True` or `False`
    pub fn bool(&mut self, value: bool) {
        let _ = put::write_bool(&mut self.message, value);
    }

    /// An integer, in as few bytes as it takes.
    pub fn int(&mut self, value: i64) {
        let _ = put::write_sint(&mut self.message, value);
    }

    /// An integer that may be above the signed ones.
    pub fn uint(&mut self, value: u64) {
        let _ = put::write_uint(&mut self.message, value);
    }

    /// One of more than 64 bits, by its magnitude, least significant byte first.
    pub fn big_integer(&mut self, negative: bool, magnitude: &[u8]) {
        self.head(BIG_INTEGER, magnitude.len() + 1);
        self.message.push(negative.into());
        self.message.extend_from_slice(magnitude);
    }

    /// A float.
    pub fn float(&mut self, value: f64) {
        let _ = put::write_f64(&mut self.message, value);
    }

    /// Text.
    pub fn text(&mut self, text: &str) {
        let _ = put::write_str(&mut self.message, text);
    }

    /// Bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let _ = put::write_bin(&mut self.message, bytes);
    }

    /// An atom, by its name.
    pub fn atom(&mut self, name: &str) {
        self.head(ATOM, name.len());
        self.message.extend_from_slice(name.as_bytes());
    }

    /// So many elements follow.
    pub fn list(&mut self, length: u32) {
        let _ = put::write_array_len(&mut self.message, length);
    }

    /// So many pairs follow.
    pub fn map(&mut self, length: u32) {
        let _ = put::write_map_len(&mut self.message, length);
    }

    /// So many elements follow, and [`Writer::end_tuple`] with what this returns.
    pub fn begin_tuple(&mut self, length: u32) -> usize {
        self.message.extend_from_slice(&[0xc9, 0, 0, 0, 0, TUPLE.to_be_bytes()[0]]);
        let begin = self.message.len();
        self.list(length);
        begin
    }

    /// How long a tuple is, is known now.
    pub fn end_tuple(&mut self, begin: usize) {
        let length = u32::try_from(self.message.len() - begin).unwrap_or(u32::MAX);
        self.message[begin - 5..begin - 1].copy_from_slice(&length.to_be_bytes());
    }

    /// A date.
    pub fn date(&mut self, date: Date) {
        self.head(DATE, 4);
        self.put_date(date);
    }

    /// A time.
    pub fn time(&mut self, time: Time) {
        self.head(TIME, 7);
        self.put_time(time);
    }

    /// A date and time without a time zone.
    pub fn naive(&mut self, date: Date, time: Time) {
        self.head(NAIVE, 11);
        self.put_date(date);
        self.put_time(time);
    }

    /// One with its offset from UTC in seconds.
    pub fn aware(&mut self, date: Date, time: Time, offset: i32) {
        self.head(AWARE, 15);
        self.put_date(date);
        self.put_time(time);
        self.message.extend_from_slice(&offset.to_be_bytes());
    }

    /// Bytes that are elsewhere.
    pub fn memory(&mut self, memory: Memory) {
        self.head(MEMORY, 16);
        self.message.extend_from_slice(&memory.pid.to_be_bytes());
        self.message.extend_from_slice(&memory.fd.to_be_bytes());
        self.message.extend_from_slice(&memory.length.to_be_bytes());
    }

    fn put_date(&mut self, date: Date) {
        self.message.extend_from_slice(&date.year.to_be_bytes());
        self.message.extend_from_slice(&[date.month, date.day]);
    }

    fn put_time(&mut self, time: Time) {
        self.message.extend_from_slice(&[time.hour, time.minute, time.second]);
        self.message.extend_from_slice(&time.microsecond.to_be_bytes());
    }

    fn head(&mut self, code: i8, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let _ = put::write_ext_meta(&mut self.message, length, code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(message: &[u8]) -> Result<Vec<Token<'_>>, Fault> {
        let mut reader = Reader::new(message);
        let mut tokens = Vec::new();
        while reader.finish().is_err() {
            tokens.push(reader.token()?);
        }
        Ok(tokens)
    }

    #[test]
    fn what_was_written_is_read() {
        let date = Date { year: 2024, month: 2, day: 29 };
        let time = Time { hour: 23, minute: 59, second: 58, microsecond: 999_999 };
        let memory = Memory { pid: 1, fd: 2, length: 1 << 40 };
        let mut writer = Writer::default();
        writer.nil();
        writer.bool(true);
        writer.int(-1);
        writer.int(i64::MIN);
        writer.uint(u64::MAX);
        writer.big_integer(true, &[0; 9]);
        writer.float(f64::NEG_INFINITY);
        writer.text("ü");
        writer.bytes(&[255]);
        writer.atom("ok");
        writer.list(1);
        let begin = writer.begin_tuple(1);
        writer.nil();
        writer.end_tuple(begin);
        writer.map(1);
        writer.date(date);
        writer.time(time);
        writer.naive(date, time);
        writer.aware(date, time, -3600);
        writer.memory(memory);
        let expected = [
            Token::Nil,
            Token::Bool(true),
            Token::Int(-1),
            Token::Int(i64::MIN),
            Token::Uint(u64::MAX),
            Token::BigInteger(true, &[0; 9]),
            Token::Float(f64::NEG_INFINITY),
            Token::Text("ü"),
            Token::Bytes(&[255]),
            Token::Atom(b"ok"),
            Token::List(1),
            Token::Tuple(1),
            Token::Nil,
            Token::Map(1),
            Token::Date(date),
            Token::Time(time),
            Token::Naive(date, time),
            Token::Aware(date, time, -3600),
            Token::Memory(memory),
        ];
        assert_eq!(tokens(&writer.into_message()).unwrap(), expected);
    }

    #[test]
    fn a_number_of_elements_that_are_not_there_is_not_believed() {
        assert_eq!(tokens(&[0xdd, 255, 255, 255, 255]), Err(Fault::Cut));
        assert_eq!(tokens(&[0xdf, 255, 255, 255, 255, 1]), Err(Fault::Cut));
    }

    #[test]
    fn a_message_that_is_cut_anywhere_is_refused() {
        let mut writer = Writer::default();
        writer.text("some text");
        let message = writer.into_message();
        for length in 1..message.len() {
            assert_eq!(tokens(&message[..length]), Err(Fault::Cut), "{length}");
        }
    }

    #[test]
    fn what_is_not_messagepack_is_refused() {
        assert_eq!(tokens(&[0xc1]), Err(Fault::Malformed));
        // Text that is not UTF-8.
        assert_eq!(tokens(&[0xa1, 0xff]), Err(Fault::Malformed));
        // An extension that nobody knows, and a tuple that is none.
        assert_eq!(tokens(&[0xd4, 99, 0]), Err(Fault::Malformed));
        assert_eq!(tokens(&[0xd4, 2, 0xc0]), Err(Fault::Malformed));
        // A date that is too long.
        assert_eq!(tokens(&[0xd7, 4, 0, 0, 0, 0, 0, 0, 0, 0]), Err(Fault::Malformed));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_much(message: Vec<u8>) {
            let _ = tokens(&message);
        }
    }
}
