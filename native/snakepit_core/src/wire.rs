//! What the BEAM and the guardian say to each other.
//!
//! Frames are `MessagePack` behind a length of four bytes, which the BEAM's port and the guardian add.
//! The first frame in each direction carries [`VERSION`]. The types are defined here once; the NIF
//! translates them to terms.
//!
//! The life of a child, as frames:
//!
//! ```text
//! guardian                                   BEAM
//!   Ready  { id, pid, identity }  ────────▶  forked ahead, waiting at the gate
//!                                            … the identity goes into the ledger …
//!                                 ◀────────  Spawn   { id, what to run }
//!                                 ◀────────  Release { id }, unless Spawn says so
//!   Started { id } or Failed      ────────▶
//!   Exited  { id, how }           ────────▶  reaped
//!   TreeGone { id, killed }       ────────▶  nothing that it started is left
//! ```
//!
//! Children are forked and recorded before they are asked for, so `Spawn` and `Release` need no answer in
//! between, and may be one frame.

use std::io::Cursor;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Changes with every change of a type in this file.
pub const VERSION: u32 = 8;

/// What a connection to the guardian's listener begins with if descriptors are passed over it, where others have
/// the token of the child that they are for.
pub const CHANNEL_TOKEN: [u8; 16] = [0xFF; 16];

/// What a connection begins with over which the BEAM hands over the terminal that it runs in. Then comes one message:
/// the terminal's descriptor, with its [`crate::terminal::Settings`]. The guardian restores them when the
/// connection ends without [`TERMINAL_DONE`].
pub const TERMINAL_TOKEN: [u8; 16] = [0xFE; 16];

/// Says that the terminal is what it was.
pub const TERMINAL_DONE: u8 = 0;

/// Larger than any command line and environment that the kernel takes (2 MiB by default, at most
/// 6 MiB), and small enough that a broken length does not exhaust memory.
pub const MAX_FRAME: usize = 16 * 1024 * 1024;

/// A frame up to this length that is longer than any message is left out, and what follows it is read. One
/// beyond it is no frame: whoever waited for the rest of it would hear nothing else any more.
pub const MAX_SKIPPED: usize = 4 * MAX_FRAME;

/// From the BEAM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// The first frame.
    Hello(Hello),
    /// Fork this many more children than are kept ahead anyway.
    Fork {
        /// How many.
        count: u32,
    },
    /// What a waiting child is to run.
    Spawn(Box<Spawn>),
    /// Opens the gate.
    Release {
        /// The child.
        id: u64,
    },
    /// Ends a child and its tree; one that waits at the gate never runs. Answered by `TreeGone`.
    Stop {
        /// The child.
        id: u64,
        /// What asks it to end.
        signal: i32,
        /// Milliseconds until `SIGKILL`.
        grace_ms: u64,
    },
    /// Gives a tree that was asked to end at least so much time from now on.
    Extend {
        /// The child.
        id: u64,
        /// Milliseconds until `SIGKILL`.
        grace_ms: u64,
    },
    /// Sends a signal.
    Signal {
        /// The child.
        id: u64,
        /// The signal's number.
        signal: i32,
        /// To whom.
        scope: Scope,
    },
    /// Ends every child that there is now, and its tree. Answered by `AllGone`.
    StopAll {
        /// Milliseconds until `SIGKILL`.
        grace_ms: u64,
        /// Whether that holds also for children that have a grace period of their own.
        strict: bool,
    },
    /// Begins a lease or renews it. Moments are milliseconds of [`crate::clock`]. What was spawned under a lease is asked to
    /// end and then killed at these moments, unless it is renewed before. A lease is never shortened.
    Lease {
        /// Its number, which the BEAM has chosen.
        lease: u64,
        /// When the stop signal is sent.
        ask_at_ms: u64,
        /// When `SIGKILL` is sent.
        kill_at_ms: u64,
    },
    /// Asks for the last output of a child. Answered by `Tail`.
    Tail {
        /// The child.
        id: u64,
    },
    /// Asks who of a child's tree are the guardian's own children. Answered by `Roots`.
    Roots {
        /// The child.
        id: u64,
    },
    /// Asks how things stand. Answered by `Info`.
    Info,
    /// Asks whether anyone is there. Answered by `Pong`.
    Ping,
}

/// Who the BEAM is and what it wants of the guardian.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the sender.
    pub version: u32,
    /// The BEAM's pid.
    pub beam_pid: i64,
    /// The run.
    pub run_id: String,
    /// Where obituary, adopted identities and the log go.
    pub run_directory: ByteBuf,
    /// Milliseconds that those get that have no grace period of their own.
    pub grace_ms: u64,
    /// The least level of log lines that the BEAM wants: `error`, `warn`, `info`, `debug` or `none`.
    pub log_level: String,
    /// How much of each child's output to keep.
    pub tail_bytes: u64,
    /// How many children to keep forked ahead.
    pub ahead: u32,
    /// Children are counted from here, so that none has the id of an earlier guardian's.
    pub first_id: u64,
}

