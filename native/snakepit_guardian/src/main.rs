//! The guardian: one small process beside the BEAM that starts, watches and ends all others.
//!
//! ```text
//!  beam.smp ──── port: frames of MessagePack ────▶ snakepit_guardian ── fork ──▶ child at its gate
//!     │                                             one thread, one loop            │ release
//!     └── connections to the listener ────────────▶ handed on to the child          ▼
//!                                                                                 program
//! ```
//!
//! The life of a child:
//!
//! 1. **Ready**. It is forked ahead of need, becomes leader of a session, marks itself, arranges to
//!    die with the guardian, and waits at its gate, a socket pair. The BEAM learns pid and identity.
//! 2. **Assigned**. The BEAM says what it is to run; streams and image are packed.
//! 3. **Released**. The BEAM has recorded the pid. What was packed goes through the gate; the child
//!    sets itself up and executes the program. Its end of the gate closes with that, or carries the
//!    step that failed and why.
//! 4. **Running**, until it is reaped. Its exit is reported at once, even if others still hold its output.
//! 5. **Lingering**, until nothing that descends from it is left.
//!
//! If the BEAM dies, its end of the port closes and its pidfd fires: everything is asked to end, then
//! killed, and when the kernel says that the guardian has no child left, the obituary is written and
//! the guardian ends. If the guardian dies, gates close and the kernel kills its children.
//!
//! With a command instead of a run's id it is a tool for people and scripts: see `command`.

#[cfg(target_os = "linux")]
mod command;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    command::run().unwrap_or_else(linux::main)
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!("snakepit_guardian: only Linux has a guardian; Snakepit cannot start here");
    std::process::ExitCode::FAILURE
}
