//! What the BEAM and the guardian say to each other, as Elixir sees it.

use nix::errno::Errno;
use rustler::{Atom, Encoder, Env, NifMap, NifTaggedEnum, NifUnitEnum, Term};
use serde_bytes::ByteBuf;
use snakepit_core::Signal;
use snakepit_core::wire::{
    Abort, Event, Exit, Hello, Input, KillMode, Output, Request, Scope, Spawn, Stdio, Step,
    StopPolicy, VERSION,
};

use crate::terms::{Bytes, Items, SignalTerm, errno_atom, map};

mod atoms {
    rustler::atoms! {
        welcome, refused, unable, ready, fork_failed, started, failed, exited, tree_gone, all_gone, tail,
        info, log, status, signal, core, user_us, system_us, max_rss_kb, children, ahead, adopted,
        fork, stdio, descriptors, nice, rlimits, oom_score_adj, groups, group, user, cd, execve, cap_kill, lease,
        error, warn, debug, pong, roots,
    }
}

/// `{:spawn, %{...}}`, `{:release, id}`, `:info` and so on.
#[expect(clippy::large_enum_variant, reason = "lives from decoding to conversion")]
#[derive(NifTaggedEnum)]
pub enum RequestTerm {
    Hello(HelloTerm),
    Fork(u32),
    Spawn(SpawnTerm),
    Release(u64),
    Stop(u64, SignalTerm, u64),
    Extend(u64, u64),
    Signal(u64, SignalTerm, ScopeTerm),
    StopAll(u64, bool),
    Lease(u64, u64, u64),
    Tail(u64),
    Roots(u64),
    Info,
    Ping,
}

#[derive(NifMap)]
pub struct HelloTerm {
    beam_pid: i64,
    run_id: String,
    run_directory: Bytes,
    grace_ms: u64,
    log_level: LevelTerm,
    tail_bytes: u64,
    ahead: u32,
    first_id: u64,
}

#[derive(NifMap)]
pub struct SpawnTerm {
    id: u64,
    worker_id: String,
    arguments: Items<Bytes>,
    arg0: Option<Bytes>,
    inherit: bool,
    set: Items<Bytes>,
    unset: Items<Bytes>,
    directory: Option<Bytes>,
    umask: Option<u32>,
    stdio: StdioTerm,
    lifeline: Option<Bytes>,
    uid: Option<u32>,
    gid: Option<u32>,
    groups: Option<Items<u32>>,
    nice: Option<i32>,
    limits: Items<(u32, u64, u64)>,
    oom_score_adj: Option<i32>,
    stop: PolicyTerm,
    lease: Option<u64>,
    release: bool,
}

/// Signal, grace period, mode, and the abort signal with its own grace period.
type PolicyTerm = (SignalTerm, Option<u64>, KillModeTerm, Option<(SignalTerm, u64)>);

#[derive(NifUnitEnum)]
pub enum KillModeTerm {
    Tree,
    Group,
    Leader,
    Mixed,
}

#[derive(NifUnitEnum)]
pub enum LevelTerm {
    None,
    Error,
    Warning,
    Info,
    Debug,
}