/// What to run, and as whom.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spawn {
    /// The child that is to run it.
    pub id: u64,
    /// The worker, for markers and the obituary.
    pub worker_id: String,
    /// Program and arguments.
    pub arguments: Vec<ByteBuf>,
    /// What the program finds in the place of its own name, if it is not that.
    pub arg0: Option<ByteBuf>,
    /// Whether to start from the environment that the BEAM had when it started the guardian.
    pub inherit: bool,
    /// Variables to set, as `NAME=value`, markers included.
    pub set: Vec<ByteBuf>,
    /// Names of variables to leave out.
    pub unset: Vec<ByteBuf>,
    /// Where to run.
    pub directory: Option<ByteBuf>,
    /// File mode creation mask.
    pub umask: Option<u32>,
    /// What standard input, output and error are.
    pub stdio: Stdio,
    /// The token of a connection that becomes the lifeline.
    pub lifeline: Option<ByteBuf>,
    /// User to become.
    pub uid: Option<u32>,
    /// Group to become.
    pub gid: Option<u32>,
    /// Supplementary groups.
    pub groups: Option<Vec<u32>>,
    /// Scheduling priority.
    pub nice: Option<i32>,
    /// Resource limits: number of the resource, soft and hard limit.
    pub limits: Vec<(u32, u64, u64)>,
    /// How eagerly the kernel kills it when memory runs out.
    pub oom_score_adj: Option<i32>,
    /// How it is ended when nobody says otherwise.
    pub stop: StopPolicy,
    /// The lease without which it must not run.
    pub lease: Option<u64>,
    /// Whether the gate is opened at once, without a `Release`.
    pub release: bool,
}

/// How a tree is ended: on the death of the BEAM, with all others, and when its leader has ended by
/// itself. A `Stop` request has a signal and a grace period of its own, and this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopPolicy {
    /// What asks it to end.
    pub signal: i32,
    /// Milliseconds until `SIGKILL`; `None` for what the guardian was told at its start.
    pub grace_ms: Option<u64>,
    /// Who is asked first.
    pub mode: KillMode,
    /// What comes between the end of the grace period and `SIGKILL`, if the child is still there then.
    pub abort: Option<Abort>,
}

/// A signal for a child that does not end when asked, such as `SIGABRT` for a core dump. It goes where the first one
/// went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// The signal.
    pub signal: i32,
    /// Milliseconds until `SIGKILL`.
    pub grace_ms: u64,
}

impl Default for StopPolicy {
    fn default() -> Self {
        Self { signal: libc::SIGTERM, grace_ms: None, mode: KillMode::Tree, abort: None }
    }
}

/// Who gets the stop signal at once. The rest of the tree gets it when the leader is gone, unless that is
/// killed then, and SIGKILL goes to the whole tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillMode {
    /// Everything that descends from the child.
    #[default]
    Tree,
    /// Its process group.
    Group,
    /// The child alone.
    Leader,
    /// The child alone. The rest gets SIGKILL when the child is gone.
    Mixed,
}

/// Where a child's standard streams lead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Stdio {
    /// Each to a place of its own.
    Streams {
        /// Standard input.
        input: Input,
        /// Standard output.
        output: Output,
        /// Standard error.
        error: Output,
        /// With which the descriptors of those that are `Passed` came, in the order of the fields here; or a
        /// connection that is all of them.
        token: Option<ByteBuf>,
    },
    /// All three to the terminal that came with this token. It becomes the child's controlling terminal.
    Terminal(ByteBuf),
}

impl Default for Stdio {
    fn default() -> Self {
        let (input, output, error) = Default::default();
        Self::Streams { input, output, error, token: None }
    }
}

/// Where a child's standard input comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// From nowhere.
    #[default]
    Null,
    /// The BEAM's own.
    Inherit,
    /// A descriptor of the BEAM's.
    Passed,
}

/// Where a child's standard output, or its standard error, leads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Output {
    /// To a bounded memory in the guardian, the same one for both.
    #[default]
    Tail,
    /// To nowhere.
    Null,
    /// The BEAM's own.
    Inherit,
    /// A descriptor of the BEAM's.
    Passed,
    /// Of errors: to where the output leads.
    Merged,
    /// To the end of a file.
    File {
        /// Its path.
        path: ByteBuf,
        /// Whether what is in it is deleted first.
        truncate: bool,
    },
}

/// Whom a signal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// The child alone.
    Process,
    /// Its process group.
    Group,
    /// Everything that descends from it.
    Tree,
}

