//! The last output of a child, in bounded memory.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::unistd::read;

/// How much is read at a time. One read per turn of the loop: a flood does not keep others waiting.
const CHUNK: usize = 16_384;

/// The reading end of a child's output and what came out of it last. A quiet child costs a
/// descriptor and no memory.
pub struct Tail {
    pub output: OwnedFd,
    limit: usize,
    bytes: Vec<u8>,
}

impl Tail {
    pub fn new(output: OwnedFd, limit: usize) -> Self {
        Self { output, limit, bytes: Vec::new() }
    }

    /// `read(2)`, once. Returns false when no process can write any more.
    pub fn read(&mut self) -> bool {
        self.read_once() != Ok(0)
    }

    /// `read(2)` of what is there now, and no more: a process that still writes may go on forever.
    fn drain(&mut self) {
        // A pipe holds four chunks, or 64 if its writer has enlarged it.
        for _ in 0..64 {
            if !matches!(self.read_once(), Ok(count) if count > 0) {
                break;
            }
        }
    }

    /// Returns the last bytes, with all that has been written up to now.
    pub fn snapshot(&mut self) -> Vec<u8> {
        self.drain();
        self.content().to_vec()
    }

    /// Returns the last bytes, oldest first.
    fn content(&self) -> &[u8] {
        &self.bytes[self.bytes.len().saturating_sub(self.limit)..]
    }

    fn read_once(&mut self) -> Result<usize, Errno> {
        let mut chunk = [0; CHUNK];
        let count = read(&self.output, &mut chunk)?;
        let new = &chunk[count.saturating_sub(self.limit)..count];
        // ChildResources up to twice the limit, so that old bytes move once per limit and not once per read.
        if self.bytes.len() + new.len() > 2 * self.limit {
            let surplus = (self.bytes.len() + new.len() - self.limit).min(self.bytes.len());
            self.bytes.drain(..surplus);
        }
        self.bytes.extend_from_slice(new);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::OFlag;
    use nix::unistd::{pipe2, write};

    #[test]
    fn the_end_is_kept_and_no_more() {
        let (output, input) = pipe2(OFlag::O_NONBLOCK).unwrap();
        let mut tail = Tail::new(output, 10);
        let mut all = Vec::new();
        for round in 0..1000_u32 {
            let text = format!("{round};");
            all.extend_from_slice(text.as_bytes());
            write(&input, text.as_bytes()).unwrap();
            assert!(tail.read());
            assert_eq!(tail.content(), &all[all.len().saturating_sub(10)..]);
            assert!(tail.bytes.capacity() <= 64);
        }
        write(&input, &[b'x'; 5000]).unwrap();
        tail.drain();
        assert_eq!(tail.content(), [b'x'; 10]);
        drop(input);
        assert!(!tail.read());
    }

    #[test]
    fn a_limit_of_nothing_keeps_nothing() {
        let (output, input) = pipe2(OFlag::O_NONBLOCK).unwrap();
        let mut tail = Tail::new(output, 0);
        write(&input, b"abc").unwrap();
        assert!(tail.read());
        assert_eq!(tail.content(), b"");
    }
}
