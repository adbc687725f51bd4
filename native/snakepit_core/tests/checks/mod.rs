//! What must hold for any bytes whatever. Each check takes some and panics if it does not.
//!
//! Three users: the property tests give what they made up, `corpus.rs` what was found worth keeping,
//! and the fuzz targets what the fuzzer comes up with. Where there is something to compare with, it
//! is a second, slower way to the same answer, written without the code under test.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "any number will do where one is made up"
)]

pub mod ledger;
pub mod obituary;
pub mod proc_text;
pub mod run_id;
pub mod script;
pub mod wire;

pub type Check = fn(&[u8]);

/// By the name of the fuzz target, which is also the directory of its corpus.
pub const ALL: [(&str, Check); 5] = [
    ("wire", wire::check),
    ("proc_text", proc_text::check),
    ("ledger", ledger::check),
    ("obituary", obituary::check),
    ("run_id", run_id::check),
];
