//! The commands for people and scripts: what there is and was, read from a data directory without a BEAM.
//!
//! | module | |
//! |---|---|
//! | `options`, `help` | what was asked for, and what can be |
//! | `data_dir` | which directory is meant |
//! | `survey` | its runs and their processes |
//! | `ps`, `tree`, `history`, `doctor` | show something |
//! | `reap` | ends what dead runs have left behind |
//! | `init` | the first process of a container |
//! | `text`, `json` | how all that is written |
//!
//! Each command returns an exit status that scripts can use, see `EXIT STATUS` in the manual page.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use snakepit_core::Error;

mod data_dir;
mod doctor;
mod help;
mod history;
mod init;
mod json;
mod options;
mod ps;
mod reap;
mod survey;
mod text;
mod tree;

use json::Json;
use options::{Command, Invocation, Options};

/// How a command ended, where it is not the status of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// As it should be.
    Fine = 0,
    /// There is something to look at: processes of dead runs, a promise that is weaker here.
    Attention = 1,
    /// The command could not do what it was told.
    Failed = 2,
    /// It was not understood: `EX_USAGE` of `sysexits(3)`.
    Usage = 64,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status as u8)
    }
}

/// Why a command could not be carried out, as a sentence.
#[derive(Debug)]
struct Failure(String);

impl Failure {
    fn new(sentence: String) -> Self {
        Self(sentence)
    }

    fn at(path: &Path, error: &Error) -> Self {
        Self::of(path.display(), error)
    }

    fn of(what: impl Display, error: &Error) -> Self {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
        Self(format!("{what}: {error}{}", cause.unwrap_or_default()))
    }

    fn newer(data_dir: &Path, layout: u64) -> Self {
        let data_dir = data_dir.display();
        Self(format!(
            "{data_dir} was written by a newer Snakepit (layout {layout}): use the snakepit_guardian of that version"
        ))
    }
}

/// Carries out a command; `None` if it is the BEAM that starts its guardian.
pub fn run() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match options::parse(&arguments) {
        Invocation::Guardian => None,
        Invocation::Command(options) => Some(carry_out(&options)),
        Invocation::Mistake(mistake) => {
            eprintln!("snakepit_guardian: {mistake}\nTry 'snakepit_guardian --help'.");
            Some(Status::Usage.into())
        }
    }
}

fn carry_out(options: &Options) -> ExitCode {
    let done = match &options.command {
        Command::Help => show(help::TEXT),
        Command::Version => show(&format!("snakepit_guardian {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Ps { watch: Some(interval) } => ps::watch(options, *interval),
        Command::Ps { watch: None } => ps::run(options),
        Command::Tree => tree::run(options),
        Command::History { limit } => history::run(options, *limit),
        Command::Reap(reap) => reap::run(options, reap),
        Command::Doctor => doctor::run(options),
        Command::Init { grace, command } => return init::run(command, *grace),
    };
    match done {
        Ok(status) => status.into(),
        Err(Failure(sentence)) => {
            eprintln!("snakepit_guardian: {sentence}");
            Status::Failed.into()
        }
    }
}

fn show(text: &str) -> Result<Status, Failure> {
    print(text)?;
    Ok(Status::Fine)
}

/// Writes to standard output. A reader that has seen enough, `head` say, is no failure of this program's.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::new(format!("standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes an answer for programs: `fields`, and what all answers have.
fn print_json(command: &'static str, fields: Vec<(&'static str, Json)>) -> Result<(), Failure> {
    let mut all = vec![
        ("format", Json::from(1_i64)),
        ("command", command.into()),
        ("version", env!("CARGO_PKG_VERSION").into()),
    ];
    all.extend(fields);
    print(&format!("{}\n", Json::Object(all)))
}

/// The data directories that are meant; an empty list is said to people.
fn data_dirs(options: &Options) -> Result<Vec<PathBuf>, Failure> {
    let found = data_dir::choose(options.data_dir.as_deref())?;
    if found.is_empty() && !options.json {
        eprintln!(
            "snakepit_guardian: no data directory of this user was found in the usual places; name one with --data-dir"
        );
    }
    Ok(found)
}

/// How long lines may be: as was said, as the terminal is, or as they are.
fn width(options: &Options) -> usize {
    options.width.or_else(terminal_width).unwrap_or(usize::MAX)
}

fn terminal_width() -> Option<usize> {
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    // SAFETY: plain data, filled by the kernel.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a local.
    let result = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (result == 0 && size.ws_col > 0).then(|| size.ws_col.into())
}

/// Says of runs that may not be read why.
fn warn_of_foreign(data_dir: &Path, foreign: &[snakepit_core::run_id::RunId]) {
    if !foreign.is_empty() {
        let names: Vec<String> = foreign.iter().take(5).map(ToString::to_string).collect();
        eprintln!(
            "snakepit_guardian: {} runs in {} are not read, because others can have written there ({}): remove them, \
             or chmod -R go-w if they are yours",
            foreign.len(),
            data_dir.display(),
            names.join(", ")
        );
    }
}
