//! Which connection belongs to which token.
//!
//! The BEAM connects, shows a token that it has made up, and then asks for a child with that token. A
//! connection has no owner until then, and there are bounds to how many of these are kept.

use std::collections::{BTreeMap, HashMap};

/// Bytes of a token.
pub const TOKEN: usize = 16;
/// Connections that have not shown a token yet, and those that no child has been given yet, at the most
/// each. Beyond that the oldest goes.
const MAX: usize = 4096;

/// The connections of type `C` that no child has.
#[derive(Debug)]
pub struct Connections<C> {
    /// By number, so the oldest is first.
    nameless: BTreeMap<u64, C>,
    named: BTreeMap<u64, ([u8; TOKEN], C)>,
    numbers: HashMap<[u8; TOKEN], u64>,
    next: u64,
    /// Who was last looked at.
    looked_at: u64,
}

impl<C> Default for Connections<C> {
    fn default() -> Self {
        let (nameless, named, numbers) = Default::default();
        Self { nameless, named, numbers, next: 0, looked_at: 0 }
    }
}

impl<C> Connections<C> {
    /// Keeps a connection that has not shown its token yet; returns its number.
    pub fn accept(&mut self, connection: C) -> u64 {
        self.next += 1;
        self.nameless.insert(self.next, connection);
        if self.nameless.len() > MAX {
            self.nameless.pop_first();
        }
        self.next
    }

    /// The numbers of those that have not shown a token yet.
    pub fn nameless(&self) -> Vec<u64> {
        self.nameless.keys().copied().collect()
    }

    /// One that has not shown a token yet.
    pub fn get(&self, number: u64) -> Option<&C> {
        self.nameless.get(&number)
    }

    /// Drops one that has not shown a token, or showed something else.
    pub fn dismiss(&mut self, number: u64) {
        self.nameless.remove(&number);
    }

    /// It has shown its token.
    pub fn name(&mut self, number: u64, token: [u8; TOKEN]) {
        let Some(connection) = self.nameless.remove(&number) else { return };
        self.numbers.insert(token, number);
        self.named.insert(number, (token, connection));
        if self.named.len() > MAX {
            if let Some((oldest, (token, _))) = self.named.pop_first() {
                self.forget(token, oldest);
            }
        }
    }

    /// The connection that was opened with this token, for a child to own.
    pub fn take(&mut self, token: &[u8]) -> Option<C> {
        let token: [u8; TOKEN] = token.try_into().ok()?;
        let number = self.numbers.remove(&token)?;
        self.named.remove(&number).map(|(_, connection)| connection)
    }

    /// The next one in turn that waits for its child, to see whether the other side has left. More than
    /// one is looked at for each that comes, so that they get fewer; not all, because thousands may come.
    pub fn in_turn(&mut self) -> Option<(u64, &C)> {
        let next = self.named.range(self.looked_at + 1..).next();
        let number = *next.or_else(|| self.named.first_key_value())?.0;
        self.looked_at = number;
        self.named.get(&number).map(|(_, connection)| (number, connection))
    }

    /// Drops one that waits for its child.
    pub fn drop_named(&mut self, number: u64) {
        if let Some((token, _)) = self.named.remove(&number) {
            self.forget(token, number);
        }
    }

    // Two may have shown the same token; the later one has it.
    fn forget(&mut self, token: [u8; TOKEN], number: u64) {
        if self.numbers.get(&token) == Some(&number) {
            self.numbers.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> [u8; TOKEN] {
        u128::from(number).to_be_bytes()
    }

    #[test]
    fn a_connection_is_taken_once_and_by_its_token() {
        let mut connections = Connections::default();
        for name in 0..10 {
            let number = connections.accept(name);
            connections.name(number, token(name));
        }
        assert_eq!(connections.take(&token(7)), Some(7));
        assert_eq!(connections.take(&token(7)), None);
        assert_eq!(connections.take(b"short"), None);
        assert_eq!(connections.take(&token(3)), Some(3));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let mut connections = Connections::default();
        for name in 0..2 * MAX as u64 {
            let number = connections.accept(name);
            connections.name(number, token(name));
        }
        assert_eq!(connections.take(&token(MAX as u64 - 1)), None);
        assert_eq!(connections.take(&token(MAX as u64)), Some(MAX as u64));
        for name in 0..2 * MAX as u64 {
            connections.accept(name);
        }
        assert_eq!(connections.nameless().len(), MAX);
        assert_eq!(connections.numbers.len(), connections.named.len());
    }

    #[test]
    fn each_is_looked_at_in_turn() {
        let mut connections = Connections::default();
        let numbers: Vec<u64> = (0..3)
            .map(|name| {
                let number = connections.accept(name);
                connections.name(number, token(name));
                number
            })
            .collect();
        let mut turns = || connections.in_turn().map(|(number, _)| number).unwrap();
        assert_eq!([turns(), turns(), turns(), turns()], [1, 2, 3, 1]);
        connections.drop_named(numbers[1]);
        assert_eq!(connections.take(&token(1)), None);
        assert_eq!(connections.in_turn().map(|(number, _)| number), Some(3));
    }
}
