//! Reads the external term format of Erlang: the ledger's records and the history of runs are terms.
//!
//! What is read may be damaged or made up, so nothing is believed: a length beyond the bytes that are there, a
//! nesting deeper than any record's, or a kind of term that no record has, make it no term. Atoms are text here, and
//! none is made. Compressed terms are not read: they may be many times longer than their bytes.

/// A term of the kinds that records are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// An atom, by its name.
    Atom(String),
    /// An integer that fits.
    Integer(i64),
    /// One that fits without a sign only: some checksums.
    Natural(u64),
    /// A binary.
    Binary(Vec<u8>),
    /// A list; a proper one.
    List(Vec<Term>),
    /// A tuple.
    Tuple(Vec<Term>),
    /// A map, in the order in which it was written.
    Map(Vec<(Term, Term)>),
}

/// The byte in front of each term.
pub const VERSION: u8 = 131;

/// Deeper than any record.
const DEPTH: usize = 16;

impl Term {
    /// Returns the term that these bytes are, all of them.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (term, used) = Self::decode_prefix(bytes)?;
        (used == bytes.len()).then_some(term)
    }

    /// Returns the term that these bytes begin with, and how many of them it takes.
    pub fn decode_prefix(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut reader = Reader { rest: bytes.strip_prefix(&[VERSION])? };
        let term = reader.term(DEPTH)?;
        Some((term, bytes.len() - reader.rest.len()))
    }

    /// Returns what a map has under this atom.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(pairs) = self else { return None };
        pairs.iter().find(|(name, _)| name.atom() == Some(key)).map(|(_, value)| value)
    }

    /// Its name, if it is an atom.
    pub fn atom(&self) -> Option<&str> {
        if let Self::Atom(name) = self { Some(name) } else { None }
    }

    /// Its value, if it is an integer.
    pub fn integer(&self) -> Option<i64> {
        if let Self::Integer(value) = self { Some(*value) } else { None }
    }

    /// Its bytes, if it is a binary.
    pub fn binary(&self) -> Option<&[u8]> {
        if let Self::Binary(bytes) = self { Some(bytes) } else { None }
    }

    /// Its bytes as text, if it is a binary of UTF-8.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.binary()?).ok()
    }

    /// Its elements, if it is a list.
    pub fn list(&self) -> Option<&[Self]> {
        if let Self::List(elements) = self { Some(elements) } else { None }
    }

    /// Its elements, if it is a tuple.
    pub fn tuple(&self) -> Option<&[Self]> {
        if let Self::Tuple(elements) = self { Some(elements) } else { None }
    }

    /// Whether it is the atom `nil`.
    pub fn is_nil(&self) -> bool {
        self.atom() == Some("nil")
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn term(&mut self, depth: usize) -> Option<Term> {
        let depth = depth.checked_sub(1)?;
        match self.byte()? {
            97 => Some(Term::Integer(self.byte()?.into())),
            98 => Some(Term::Integer(i32::from_be_bytes(self.array()?).into())),
            // Latin-1 is what Erlang wrote before atoms were UTF-8. No record has such an atom with an umlaut.
            100 | 118 => {
                let length = u16::from_be_bytes(self.array()?).into();
                self.atom(length)
            }
            115 | 119 => {
                let length = self.byte()?.into();
                self.atom(length)
            }
            104 => {
                let count = self.byte()?.into();
                self.terms(count, depth).map(Term::Tuple)
            }
            105 => {
                let count = self.length()?;
                self.terms(count, depth).map(Term::Tuple)
            }
            106 => Some(Term::List(Vec::new())),
            // A list of small integers.
            107 => {
                let length = u16::from_be_bytes(self.array()?).into();
                let bytes = self.take(length)?;
                Some(Term::List(bytes.iter().map(|byte| Term::Integer((*byte).into())).collect()))
            }
            108 => {
                let count = self.length()?;
                let elements = self.terms(count, depth)?;
                (self.byte()? == 106).then_some(Term::List(elements))
            }
            109 => {
                let length = self.length()?;
                self.take(length).map(|bytes| Term::Binary(bytes.to_vec()))
            }
            110 => self.big(),
            116 => {
                let count = self.length()?;
                let terms = self.terms(count.checked_mul(2)?, depth)?;
                let mut terms = terms.into_iter();
                let pairs = std::iter::from_fn(|| Some((terms.next()?, terms.next()?)));
                Some(Term::Map(pairs.collect()))
            }
            _ => None,
        }
    }

    /// Each takes a byte at least, so a count beyond the bytes that are there is no reason to allocate.
    fn terms(&mut self, count: usize, depth: usize) -> Option<Vec<Term>> {
        if count > self.rest.len() {
            return None;
        }
        let mut terms = Vec::new();
        for _ in 0..count {
            terms.push(self.term(depth)?);
        }
        Some(terms)
    }

    /// A sign, and the digits to the base 256, the least first.
    fn big(&mut self) -> Option<Term> {
        let length: usize = self.byte()?.into();
        let negative = match self.byte()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let digits = self.take(length)?;
        let mut bytes = [0; 8];
        bytes.get_mut(..length)?.copy_from_slice(digits);
        let natural = u64::from_le_bytes(bytes);
        let value = i128::from(natural);
        match i64::try_from(if negative { -value } else { value }) {
            Ok(value) => Some(Term::Integer(value)),
            Err(_) => (!negative).then_some(Term::Natural(natural)),
        }
    }

    fn atom(&mut self, length: usize) -> Option<Term> {
        let name = std::str::from_utf8(self.take(length)?).ok()?;
        Some(Term::Atom(name.to_owned()))
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(u32::from_be_bytes(self.array()?)).ok()
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*array)
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `term_to_binary(#{run_id => <<"ab">>, list => [1, -1, 300], ok => {nil, "hi", 16#1122334455}})`
    const SAMPLE: &[u8] = &[
        131, 116, 0, 0, 0, 3, 119, 4, b'l', b'i', b's', b't', 108, 0, 0, 0, 3, 97, 1, 98, 255, 255,
        255, 255, 98, 0, 0, 1, 44, 106, 119, 2, b'o', b'k', 104, 3, 119, 3, b'n', b'i', b'l', 107,
        0, 2, b'h', b'i', 110, 5, 0, 0x55, 0x44, 0x33, 0x22, 0x11, 119, 6, b'r', b'u', b'n', b'_',
        b'i', b'd', 109, 0, 0, 0, 2, b'a', b'b',
    ];

    #[test]
    fn what_erlang_has_written_is_read() {
        let term = Term::decode(SAMPLE).unwrap();
        assert_eq!(term.get("run_id").unwrap().text(), Some("ab"));
        let numbers = [1, -1, 300].map(Term::Integer);
        assert_eq!(term.get("list").unwrap().list().unwrap(), numbers);
        let tuple = term.get("ok").unwrap().tuple().unwrap();
        assert!(tuple[0].is_nil());
        assert_eq!(tuple[1].list().unwrap().len(), 2);
        assert_eq!(tuple[2].integer(), Some(0x11_2233_4455));
        assert_eq!(term.get("none"), None);
    }

    #[test]
    fn what_was_cut_is_no_term_and_what_follows_is_left() {
        for length in 0..SAMPLE.len() {
            assert_eq!(Term::decode(&SAMPLE[..length]), None, "{length} bytes");
        }
        let longer = [SAMPLE, &[1, 2, 3]].concat();
        assert_eq!(Term::decode(&longer), None);
        assert_eq!(Term::decode_prefix(&longer).unwrap().1, SAMPLE.len());
    }

    #[test]
    fn a_length_that_lies_and_a_bottomless_term_are_refused() {
        for tag in [105, 108, 109, 116] {
            assert_eq!(Term::decode(&[131, tag, 255, 255, 255, 255, 97, 1]), None);
        }
        let deep = [vec![131], [104, 1].repeat(1_000_000), vec![106]].concat();
        assert_eq!(Term::decode(&deep), None);
        // Compressed; a pid; a function.
        for tag in [80, 88, 112] {
            assert_eq!(Term::decode(&[131, tag, 0, 0, 0, 1, 0, 0]), None);
        }
        let large = [131, 110, 9, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        assert_eq!(Term::decode(&large), None);
        assert_eq!(
            Term::decode(&[131, 110, 8, 1, 0, 0, 0, 0, 0, 0, 0, 128]),
            Some(Term::Integer(i64::MIN))
        );
    }
}