impl LevelTerm {
    fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Error => "error",
            Self::Warning => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

#[derive(NifTaggedEnum)]
pub enum StdioTerm {
    Streams(StreamsTerm),
    Terminal(Bytes),
}

#[derive(NifMap)]
pub struct StreamsTerm {
    input: InputTerm,
    output: OutputTerm,
    error: OutputTerm,
    token: Option<Bytes>,
}

#[derive(NifUnitEnum)]
pub enum InputTerm {
    Null,
    Inherit,
    Passed,
}

/// `:tail`, `{:file, path, truncate?}` and so on.
#[derive(NifTaggedEnum)]
pub enum OutputTerm {
    Tail,
    Null,
    Inherit,
    Passed,
    Merged,
    File(Bytes, bool),
}

impl From<StdioTerm> for Stdio {
    fn from(term: StdioTerm) -> Self {
        match term {
            StdioTerm::Streams(streams) => Self::Streams {
                input: match streams.input {
                    InputTerm::Null => Input::Null,
                    InputTerm::Inherit => Input::Inherit,
                    InputTerm::Passed => Input::Passed,
                },
                output: streams.output.into(),
                error: streams.error.into(),
                token: streams.token.map(buffer),
            },
            StdioTerm::Terminal(token) => Self::Terminal(buffer(token)),
        }
    }
}

impl From<OutputTerm> for Output {
    fn from(term: OutputTerm) -> Self {
        match term {
            OutputTerm::Tail => Self::Tail,
            OutputTerm::Null => Self::Null,
            OutputTerm::Inherit => Self::Inherit,
            OutputTerm::Passed => Self::Passed,
            OutputTerm::Merged => Self::Merged,
            OutputTerm::File(path, truncate) => Self::File { path: buffer(path), truncate },
        }
    }
}

#[derive(NifUnitEnum)]
pub enum ScopeTerm {
    Process,
    Group,
    Tree,
}

fn buffers(items: Items<Bytes>) -> Vec<ByteBuf> {
    items.0.into_iter().map(buffer).collect()
}

fn buffer(bytes: Bytes) -> ByteBuf {
    ByteBuf::from(bytes.0)
}

impl From<RequestTerm> for Request {
    fn from(term: RequestTerm) -> Self {
        match term {
            RequestTerm::Hello(hello) => Self::Hello(hello.into()),
            RequestTerm::Fork(count) => Self::Fork { count },
            RequestTerm::Spawn(spawn) => Self::Spawn(Box::new(spawn.into())),
            RequestTerm::Release(id) => Self::Release { id },
            RequestTerm::Stop(id, signal, grace_ms) => {
                Self::Stop { id, signal: signal.0.as_raw(), grace_ms }
            }
            RequestTerm::Extend(id, grace_ms) => Self::Extend { id, grace_ms },
            RequestTerm::Signal(id, signal, scope) => {
                let scope = match scope {
                    ScopeTerm::Process => Scope::Process,
                    ScopeTerm::Group => Scope::Group,
                    ScopeTerm::Tree => Scope::Tree,
                };
                Self::Signal { id, signal: signal.0.as_raw(), scope }
            }
            RequestTerm::StopAll(grace_ms, strict) => Self::StopAll { grace_ms, strict },
            RequestTerm::Lease(lease, ask_at_ms, kill_at_ms) => {
                Self::Lease { lease, ask_at_ms, kill_at_ms }
            }
            RequestTerm::Tail(id) => Self::Tail { id },
            RequestTerm::Roots(id) => Self::Roots { id },
            RequestTerm::Info => Self::Info,
            RequestTerm::Ping => Self::Ping,
        }
    }
}

impl From<HelloTerm> for Hello {
    fn from(term: HelloTerm) -> Self {
        Self {
            version: VERSION,
            beam_pid: term.beam_pid,
            run_id: term.run_id,
            run_directory: buffer(term.run_directory),
            grace_ms: term.grace_ms,
            log_level: term.log_level.name().into(),
            tail_bytes: term.tail_bytes,
            ahead: term.ahead,
            first_id: term.first_id,
        }
    }
}

impl From<SpawnTerm> for Spawn {
    fn from(term: SpawnTerm) -> Self {
        Self {
            id: term.id,
            worker_id: term.worker_id,
            arguments: buffers(term.arguments),
            arg0: term.arg0.map(buffer),
            inherit: term.inherit,
            set: buffers(term.set),
            unset: buffers(term.unset),
            directory: term.directory.map(buffer),
            umask: term.umask,
            stdio: term.stdio.into(),
            lifeline: term.lifeline.map(buffer),
            uid: term.uid,
            gid: term.gid,
            groups: term.groups.map(|groups| groups.0),
            nice: term.nice,
            limits: term.limits.0,
            oom_score_adj: term.oom_score_adj,
            stop: policy(term.stop),
            lease: term.lease,
            release: term.release,
        }
    }
}

fn policy((signal, grace_ms, mode, abort): PolicyTerm) -> StopPolicy {
    let mode = match mode {
        KillModeTerm::Tree => KillMode::Tree,
        KillModeTerm::Group => KillMode::Group,
        KillModeTerm::Leader => KillMode::Leader,
        KillModeTerm::Mixed => KillMode::Mixed,
    };
    let abort = abort.map(|(signal, grace_ms)| Abort { signal: signal.0.as_raw(), grace_ms });
    StopPolicy { signal: signal.0.as_raw(), grace_ms, mode, abort }
}

/// `{:ready, id, os_pid, identity}`, `{:exited, id, %{...}, tail}` and so on.
pub struct EventTerm(pub Event);

impl Encoder for EventTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let posix = |errno: i32| errno_atom(env, Errno::from_raw(errno));
        match &self.0 {
            Event::Welcome { version, pid, identity, socket } => {
                (atoms::welcome(), *version, *pid, bytes(identity), bytes(socket)).encode(env)
            }
            Event::Refused { reason } => (atoms::refused(), reason).encode(env),
            Event::Unable { call, errno } => (atoms::unable(), call, posix(*errno)).encode(env),
            Event::Ready { id, pid, identity } => {
                (atoms::ready(), *id, *pid, bytes(identity)).encode(env)
            }
            Event::ForkFailed { errno } => (atoms::fork_failed(), posix(*errno)).encode(env),
            Event::Started { id } => (atoms::started(), *id).encode(env),
            Event::Failed { id, step, errno } => {
                (atoms::failed(), *id, step_atom(*step), posix(*errno)).encode(env)
            }
            Event::Exited { id, exit, tail } => {
                (atoms::exited(), *id, exit_map(env, exit), bytes(tail)).encode(env)
            }
            Event::TreeGone { id, killed, survivors } => {
                (atoms::tree_gone(), *id, *killed, survivors).encode(env)
            }
            Event::AllGone { stopped, killed, survivors } => {
                (atoms::all_gone(), *stopped, *killed, survivors).encode(env)
            }
            Event::Tail { id, tail } => (atoms::tail(), *id, bytes(tail)).encode(env),
            Event::Roots { id, roots, user_us, system_us } => {
                (atoms::roots(), *id, roots, (*user_us, *system_us)).encode(env)
            }
            Event::Info { children, ahead, adopted } => {
                let pairs = [
                    (atoms::children(), children.encode(env)),
                    (atoms::ahead(), ahead.encode(env)),
                    (atoms::adopted(), adopted.encode(env)),
                ];
                (atoms::info(), map(env, &pairs)).encode(env)
            }
            Event::Pong => atoms::pong().encode(env),
            Event::Log { level, message } => (atoms::log(), level_atom(level), message).encode(env),
        }
    }
}

