//! Entries on their way into a journal, and who waits for them.
//!
//! A `write` to a disk may take as long as the disk likes: a file system that is frozen for a snapshot, a
//! transaction that commits, a limit of dirty pages. `RWF_NOWAIT` is no way around it: ext4 does not know
//! it for writes through the page cache, and a frozen file system makes it wait on all of them. So whoever
//! must not wait puts its entry here, which takes no system call, and one thread that may wait writes
//! everything that has come together.
//!
//! To hand something to another thread costs tens of microseconds, and far more where processors are busy.
//! So who need not know that its entry is written leaves a *note*: no thread is woken for it, and the next
//! write takes it along.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;
use crate::journal::Journal;

/// Entries that are not written yet; `W` is the waiter of one.
#[derive(Debug)]
pub struct Queue<W> {
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    /// A note has no waiter.
    entries: Vec<(Option<W>, Vec<u8>)>,
    /// Whether someone is writing, who will not end before the queue is empty.
    writing: bool,
    /// Whether the last write failed.
    failing: bool,
}

impl<W> Default for Queue<W> {
    fn default() -> Self {
        let state = State { entries: Vec::new(), writing: false, failing: false };
        Self { state: Mutex::new(state) }
    }
}

impl<W> Queue<W> {
    /// Adds an entry. Returns whether the caller has to see to it that [`Queue::write_all`] is called;
    /// otherwise someone is at it. If that caller does not come so far, the next one is asked to.
    pub fn push(&self, waiter: W, content: Vec<u8>) -> bool {
        let mut state = self.lock();
        state.entries.push((Some(waiter), content));
        !state.writing
    }

    /// Adds a note, which the next write takes along. False, and it is not added, if the last write failed:
    /// then the caller has to append it, and gets the error.
    pub fn note(&self, content: &[u8]) -> bool {
        let mut state = self.lock();
        if !state.failing {
            state.entries.push((None, content.to_vec()));
        }
        !state.failing
    }

    /// Whether there is nothing to be written.
    pub fn is_empty(&self) -> bool {
        self.lock().entries.is_empty()
    }

    /// Writes what has been added, and what is added meanwhile, and calls `answer` for each one's waiter. Returns
    /// at once if another thread does so: however many call this, one waits for the disk.
    pub fn write_all(&self, journal: &Journal, mut answer: impl FnMut(W, Result<(), Error>)) {
        if std::mem::replace(&mut self.lock().writing, true) {
            return;
        }
        let _unless_it_panics = Writing(self);
        loop {
            let mut state = self.lock();
            let batch = std::mem::take(&mut state.entries);
            // Order: with the lock held. A thread that adds an entry after this sees that none is writing.
            state.writing = !batch.is_empty();
            drop(state);
            if batch.is_empty() {
                return;
            }
            let failed = write(journal, batch, &mut answer);
            self.lock().failing = failed;
        }
    }

    // Held for no system call.
    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All in one, or, if that fails, each by itself: one that is too long, or for which there is no room, is
/// no reason to refuse the others. Returns whether any failed.
fn write<W>(
    journal: &Journal,
    batch: Vec<(Option<W>, Vec<u8>)>,
    answer: &mut impl FnMut(W, Result<(), Error>),
) -> bool {
    let contents: Vec<&[u8]> = batch.iter().map(|(_, content)| content.as_slice()).collect();
    let whole = journal.append_all(&contents).is_ok();
    let mut failed = false;
    for (waiter, content) in batch {
        let result = if whole { Ok(()) } else { journal.append(&content) };
        failed |= result.is_err();
        if let Some(waiter) = waiter {
            answer(waiter, result);
        }
    }
    failed
}

/// While it lives someone is writing.
struct Writing<'q, W>(&'q Queue<W>);

