//! What the command line asks for. Pure: no file is looked at.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use snakepit_core::run_id::RunId;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The processes of all runs, again and again with an interval.
    Ps { watch: Option<Duration> },
    /// The same as trees.
    Tree,
    /// How runs have ended.
    History { limit: usize },
    /// What dead runs have left behind.
    Reap(Reap),
    /// What this place allows.
    Doctor,
    /// The first process of a container.
    Init { grace: Duration, command: Vec<OsString> },
    /// What can be asked for.
    Help,
    /// The version.
    Version,
}

/// How to reap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reap {
    /// Ends what it has found.
    pub yes: bool,
    /// How long processes have to end.
    pub grace: Duration,
    /// Of which instance; the data directory's own if it is not said.
    pub instance: Option<String>,
}

/// A command and how it is to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub command: Command,
    pub data_dir: Option<PathBuf>,
    pub json: bool,
    /// How wide lines may be; the terminal's width if it is not said.
    pub width: Option<usize>,
}

/// What the arguments turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invocation {
    /// The BEAM starts its guardian, with the id of its run as the only argument.
    Guardian,
    Command(Options),
    /// A mistake, in words.
    Mistake(String),
}

/// How many runs of the past are shown.
const LIMIT: usize = 20;
/// How often `--watch` looks.
const INTERVAL: Duration = Duration::from_secs(2);
/// What the library gives processes of dead runs (`graceful_shutdown_timeout_ms`).
const REAP_GRACE: Duration = Duration::from_secs(2);
/// Longer than a guardian takes as it is configured by default, and less than `docker stop` waits.
const INIT_GRACE: Duration = Duration::from_secs(8);

/// Returns what these arguments, without the program's name, ask for.
pub fn parse(arguments: &[OsString]) -> Invocation {
    let Some((first, rest)) = arguments.split_first() else {
        return Invocation::Mistake("no command was given".into());
    };
    let name = first.to_string_lossy();
    let command = match name.as_ref() {
        "--help" | "-h" | "help" => Command::Help,
        "--version" | "-V" => Command::Version,
        "ps" => Command::Ps { watch: None },
        "tree" => Command::Tree,
        "history" => Command::History { limit: LIMIT },
        "reap" => Command::Reap(Reap { yes: false, grace: REAP_GRACE, instance: None }),
        "doctor" => Command::Doctor,
        "init" => Command::Init { grace: INIT_GRACE, command: Vec::new() },
        // A test or a wrapper may say more; a person has misspelt a command.
        _ if rest.is_empty() && !looks_like_a_command(first) => return Invocation::Guardian,
        _ => return Invocation::Mistake(format!("there is no command '{name}'")),
    };
    let options = Options { command, data_dir: None, json: false, width: None };
    match fill(options, rest) {
        Ok(options) => Invocation::Command(options),
        Err(mistake) => Invocation::Mistake(mistake),
    }
}

/// No run id, and nothing but letters and hyphens.
fn looks_like_a_command(argument: &OsStr) -> bool {
    let bytes = argument.as_encoded_bytes();
    RunId::from_bytes(bytes).is_none()
        && bytes.iter().all(|byte| byte.is_ascii_alphabetic() || *byte == b'-')
}

fn fill(mut options: Options, arguments: &[OsString]) -> Result<Options, String> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        if let (Command::Init { command, .. }, "--") = (&mut options.command, text.as_ref()) {
            *command = rest.by_ref().cloned().collect();
            break;
        }
        let (name, mut joined) = split(argument);
        let mut value = || {
            let next = joined.take().or_else(|| rest.next().cloned());
            next.filter(|one| !one.is_empty()).ok_or_else(|| format!("{name} needs a value"))
        };
        match (name.as_str(), &mut options.command) {
            ("--help" | "-h", _) => options.command = Command::Help,
            ("--json", _) => options.json = true,
            ("--data-dir", _) => options.data_dir = Some(PathBuf::from(value()?)),
            ("--width", _) => options.width = Some(number(&name, &value()?)?),
            ("--watch", Command::Ps { watch }) => {
                *watch = Some(match joined.take() {
                    None => INTERVAL,
                    Some(seconds) => seconds_of(&name, &seconds)?,
                });
            }
            ("--limit", Command::History { limit }) => *limit = number(&name, &value()?)?,
            ("--yes", Command::Reap(reap)) => reap.yes = true,
            ("--instance", Command::Reap(reap)) => {
                let instance = value()?.into_string();
                reap.instance = Some(instance.map_err(|_| format!("{name} has to be text"))?);
            }
            ("--grace", Command::Reap(Reap { grace, .. }) | Command::Init { grace, .. }) => {
                *grace = Duration::from_millis(number(&name, &value()?)?);
            }
            (_, Command::Init { .. }) if !name.starts_with('-') => {
                return Err(format!("the command of init stands behind '--': init -- {text}"));
            }
            _ => return Err(format!("there is no option '{text}' here")),
        }
        if joined.is_some() {
            return Err(format!("{name} takes no value"));
        }
    }
    match &options.command {
        Command::Init { command, .. } if command.is_empty() => {
            Err("init needs a command: init -- COMMAND [ARGUMENT...]".into())
        }
        Command::Ps { watch: Some(_) } if options.json => {
            Err("--watch and --json do not go together".into())
        }
        _ => Ok(options),
    }
}