fn bytes(buffer: &ByteBuf) -> Bytes {
    Bytes(buffer.to_vec())
}

fn exit_map<'a>(env: Env<'a>, exit: &Exit) -> Term<'a> {
    // By name where it has one.
    let signal = exit.signal.map(|number| {
        let name = Signal::from_number(number.into()).ok().and_then(Signal::name);
        match name.map(|name| Atom::from_str(env, name)) {
            Some(Ok(name)) => name.encode(env),
            _ => number.encode(env),
        }
    });
    let pairs = [
        (atoms::status(), exit.status.encode(env)),
        (atoms::signal(), signal.encode(env)),
        (atoms::core(), exit.core.encode(env)),
        (atoms::user_us(), exit.user_us.encode(env)),
        (atoms::system_us(), exit.system_us.encode(env)),
        (atoms::max_rss_kb(), exit.max_rss_kb.encode(env)),
    ];
    map(env, &pairs)
}

/// Named after the worker's option where it has one.
fn step_atom(step: Step) -> Atom {
    match step {
        Step::Fork => atoms::fork(),
        Step::Stdio => atoms::stdio(),
        Step::Descriptors => atoms::descriptors(),
        Step::Nice => atoms::nice(),
        Step::Limits => atoms::rlimits(),
        Step::OomScore => atoms::oom_score_adj(),
        Step::Groups => atoms::groups(),
        Step::Group => atoms::group(),
        Step::User => atoms::user(),
        Step::Directory => atoms::cd(),
        Step::Execute => atoms::execve(),
        Step::Rights => atoms::cap_kill(),
        Step::Lease => atoms::lease(),
    }
}

fn level_atom(level: &str) -> Atom {
    match level {
        "error" => atoms::error(),
        "warn" => atoms::warn(),
        "info" => atoms::info(),
        _ => atoms::debug(),
    }
}
