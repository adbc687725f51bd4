//! A length that lies does not make a parser ask for memory.
#![allow(missing_docs, clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_bytes::ByteBuf;
use snakepit_core::obituary::{Ended, Obituary, Used};
use snakepit_core::wire::{Event, Exit, Hello, MAX_FRAME, Request, Spawn, decode, encode};
use snakepit_core::{Identity, adopted, journal};

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

/// Adds up what a thread asks for.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is handed on as it came, and counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller keeps the contract of `realloc`; the pointer is one of the system's.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; the pointer is one of the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn count(size: usize) {
    ASKED.set(ASKED.get().saturating_add(size));
}

type Parser = fn(&[u8]);

/// No more than the longest frame would take, for the few hundred bytes that these tests give.
#[track_caller]
fn modestly(bytes: &[u8]) {
    let parsers: [(&str, Parser); 6] = [
        ("request", |bytes| drop(decode::<Request>(bytes))),
        ("event", |bytes| drop(decode::<Event>(bytes))),
        ("obituary", |bytes| drop(decode::<Obituary>(bytes))),
        ("identity", |bytes| drop(Identity::decode(bytes))),
        ("adopted", |bytes| drop(adopted::parse(bytes))),
        ("journal", |bytes| drop(journal::parse(bytes))),
    ];
    for (name, parse) in parsers {
        ASKED.set(0);
        parse(bytes);
        let asked = ASKED.get();
        assert!(asked <= MAX_FRAME, "{name} asked for {asked} bytes because of {bytes:02x?}");
    }
}

fn samples() -> Vec<Vec<u8>> {
    let bytes = || ByteBuf::from(b"bytes".to_vec());
    let spawn = Spawn {
        arguments: vec![bytes()],
        set: vec![bytes()],
        unset: vec![bytes()],
        directory: Some(bytes()),
        groups: Some(vec![1]),
        limits: vec![(1, 2, 3)],
        ..Spawn::default()
    };
    let hello = Hello {
        version: 1,
        beam_pid: 1,
        run_id: "k3x9a2p".into(),
        run_directory: bytes(),
        grace_ms: 1,
        log_level: "info".into(),
        tail_bytes: 1,
        ahead: 1,
        first_id: 1,
    };
    let used = Used::default();
    let ended = Ended { worker_id: "w".into(), pid: 1, killed: true, after_ms: 1, used };
    let obituary =
        Obituary { processes: vec![ended; 2], survivors: vec![1, 2], ..Obituary::default() };
    vec![
        encode(&Request::Spawn(Box::new(spawn))),
        encode(&Request::Hello(hello)),
        encode(&Event::Exited { id: 1, exit: Exit::default(), tail: bytes() }),
        encode(&Event::TreeGone { id: 1, killed: 1, survivors: vec![1, 2, 3] }),
        encode(&obituary),
        // Lengths of a journal and of the file of adopted processes.
        vec![0; 24],
    ]
}

/// `bin`, `ext`, `str`, `array` and `map`, each with the largest length there is.
const GREEDY: [u8; 5] = [0xc6, 0xc9, 0xdb, 0xdd, 0xdf];

#[test]
fn a_greedy_length_anywhere_in_a_message_costs_nothing() {
    for sample in samples() {
        for place in 0..sample.len() {
            for length in [[0xff; 4], [0x7f, 0xff, 0xff, 0xff], [0, 0xff, 0xff, 0xff]] {
                for tag in GREEDY {
                    let head = [&sample[..place], &[tag], &length].concat();
                    // In place of what was there, and in front of it.
                    modestly(&[&head[..], &sample[(place + 1).min(sample.len())..]].concat());
                    modestly(&[&head[..], &sample[place..]].concat());
                }
                modestly(&[&sample[..place], &length, &sample[place..]].concat());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_cost_nothing(bytes in vec(prop_oneof![any::<u8>(), 0xc4..=0xdfu8], 0..200)) {
        modestly(&bytes);
    }
}