/// Splits `--name=value`.
fn split(argument: &OsStr) -> (String, Option<OsString>) {
    let text = argument.to_string_lossy();
    match text.split_once('=') {
        Some((name, value)) if name.starts_with("--") => (name.into(), Some(value.into())),
        _ => (text.into_owned(), None),
    }
}

fn number<N: std::str::FromStr>(name: &str, value: &OsStr) -> Result<N, String> {
    let text = value.to_string_lossy();
    text.parse().map_err(|_| format!("{name} has to be a whole number, not '{text}'"))
}

fn seconds_of(name: &str, value: &OsStr) -> Result<Duration, String> {
    let text = value.to_string_lossy();
    let seconds: Option<f64> = text.parse().ok();
    let usable = seconds.filter(|seconds| (0.1..=86_400.0).contains(seconds));
    usable
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("{name} has to be from 0.1 to 86400 seconds, not '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Invocation {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        super::parse(&words)
    }

    fn options(line: &str) -> Options {
        match parse(line) {
            Invocation::Command(options) => options,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn mistake(line: &str) -> String {
        match parse(line) {
            Invocation::Mistake(mistake) => mistake,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_run_id_alone_is_a_guardian_and_a_name_is_a_command() {
        for id in ["k3x9a2p", "abcdefg", "86400.12345"] {
            assert_eq!(parse(id), Invocation::Guardian, "{id}");
        }
        for name in ["ps", "tree", "history", "reap", "doctor"] {
            assert!(matches!(parse(name), Invocation::Command(_)), "{name}");
        }
        assert_eq!(mistake("pss"), "there is no command 'pss'");
        assert_eq!(mistake("k3x9a2p more"), "there is no command 'k3x9a2p'");
        assert_eq!(mistake(""), "no command was given");
    }

    #[test]
    fn options_stand_behind_the_command_joined_or_apart() {
        let one = options("reap --yes --grace 500 --data-dir=/x --instance a --json");
        let reap =
            Reap { yes: true, grace: Duration::from_millis(500), instance: Some("a".into()) };
        assert_eq!(one.command, Command::Reap(reap));
        assert_eq!((one.data_dir, one.json), (Some("/x".into()), true));
        assert_eq!(options("history --limit=3").command, Command::History { limit: 3 });
        let watch = Some(Duration::from_millis(500));
        assert_eq!(options("ps --watch=0.5 --width 40").command, Command::Ps { watch });
        assert_eq!(options("ps --help").command, Command::Help);
    }

    #[test]
    fn the_command_of_init_is_left_as_it_is() {
        let init = options("init --grace 1 -- sh -c --help --json");
        let command = ["sh", "-c", "--help", "--json"].map(OsString::from).to_vec();
        assert_eq!(init.command, Command::Init { grace: Duration::from_millis(1), command });
        assert!(mistake("init").contains("needs a command"));
        assert!(mistake("init sh").contains("behind '--'"));
        assert!(mistake("init --").contains("needs a command"));
    }

    #[test]
    fn a_mistake_names_what_is_wrong() {
        assert!(mistake("ps --yes").contains("'--yes'"));
        assert!(mistake("ps extra").contains("'extra'"));
        assert!(mistake("history --limit x").contains("'x'"));
        assert!(mistake("ps --data-dir").contains("needs a value"));
        assert!(mistake("ps --json=yes").contains("takes no value"));
        assert!(mistake("ps --watch=0").contains("0.1"));
        assert!(mistake("ps --watch --json").contains("together"));
    }
}
