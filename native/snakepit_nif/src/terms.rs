//! What the core's values look like in Elixir.

use nix::errno::Errno;
use rustler::{
    Atom, Binary, Decoder, Encoder, Env, NewBinary, NifMap, NifResult, NifUnitEnum, Term, TermType,
};
use snakepit_core::group::Group;
use snakepit_core::process::Delivery;
use snakepit_core::record::{self, Flaw, Record, Status};
use snakepit_core::run;
use snakepit_core::stop::Outcome;
use snakepit_core::table::{Entry, ProcessState};
use snakepit_core::{Error, Identity, Pid, Signal};

mod atoms {
    rustler::atoms! {
        ambiguous, checksum, gone, killed, malformed, not_an_identity, not_permitted, refused,
        not_its_table, sent, stopped, survived, unknown_signal, version, alive, uninterruptible,
        // Keys
        os_pid, parent, pgid, session, state, uid, start, arguments, survivors,
    }
}

/// `{reason, os_pid | nil}`, which Elixir turns into a `Snakepit.Error`.
pub struct ErrorTerm(Error);

impl<E: Into<Error>> From<E> for ErrorTerm {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl Encoder for ErrorTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let posix = |errno: Errno| errno_atom(env, errno);
        let (reason, os_pid) = match &self.0 {
            Error::NotAPid(number) | Error::Protected(number) => (atoms::refused(), Some(*number)),
            Error::NoSuchProcess(number) => (posix(Errno::ESRCH), Some(*number)),
            Error::Ambiguous(pid) => (atoms::ambiguous(), Some(pid.as_raw().into())),
            Error::Signal { pid, errno, .. } => (posix(*errno), Some(pid.as_raw().into())),
            Error::NotItsTable => (atoms::not_its_table(), None),
            Error::UnknownSignal => (atoms::unknown_signal(), None),
            Error::NotAnIdentity => (atoms::not_an_identity(), None),
            Error::Os { errno, .. } => (posix(*errno), None),
            _ => (posix(Errno::EINVAL), None),
        };
        (reason, os_pid).encode(env)
    }
}

/// `EPERM` is `:eperm`. The set is the OS's own, so the number of atoms is bounded.
pub fn errno_atom(env: Env, errno: Errno) -> Atom {
    let name = format!("{errno:?}").to_ascii_lowercase();
    Atom::from_str(env, &name).unwrap_or_else(|_| atoms::refused())
}

/// What the system has said, or `einval`.
#[cfg(target_os = "linux")]
pub fn errno_of(env: Env, error: &Error) -> Atom {
    match error {
        Error::Os { errno, .. } => errno_atom(env, *errno),
        _ => errno_atom(env, Errno::EINVAL),
    }
}

/// Any integer, also one that no system call could take.
pub struct PidTerm(Option<i64>);

impl PidTerm {
    pub fn pid(&self) -> Result<Pid, Error> {
        let number = self.0.unwrap_or(i64::MAX);
        Pid::new(number).ok_or(Error::NotAPid(number))
    }
}

impl Decoder<'_> for PidTerm {
    fn decode(term: Term) -> NifResult<Self> {
        match term.get_type() {
            TermType::Integer => Ok(Self(term.decode().ok())),
            _ => Err(rustler::Error::BadArg),
        }
    }
}

/// An encoded identity, not decoded yet.
pub struct IdentityTerm<'a>(Binary<'a>);

impl IdentityTerm<'_> {
    pub fn identity(&self) -> Result<Identity, Error> {
        Identity::decode(&self.0)
    }
}

impl<'a> Decoder<'a> for IdentityTerm<'a> {
    fn decode(term: Term<'a>) -> NifResult<Self> {
        term.decode().map(Self)
    }
}

/// A group's number, or the identity of its leader.
pub enum GroupTerm<'a> {
    Number(PidTerm),
    LedBy(IdentityTerm<'a>),
}

impl GroupTerm<'_> {
    pub fn group(&self) -> Result<Group, Error> {
        match self {
            Self::Number(number) => number.pid().map(Group::Number),
            Self::LedBy(leader) => leader.identity().map(Group::LedBy),
        }
    }
}

impl<'a> Decoder<'a> for GroupTerm<'a> {
    fn decode(term: Term<'a>) -> NifResult<Self> {
        term.decode().map(Self::Number).or_else(|_| term.decode().map(Self::LedBy))
    }
}

/// `:sigterm` or `15`.
#[derive(Clone, Copy)]
pub struct SignalTerm(pub Signal);

impl Decoder<'_> for SignalTerm {
    fn decode(term: Term) -> NifResult<Self> {
        let signal = match term.get_type() {
            TermType::Atom => Signal::from_name(&term.atom_to_string()?),
            TermType::Integer => term.decode().map(Signal::from_number)?,
            _ => Err(Error::UnknownSignal),
        };
        signal.map(Self).map_err(|_| rustler::Error::BadArg)
    }
}

impl Encoder for SignalTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        self.0.as_raw().encode(env)
    }
}

/// `{os_pid, identity}`.
pub struct ProcessTerm(pub Identity);

impl Encoder for ProcessTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        (self.0.pid.as_raw(), Bytes(self.0.encode())).encode(env)
    }
}

pub struct DeliveryTerm(pub Delivery);

impl Encoder for DeliveryTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let atom = match self.0 {
            Delivery::Sent => atoms::sent(),
            Delivery::Gone => atoms::gone(),
        };
        atom.encode(env)
    }
}

