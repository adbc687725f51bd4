//! A small kernel, and the shell that drives the guardian's decisions on it.

pub mod kernel;
pub mod leases;
pub mod shell;
