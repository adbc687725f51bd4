//! Which data directory is meant: the rules of `Snakepit.DataDir.Place`, without making anything.
//!
//! The last of them depends on the name of an application, which nobody says here. So all directories of this user
//! in the usual places are looked at.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use snakepit_core::{Error, directory, private_file, run_id::RunId};

use super::Failure;

/// The file that makes a directory a data directory.
const INSTANCE: &str = "instance";
/// No instance is longer.
const MAX_INSTANCE: u64 = 256;
/// The layout that is understood.
const LAYOUT: u64 = 1;

/// Returns the data directories that are meant: one that was named, or all that are in the usual places.
pub fn choose(named: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
    let named = named.map(Path::to_owned).or_else(|| {
        let state = variable("STATE_DIRECTORY").map(|paths| {
            let paths = paths.to_string_lossy().into_owned();
            Path::new(paths.split(':').next().unwrap_or_default()).join("snakepit")
        });
        variable("SNAKEPIT_DATA_DIR").map(PathBuf::from).or(state)
    });
    match named {
        Some(path) => {
            let path = std::path::absolute(&path).unwrap_or(path);
            let directory = private(&path);
            match fs::metadata(&directory) {
                Ok(metadata) if metadata.is_dir() => Ok(vec![directory]),
                Ok(_) => Err(Failure::new(format!("{} is no directory", directory.display()))),
                Err(error) => {
                    Err(Failure::new(format!("{} cannot be read: {error}", directory.display())))
                }
            }
        }
        None => Ok(usual(&variable)),
    }
}

/// Where others may write, it is a directory of this user below.
fn private(path: &Path) -> PathBuf {
    let user = geteuid().as_raw();
    let below = path.join(format!("snakepit-{user}"));
    let ours = fs::symlink_metadata(&below).is_ok_and(|one| one.is_dir() && one.uid() == user);
    if ours { below } else { path.to_owned() }
}

fn usual(variable: &impl Fn(&'static str) -> Option<std::ffi::OsString>) -> Vec<PathBuf> {
    let mut parents = Vec::new();
    for (base, below) in [
        (variable("XDG_STATE_HOME"), "snakepit"),
        (variable("HOME"), ".local/state/snakepit"),
        (Some("/var/tmp".into()), ""),
        (Some(env::temp_dir().into_os_string()), ""),
    ] {
        let Some(base) = base.map(PathBuf::from).filter(|base| base.is_absolute()) else {
            continue;
        };
        let private = private(&base);
        // What is beside other programs' files, and not below a name of ours, is not searched.
        if below.is_empty() && private == base {
            continue;
        }
        parents.push(private.join(below));
    }
    let mut found = Vec::new();
    for parent in parents {
        for name in directory::list(&parent).unwrap_or_default() {
            let candidate = private(&parent.join(name));
            if is_data_directory(&candidate) && !found.contains(&candidate) {
                found.push(candidate);
            }
        }
    }
    found.sort();
    found
}

/// By its instance, which only this user can have written; or by a run, of a version that had no such file.
fn is_data_directory(path: &Path) -> bool {
    private_file::read(&path.join(INSTANCE), MAX_INSTANCE).is_ok()
        || directory::runs(path).is_ok_and(|runs| !runs.own.is_empty())
}

/// What the file `instance` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instance {
    /// This.
    Known(String),
    /// It is not there, or damaged.
    Unknown,
    /// It was written by a later version, with a layout of this number.
    Newer(u64),
}

/// Reads the instance of a data directory.
///
/// # Errors
///
/// As for [`private_file::read`], but that there is none.
pub fn instance(data_dir: &Path) -> Result<Instance, Error> {
    match private_file::read(&data_dir.join(INSTANCE), MAX_INSTANCE) {
        Ok(bytes) => Ok(parse(&String::from_utf8_lossy(&bytes))),
        Err(Error::Os { errno: nix::errno::Errno::ENOENT | nix::errno::Errno::EFBIG, .. }) => {
            Ok(Instance::Unknown)
        }
        Err(error) => Err(error),
    }
}

/// A line that was cut has no end, and one without its last digits is too short.
fn parse(text: &str) -> Instance {
    let Some((line, _rest)) = text.split_once('\n') else { return Instance::Unknown };
    let words: Vec<&str> = line.split(' ').collect();
    let ["snakepit", layout, rest @ ..] = words.as_slice() else { return Instance::Unknown };
    match (layout.parse::<u64>(), rest) {
        (Ok(layout), _) if layout > LAYOUT => Instance::Newer(layout),
        (Ok(LAYOUT), [instance]) if is_instance(instance) => Instance::Known((*instance).into()),
        _ => Instance::Unknown,
    }
}

/// A user and 32 digits to the base 16; or 16 of them, as it was before there was a file.
fn is_instance(text: &str) -> bool {
    let hex = |text: &str, count: usize| {
        text.len() == count
            && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    hex(text, 16) || text.split_once('-').is_some_and(|(user, rest)| number(user) && hex(rest, 32))
}

/// The runs of a data directory with the names of their files, the oldest directory first, and those that may not be
/// read.
pub type Runs = (Vec<(RunId, Vec<String>)>, Vec<RunId>);

/// Lists the runs of a data directory.
pub fn runs(data_dir: &Path) -> Result<Runs, Failure> {
    let runs = directory::runs(data_dir).map_err(|error| Failure::at(data_dir, &error))?;
    let names = |files: Vec<std::ffi::OsString>| {
        files.into_iter().map(|name| name.to_string_lossy().into_owned()).collect()
    };
    let mut own: Vec<(RunId, Vec<String>)> =
        runs.own.into_iter().map(|(id, files)| (id, names(files))).collect();
    own.sort_by_key(|(id, _)| id.to_string());
    Ok((own, runs.foreign))
}

/// Whether a run was closed: then it is history.
pub fn is_closed(files: &[String]) -> bool {
    files.iter().any(|name| name == "history")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_whole_or_unknown() {
        let line = "snakepit 1 1000-00112233445566778899aabbccddeeff\n";
        let known = Instance::Known("1000-00112233445566778899aabbccddeeff".into());
        assert_eq!(parse(line), known);
        for length in 0..line.len() {
            assert_eq!(parse(&line[..length]), Instance::Unknown, "{length} bytes");
        }
        assert_eq!(
            parse("snakepit 1 0123456789abcdef\n"),
            Instance::Known("0123456789abcdef".into())
        );
        assert_eq!(parse("snakepit 2 anything\n"), Instance::Newer(2));
        for text in
            ["", "\n", "snakepit\n", "snakepit 1\n", "snakepit 1 x\n", "other 1 0123456789abcdef\n"]
        {
            assert_eq!(parse(text), Instance::Unknown, "{text}");
        }
    }
}