pub struct OutcomeTerm(pub Outcome);

impl Encoder for OutcomeTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let atom = match self.0 {
            Outcome::Stopped => atoms::stopped(),
            Outcome::Killed => atoms::killed(),
            Outcome::Gone => atoms::gone(),
            Outcome::NotPermitted => atoms::not_permitted(),
            Outcome::Ambiguous => atoms::ambiguous(),
            Outcome::Refused => atoms::refused(),
            Outcome::Survived => atoms::survived(),
        };
        atom.encode(env)
    }
}

/// A line of the process table, as a map.
pub struct InfoTerm(pub Entry);

impl Encoder for InfoTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let entry = &self.0;
        let state = match entry.state {
            ProcessState::Alive | ProcessState::Zombie => atoms::alive(),
            ProcessState::Stopped => atoms::stopped(),
            ProcessState::Uninterruptible => atoms::uninterruptible(),
        };
        let arguments: Vec<_> = entry.arguments.iter().map(|arg| Bytes(arg.to_vec())).collect();
        let pairs = [
            (atoms::os_pid(), entry.pid.as_raw().encode(env)),
            (atoms::parent(), entry.parent.encode(env)),
            (atoms::pgid(), entry.group.encode(env)),
            (atoms::session(), entry.session.encode(env)),
            (atoms::state(), state.encode(env)),
            (atoms::uid(), entry.uid.encode(env)),
            (atoms::start(), entry.start.encode(env)),
            (atoms::arguments(), arguments.encode(env)),
        ];
        map(env, &pairs)
    }
}

/// `%{stopped: n, killed: n, survivors: [{os_pid, identity}]}`.
pub struct StopReportTerm(pub run::StopReport);

impl Encoder for StopReportTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let survivors: Vec<_> = self.0.survivors.iter().cloned().map(ProcessTerm).collect();
        let pairs = [
            (atoms::stopped(), self.0.stopped.encode(env)),
            (atoms::killed(), self.0.killed.encode(env)),
            (atoms::survivors(), survivors.encode(env)),
        ];
        map(env, &pairs)
    }
}

pub fn map<'a>(env: Env<'a>, pairs: &[(Atom, Term<'a>)]) -> Term<'a> {
    Term::map_from_pairs(env, pairs).unwrap_or_else(|_| Term::map_new(env))
}

/// A binary, as Rust owns it.
#[derive(Clone)]
pub struct Bytes(pub Vec<u8>);

impl Encoder for Bytes {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let mut binary = NewBinary::new(env, self.0.len());
        binary.as_mut_slice().copy_from_slice(&self.0);
        Binary::from(binary).encode(env)
    }
}

impl Decoder<'_> for Bytes {
    fn decode(term: Term) -> NifResult<Self> {
        Ok(Self(term.decode::<Binary>()?.as_slice().to_vec()))
    }
}

/// A list. Rustler's own decoder panics at an improper one, which any caller or a damaged ledger may
/// hand in.
pub struct Items<T>(pub Vec<T>);

impl<'a, T: Decoder<'a>> Decoder<'a> for Items<T> {
    fn decode(term: Term<'a>) -> NifResult<Self> {
        term.list_length()?;
        term.decode().map(Self)
    }
}

impl<T: Encoder> Encoder for Items<T> {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        self.0.encode(env)
    }
}

#[derive(NifUnitEnum, Clone, Copy)]
pub enum StatusTerm {
    Reserved,
    Active,
}

/// A record before it is sealed, and after its seal was checked.
#[derive(NifMap)]
pub struct RecordTerm {
    worker_id: String,
    run_id: String,
    status: StatusTerm,
    os_pid: Option<i64>,
    pgid: Option<i64>,
    identity: Option<Bytes>,
    elixir_pid: Option<String>,
    command: Items<Bytes>,
    spawned_at: i64,
}

/// Version and checksum, which a sealed record has besides its own fields.
#[derive(NifMap)]
pub struct SealTerm {
    version: u32,
    checksum: u64,
}

impl RecordTerm {
    pub fn seal(&self) -> SealTerm {
        SealTerm { version: record::VERSION, checksum: self.record().checksum() }
    }

    fn record(&self) -> Record {
        Record {
            worker_id: self.worker_id.clone(),
            run_id: self.run_id.clone(),
            status: match self.status {
                StatusTerm::Reserved => Status::Reserved,
                StatusTerm::Active => Status::Active,
            },
            os_pid: self.os_pid,
            pgid: self.pgid,
            identity: self.identity.clone().map(|bytes| bytes.0),
            elixir_pid: self.elixir_pid.clone(),
            command: self.command.0.iter().cloned().map(|bytes| bytes.0).collect(),
            spawned_at: self.spawned_at,
        }
    }
}

/// `:malformed`.
pub fn malformed() -> Atom {
    atoms::malformed()
}

/// The record in `term`, if its seal says that it is what was stored.
pub fn check_record(term: Term) -> Result<RecordTerm, Atom> {
    let malformed = |_| atoms::malformed();
    let seal: SealTerm = term.decode().map_err(malformed)?;
    let record: RecordTerm = term.decode().map_err(malformed)?;
    match record.record().check(seal.version, seal.checksum) {
        Ok(()) => Ok(record),
        Err(Flaw::Version) => Err(atoms::version()),
        Err(Flaw::Checksum) => Err(atoms::checksum()),
    }
}