/// From the guardian.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The first frame.
    Welcome {
        /// [`VERSION`] of the sender.
        version: u32,
        /// The guardian's pid.
        pid: i64,
        /// [`crate::Identity`] of the guardian, encoded.
        identity: ByteBuf,
        /// Where connections for piped stdio and lifelines are taken.
        socket: ByteBuf,
    },
    /// The last frame: the guardian does not understand the BEAM.
    Refused {
        /// Why.
        reason: String,
    },
    /// The last frame: the guardian may not do what it needs for its work.
    Unable {
        /// The system call.
        call: String,
        /// What it answers.
        errno: i32,
    },
    /// A child waits at the gate.
    Ready {
        /// What the child is called from now on.
        id: u64,
        /// Its pid, which is also its process group and session.
        pid: i64,
        /// [`crate::Identity`], encoded.
        identity: ByteBuf,
    },
    /// A child that was asked for with `Fork` could not be made.
    ForkFailed {
        /// Why.
        errno: i32,
    },
    /// The program runs.
    Started {
        /// The child.
        id: u64,
    },
    /// The program could not be executed; the child is gone.
    Failed {
        /// The child.
        id: u64,
        /// What failed.
        step: Step,
        /// Why.
        errno: i32,
    },
    /// The child has ended and is reaped.
    Exited {
        /// The child.
        id: u64,
        /// How.
        exit: Exit,
        /// The end of its output.
        tail: ByteBuf,
    },
    /// Nothing of the child's tree is left, or what is left cannot be ended.
    TreeGone {
        /// The child.
        id: u64,
        /// How many descendants had to be killed.
        killed: u64,
        /// Pids that are still there.
        survivors: Vec<i64>,
    },
    /// Answer to `StopAll`.
    AllGone {
        /// How many ended when asked.
        stopped: u64,
        /// How many had to be killed.
        killed: u64,
        /// Pids that are still there.
        survivors: Vec<i64>,
    },
    /// Answer to `Tail`.
    Tail {
        /// The child.
        id: u64,
        /// The end of its output.
        tail: ByteBuf,
    },
    /// Answer to `Roots`.
    Roots {
        /// The child.
        id: u64,
        /// Pids that everything else of the tree is below of, and when each started; 0 if that is not known.
        roots: Vec<(i64, u64)>,
        /// Microseconds of processor time in user mode, of adopted processes that have ended.
        user_us: u64,
        /// The same in the kernel.
        system_us: u64,
    },
    /// Answer to `Info`.
    Info {
        /// Children that run or are about to.
        children: u64,
        /// Children that wait at the gate.
        ahead: u64,
        /// Processes that lost their parent and became the guardian's.
        adopted: u64,
    },
    /// Answer to `Ping`.
    Pong,
    /// Something worth a line in the log.
    Log {
        /// `error`, `warn`, `info`, `debug`.
        level: String,
        /// The line.
        message: String,
    },
}

/// How a child ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// Its status, if it ended by itself.
    pub status: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it left a core dump.
    pub core: bool,
    /// Microseconds of processor time in user mode.
    pub user_us: u64,
    /// Microseconds of processor time in the kernel.
    pub system_us: u64,
    /// Most memory that it had, in kilobytes.
    pub max_rss_kb: u64,
}

/// What a child does between the gate and its program, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Step {
    /// Making the child.
    Fork,
    /// Opening what becomes its standard streams.
    Stdio,
    /// Putting descriptors into place.
    Descriptors,
    /// Priority.
    Nice,
    /// Resource limits.
    Limits,
    /// The kernel's inclination to kill it when memory runs out.
    OomScore,
    /// Supplementary groups.
    Groups,
    /// Group.
    Group,
    /// User.
    User,
    /// Changing the directory.
    Directory,
    /// Executing the program.
    Execute,
    /// Whether the guardian could end it, which is asked first.
    Rights,
    /// Whether the lease under which it is to run lasts.
    Lease,
}

impl Step {
    /// All of them, by number.
    pub const ALL: [Self; 13] = [
        Self::Fork,
        Self::Stdio,
        Self::Descriptors,
        Self::Nice,
        Self::Limits,
        Self::OomScore,
        Self::Groups,
        Self::Group,
        Self::User,
        Self::Directory,
        Self::Execute,
        Self::Rights,
        Self::Lease,
    ];
}

/// A frame's content.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    // Writing to memory cannot fail for types of plain fields.
    let _ = rmp_serde::encode::write(&mut bytes, message);
    bytes
}

/// The message in a frame's content; `None` if it is not one, whole and with nothing behind it.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let mut deserializer = rmp_serde::Deserializer::new(Cursor::new(bytes));
    deserializer.set_max_depth(16);
    let message = T::deserialize(&mut deserializer).ok()?;
    (deserializer.position() == bytes.len() as u64).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_trip_and_nothing_else_is_one() {
        let spawn = Spawn {
            id: 7,
            worker_id: "w".into(),
            arguments: vec![ByteBuf::from(b"a\xff".to_vec())],
            stdio: Stdio::Terminal(ByteBuf::from(b"/x".to_vec())),
            limits: vec![(7, 1, u64::MAX)],
            ..Spawn::default()
        };
        let message = Request::Spawn(Box::new(spawn));
        let bytes = encode(&message);
        assert_eq!(decode(&bytes), Some(message));
        for length in 0..bytes.len() {
            assert_eq!(decode::<Request>(&bytes[..length]), None, "{length} bytes");
        }
        assert_eq!(decode::<Request>(&[bytes, vec![0]].concat()), None);
        assert_eq!(decode::<Event>(&encode(&Request::Info)), None);
    }
}