impl<W> Drop for Writing<'_, W> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().writing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier, mpsc};
    use std::thread;

    use super::*;
    use crate::journal;

    fn journal_in(name: &str, max_bytes: u64) -> (std::path::PathBuf, Journal) {
        let name = format!("snakepit_queue_{name}_{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let journal = Journal::open(&path, max_bytes).unwrap();
        (path, journal)
    }

    #[test]
    fn each_entry_of_many_threads_is_written_once_and_answered_once() {
        let (path, journal) = journal_in("threads", 1 << 20);
        let queue = Queue::default();
        thread::scope(|scope| {
            for number in 0..8_u8 {
                let (queue, journal) = (&queue, &journal);
                scope.spawn(move || {
                    for round in 0..50_u8 {
                        let (told, hears) = mpsc::channel();
                        if queue.push(told, vec![number, round]) {
                            queue.write_all(journal, |waiter: mpsc::Sender<bool>, result| {
                                waiter.send(result.is_ok()).unwrap();
                            });
                        }
                        assert!(hears.recv().unwrap());
                        assert!(hears.recv().is_err());
                    }
                });
            }
        });
        let mut entries = journal::read(&path).unwrap().entries;
        entries.sort();
        let expected: Vec<_> = (0..8).flat_map(|n| (0..50).map(move |r| vec![n, r])).collect();
        assert_eq!(entries, expected);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_entry_that_is_added_while_another_is_written_needs_no_second_thread() {
        let (path, journal) = journal_in("meanwhile", 1 << 20);
        let (queue, barrier) = (Arc::new(Queue::default()), Arc::new(Barrier::new(2)));
        assert!(queue.push(1, b"first".to_vec()));
        let writer = {
            let (queue, barrier) = (Arc::clone(&queue), Arc::clone(&barrier));
            thread::spawn(move || {
                let mut told = Vec::new();
                queue.write_all(&journal, |waiter, result| {
                    told.push((waiter, result.is_ok()));
                    if waiter == 1 {
                        barrier.wait();
                        barrier.wait();
                    }
                });
                told
            })
        };
        barrier.wait();
        assert!(!queue.push(2, b"second".to_vec()));
        barrier.wait();
        assert_eq!(writer.join().unwrap(), [(1, true), (2, true)]);
        assert_eq!(journal::read(&path).unwrap().entries.len(), 2);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn one_whose_writer_never_came_is_written_by_the_next() {
        let (path, journal) = journal_in("killed", 1 << 20);
        let queue = Queue::default();
        assert!(queue.push(1, b"one".to_vec()));
        assert!(queue.push(2, b"two".to_vec()));
        let mut told = Vec::new();
        queue.write_all(&journal, |waiter, _| told.push(waiter));
        assert_eq!(told, [1, 2]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_note_goes_with_the_next_write_unless_the_last_one_failed() {
        let (path, journal) = journal_in("note", 40);
        let queue = Queue::default();
        assert!(queue.note(b"note"));
        assert_eq!(journal::read(&path).unwrap().entries.len(), 0);
        assert!(queue.push(1, b"one".to_vec()));
        queue.write_all(&journal, |_, result| result.unwrap());
        assert_eq!(journal::read(&path).unwrap().entries, [b"note".to_vec(), b"one".to_vec()]);
        assert!(queue.push(2, vec![0; 100]));
        queue.write_all(&journal, |_, result| assert!(result.is_err()));
        assert!(!queue.note(b"lost"));
        assert!(queue.is_empty());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn one_that_does_not_fit_fails_alone() {
        let (path, journal) = journal_in("room", 40);
        let queue = Queue::default();
        queue.push(1, vec![0; 10]);
        queue.push(2, vec![0; 100]);
        queue.push(3, vec![0; 2]);
        let mut told = Vec::new();
        queue.write_all(&journal, |waiter, result| told.push((waiter, result.is_ok())));
        assert_eq!(told, [(1, true), (2, false), (3, true)]);
        assert_eq!(journal::read(&path).unwrap().entries, [vec![0; 10], vec![0; 2]]);
        std::fs::remove_file(path).unwrap();
    }
}
