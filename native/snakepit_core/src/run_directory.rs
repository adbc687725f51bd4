//! The names of the files that the guardian writes into a run's directory. The other files are the BEAM's
//! (`Snakepit.Ledger.RunDirectory`).

/// Identities of adopted processes.
pub const ADOPTED: &str = "adopted";
/// What is about to take its place.
pub const NEW_ADOPTED: &str = "adopted.new";
/// How everything ended, when the BEAM was gone before the guardian.
pub const OBITUARY: &str = "obituary";
/// What is about to take its place.
pub const NEW_OBITUARY: &str = "obituary.new";
/// The socket for piped stdio and lifelines, or a link to it.
pub const LISTENER: &str = "listener";
/// What the guardian logged after the BEAM was gone.
pub const LOG: &str = "guardian.log";
