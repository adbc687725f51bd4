//! Bytes as a list of decisions, for checks that build something valid first. When they are used up
//! there are zeroes and empty strings.

pub struct Script<'a>(pub &'a [u8]);

impl<'a> Script<'a> {
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub fn number(&mut self) -> u64 {
        self.take(8).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    pub fn signed(&mut self) -> i64 {
        self.number() as i64
    }

    pub fn index(&mut self, length: usize) -> usize {
        (self.number() % length.max(1) as u64) as usize
    }

    /// One byte of length, then that many.
    pub fn string(&mut self) -> &'a [u8] {
        let length = self.byte();
        self.take(length.into())
    }

    pub fn optional<T>(&mut self, next: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.byte() % 2 == 1).then(|| next(self))
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
