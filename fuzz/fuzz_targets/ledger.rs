#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| snakepit_fuzz::checks::ledger::check(bytes));
