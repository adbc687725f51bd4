//! The checks, with bytes that are made to come close to what is understood; and what identities
//! say about a process that is really there.
#![allow(missing_docs, clippy::unwrap_used)]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use snakepit_core::identity::Origin;
use snakepit_core::process::Found;
use snakepit_core::{Identity, Pid, Process};

mod checks;

/// Pieces that mean something, in any order, with others in between.
fn pieces(meaningful: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let known = select(meaningful).prop_map(|piece| piece.as_bytes().to_vec());
    let noise = vec(any::<u8>(), 0..9);
    vec(prop_oneof![4 => known, 1 => noise], 0..24).prop_map(|pieces| pieces.concat())
}

const OWNERSHIP: &[&str] = &[
    "--run-id",
    "--snakepit-run-id",
    "=",
    "\0",
    "\0",
    "k3x9a2p",
    "zzzzzzz",
    "K3X9A2P",
    "SNAKEPIT_RUN_ID=",
    "SNAKEPIT_WORKER_ID=",
    "SNAKEPIT_INSTANCE=",
    "SNAKEPIT_OWNER=",
    "12:34:56:00112233445566778899aabbccddeeff",
    "+",
    ":",
    "SNAKEPIT_",
];

const PROC: &[&str] = &[
    "4711",
    "(",
    ")",
    ") ",
    ") R",
    " ",
    " ",
    " 1",
    "Z",
    "S 17 42 43 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 987654 1",
    "\n",
    "\n",
    "Uid:",
    "Uid:\t1000\t",
    "Max file locks",
    "Max file locks            unlimited",
    "+1",
    "99999999999999999999",
    "\0",
];

/// Beginnings of terms of Erlang, and whole ones.
const TERMS: &[&[u8]] = &[
    &[131],
    &[97, 7],
    &[98, 0, 0, 1, 44],
    &[104, 1],
    &[104, 2],
    &[105, 0, 0, 0, 1],
    &[106],
    &[107, 0, 1, 9],
    &[108, 0, 0, 0, 1],
    &[109, 0, 0, 0, 2, 1, 2],
    &[110, 8, 1, 0, 0, 0, 0, 0, 0, 0, 128],
    &[116, 0, 0, 0, 1],
    &[119, 4, b'g', b'o', b'n', b'e'],
    &[119, 3, b'r', b'u', b'n'],
    &[0, 0, 0, 200, 0x12, 0x34, 0x56, 0x78],
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn terms_are_read_as_far_as_they_are_whole(pieces in vec(select(TERMS), 0..24)) {
        checks::ledger::check(&pieces.concat());
    }

    #[test]
    fn every_check_holds_for_noise(bytes in vec(any::<u8>(), 0..400)) {
        for (_, check) in checks::ALL {
            check(&bytes);
        }
    }

    #[test]
    fn ownership_is_found_where_it_stands_and_nowhere_else(bytes in pieces(OWNERSHIP)) {
        checks::run_id::check(&bytes);
    }

    #[test]
    fn proc_is_read_as_by_hand(bytes in pieces(PROC)) {
        checks::proc_text::check(&bytes);
    }

    /// Short numbers make short entries, so that damage meets the headers often.
    #[test]
    fn a_damaged_ledger_loses_what_is_damaged_and_invents_nothing(
        damage in vec(any::<u8>(), 9), entries in vec(0..30u8, 0..300),
    ) {
        checks::ledger::check(&[damage, entries].concat());
    }
}

fn own() -> Identity {
    Process::open(Pid::current()).unwrap().unwrap().identity().clone()
}

/// What of an identity was changed, which of course it may not have been.
fn altered() -> impl Strategy<Value = Identity> {
    let bits = (any::<[bool; 5]>(), any::<u64>(), any::<[u8; 16]>());
    bits.prop_map(|([start, boot, namespace, handle, settled], number, bytes)| {
        let own = own();
        Identity {
            start: if start { number } else { own.start },
            boot: if boot { bytes } else { own.boot },
            namespace: if namespace { number } else { own.namespace },
            handle: own.handle.clone().filter(|_| !handle),
            settled,
            ..own
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_process_is_the_same_only_if_nothing_speaks_against_it(told in altered()) {
        let own = own();
        let here = told.boot == own.boot && told.namespace == own.namespace;
        prop_assert_eq!(told.origin().unwrap() == Origin::Here, here);
        // As where a process is hidden: then nothing can be compared.
        let fits = told.start == own.start || told.start == 0;
        let by_handle = told.handle.is_some() && told.handle == own.handle && fits;
        let by_start = told.start == own.start && told.settled;
        let same = matches!(Process::reopen(&told, None).unwrap(), Found::Same(_));
        prop_assert_eq!(same, here && (by_handle || by_start), "{:?}", told);
    }

    #[test]
    fn two_identities_are_written_alike_only_if_they_are_equal(one in altered(), other in altered()) {
        prop_assert_eq!(one == other, one.encode() == other.encode());
        prop_assert_eq!(Identity::decode(&one.encode()).unwrap(), one);
    }
}
