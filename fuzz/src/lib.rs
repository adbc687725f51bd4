//! The checks of the core's tests, for the fuzzer.

#[path = "../../native/snakepit_core/tests/checks/mod.rs"]
pub mod checks;
