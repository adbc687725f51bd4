//! Which connection belongs to which token.
//!
//! The BEAM connects, sends a token that it has made up, and then asks for a child with that token. A
//! connection has no owner until then, and there are bounds to how many of these are kept.

use std::collections::{BTreeMap, HashMap};

/// Bytes of a token.
pub const TOKEN: usize = 16;
/// The most connections that have not sent a token yet, and the most that no child owns yet. Beyond that the
/// oldest goes.
const MAX: usize = 4096;

/// The connections of type `C` that no child owns.
#[derive(Debug)]
pub struct Connections<C> {
    /// By number, so the oldest is first.
    pending: BTreeMap<u64, C>,
    authenticated: BTreeMap<u64, ([u8; TOKEN], C)>,
    numbers: HashMap<[u8; TOKEN], u64>,
    next: u64,
    /// The number that was last checked.
    last_checked: u64,
}

impl<C> Default for Connections<C> {
    fn default() -> Self {
        let (pending, authenticated, numbers) = Default::default();
        Self { pending, authenticated, numbers, next: 0, last_checked: 0 }
    }
}

impl<C> Connections<C> {
    /// Adds a connection that has not sent its token yet; returns its number.
    pub fn accept(&mut self, connection: C) -> u64 {
        self.next += 1;
        self.pending.insert(self.next, connection);
        if self.pending.len() > MAX {
            self.pending.pop_first();
        }
        self.next
    }

    /// Returns the numbers of those that have not sent a token yet.
    pub fn pending(&self) -> Vec<u64> {
        self.pending.keys().copied().collect()
    }

    /// Returns one that has not sent a token yet.
    pub fn get(&self, number: u64) -> Option<&C> {
        self.pending.get(&number)
    }

    /// Removes and returns one that has not sent a token.
    pub fn take_pending(&mut self, number: u64) -> Option<C> {
        self.pending.remove(&number)
    }

    /// Drops one that has not sent a token, or sent something else.
    pub fn drop_pending(&mut self, number: u64) {
        self.pending.remove(&number);
    }

    /// Records the token that a connection has sent.
    pub fn authenticate(&mut self, number: u64, token: [u8; TOKEN]) {
        let Some(connection) = self.pending.remove(&number) else { return };
        self.numbers.insert(token, number);
        self.authenticated.insert(number, (token, connection));
        if self.authenticated.len() > MAX {
            if let Some((oldest, (token, _))) = self.authenticated.pop_first() {
                self.forget(token, oldest);
            }
        }
    }

    /// Returns the connection that was opened with this token, for a child to own.
    pub fn take(&mut self, token: &[u8]) -> Option<C> {
        let token: [u8; TOKEN] = token.try_into().ok()?;
        let number = self.numbers.remove(&token)?;
        self.authenticated.remove(&number).map(|(_, connection)| connection)
    }

    /// Returns the next one in turn that waits for its child, to check whether its peer has closed it. More
    /// than one is checked for each that comes, so that they get fewer; not all, because thousands may come.
    pub fn next_to_check(&mut self) -> Option<(u64, &C)> {
        let next = self.authenticated.range(self.last_checked + 1..).next();
        let number = *next.or_else(|| self.authenticated.first_key_value())?.0;
        self.last_checked = number;
        self.authenticated.get(&number).map(|(_, connection)| (number, connection))
    }

    /// Drops one that waits for its child.
    pub fn drop_authenticated(&mut self, number: u64) {
        if let Some((token, _)) = self.authenticated.remove(&number) {
            self.forget(token, number);
        }
    }

    // Two may have sent the same token; the later one has it.
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
            connections.authenticate(number, token(name));
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
            connections.authenticate(number, token(name));
        }
        assert_eq!(connections.take(&token(MAX as u64 - 1)), None);
        assert_eq!(connections.take(&token(MAX as u64)), Some(MAX as u64));
        for name in 0..2 * MAX as u64 {
            connections.accept(name);
        }
        assert_eq!(connections.pending().len(), MAX);
        assert_eq!(connections.numbers.len(), connections.authenticated.len());
    }

    #[test]
    fn each_is_checked_in_turn() {
        let mut connections = Connections::default();
        let numbers: Vec<u64> = (0..3)
            .map(|name| {
                let number = connections.accept(name);
                connections.authenticate(number, token(name));
                number
            })
            .collect();
        let mut turns = || connections.next_to_check().map(|(number, _)| number).unwrap();
        assert_eq!([turns(), turns(), turns(), turns()], [1, 2, 3, 1]);
        connections.drop_authenticated(numbers[1]);
        assert_eq!(connections.take(&token(1)), None);
        assert_eq!(connections.next_to_check().map(|(number, _)| number), Some(3));
    }
}
