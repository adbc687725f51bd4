//! The data directory, as Elixir asks for it. Everything here waits for the disk.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use rustler::NifMap;
use snakepit_core::run_id::RunId;
use snakepit_core::{directory, private_file};

use crate::terms::Bytes;
use crate::{Answer, as_path};

/// Whose a directory is, and where it lies.
#[derive(NifMap)]
struct StandingTerm {
    owner: u32,
    user: u32,
    shared: bool,
    remote: Option<String>,
}

/// `Snakepit.Native.directory_list/1`. OTP takes an error of `readdir(3)` for the end of the directory; this
/// does not.
#[rustler::nif(schedule = "DirtyIo")]
fn directory_list(path: Bytes) -> Answer<Vec<Bytes>> {
    let names = directory::list(&as_path(path))?;
    Ok(names.into_iter().map(|name| Bytes(name.into_vec())).collect())
}

/// `Snakepit.Native.directory_make/1`: with those above it.
#[rustler::nif(schedule = "DirtyIo")]
fn directory_make(path: Bytes) -> Answer<()> {
    Ok(directory::make(&as_path(path))?)
}

/// `Snakepit.Native.directory_claim/1`: one that is not there yet.
#[rustler::nif(schedule = "DirtyIo")]
fn directory_claim(path: Bytes) -> Answer<()> {
    Ok(directory::claim(&as_path(path))?)
}

/// `Snakepit.Native.directory_look/2`.
#[rustler::nif(schedule = "DirtyIo")]
fn directory_look(path: Bytes, follows: bool) -> Answer<StandingTerm> {
    let standing = directory::inspect(&as_path(path), follows)?;
    Ok(StandingTerm {
        owner: standing.owner,
        user: standing.user,
        shared: standing.shared,
        remote: standing.remote,
    })
}

/// `Snakepit.Native.path_close/1`: to others than its user.
#[rustler::nif(schedule = "DirtyIo")]
fn path_close(path: Bytes) -> Answer<()> {
    Ok(directory::close_to_others(&as_path(path))?)
}

/// A run and the names of its files.
type Listed = (String, Vec<Bytes>);

/// `Snakepit.Native.directory_runs/1`: those of this user, and those that are not to be read.
#[rustler::nif(schedule = "DirtyIo")]
fn directory_runs(path: Bytes) -> Answer<(Vec<Listed>, Vec<String>)> {
    let runs = directory::runs(&as_path(path))?;
    let names = |files: Vec<OsString>| files.into_iter().map(|name| Bytes(name.into_vec()));
    let own = runs.own.into_iter().map(|(id, files)| (id.to_string(), names(files).collect()));
    Ok((own.collect(), runs.foreign.iter().map(RunId::to_string).collect()))
}

/// `Snakepit.Native.file_read/2`: a file of this user that nobody else may write to.
#[rustler::nif(schedule = "DirtyIo")]
fn file_read(path: Bytes, max_bytes: u64) -> Answer<Bytes> {
    Ok(Bytes(private_file::read(&as_path(path), max_bytes)?))
}

/// `Snakepit.Native.files_read/2`: the same for many, in one go. `nil` for those that cannot be read.
#[rustler::nif(schedule = "DirtyIo")]
fn files_read(paths: Vec<Bytes>, max_bytes: u64) -> Vec<Option<Bytes>> {
    let read = |path| private_file::read(&as_path(path), max_bytes).ok().map(Bytes);
    paths.into_iter().map(read).collect()
}

/// `Snakepit.Native.file_create/2`: unless there is one.
#[rustler::nif(schedule = "DirtyIo")]
fn file_create(path: Bytes, content: Bytes) -> Answer<()> {
    Ok(private_file::create(&as_path(path), &content.0)?)
}
