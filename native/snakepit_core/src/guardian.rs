//! Which processes are guardians, and of which runs.
//!
//! A guardian is started with its run's id as its only argument. Another process with that name and argument
//! has them on purpose.

use crate::process::Found;
use crate::run_id::RunId;
use crate::table::{self, Columns, Entry};
use crate::{Error, Identity, Pid, Process};

/// What its executable is called.
const NAME: &[u8] = b"snakepit_guardian";

/// More ancestors than anyone has. The table changes while it is read, and may seem to have a circle.
const DEPTH: usize = 256;

const COLUMNS: Columns = Columns { uid: false, arguments: true, markers: false };

/// Returns the process that `identity` was taken from, if it is the guardian of this run: with an identity
/// that was taken now, and is good however old the recorded one is.
///
/// # Errors
///
/// [`Error::Os`].
pub fn find(identity: &Identity, run_id: RunId) -> Result<Option<Identity>, Error> {
    if matches!(Process::reopen(identity, Some(run_id))?, Found::Gone) {
        return Ok(None);
    }
    // Where the recorded identity leaves a doubt, the name of the process decides.
    let process = match Process::open_settled(identity.pid) {
        Ok(process) => process,
        Err(Error::Ambiguous(_)) => None,
        Err(error) => return Err(error),
    };
    let Some(process) = process else { return Ok(None) };
    let entry = process.inspect(COLUMNS)?.filter(Entry::is_alive);
    let is_one = entry.is_some_and(|entry| run_of(&entry) == Some(run_id) && has_image(entry.pid));
    Ok(is_one.then(|| process.identity().clone()))
}

/// Returns the guardians that a process is below, from the nearest on.
pub(crate) fn above(pid: Pid) -> impl Iterator<Item = Pid> {
    let parent = |pid: Pid| {
        let entry = table::read_one(pid, Columns::default()).ok().flatten()?;
        Pid::new(entry.parent.into())
    };
    let ancestors = std::iter::successors(parent(pid), move |pid| parent(*pid)).take(DEPTH);
    ancestors.filter(|pid| is_one(*pid))
}

/// Returns whether a process is a guardian, of any run; one that is gone is none.
pub fn is_one(pid: Pid) -> bool {
    let entry = table::read_one(pid, COLUMNS).ok().flatten();
    entry.is_some_and(|entry| entry.is_alive() && run_of(&entry).is_some())
}

/// Returns the run that a process is the guardian of, by its name and argument.
pub fn run_of(entry: &Entry) -> Option<RunId> {
    let mut arguments = entry.arguments.iter();
    let name = arguments.next()?.rsplit(|byte| *byte == b'/').next()?;
    let run_id = RunId::from_bytes(arguments.next()?)?;
    (name == NAME && arguments.next().is_none()).then_some(run_id)
}

/// Returns whether its executable has that name too, where that can be read. The file may have been replaced
/// by a later version meanwhile.
fn has_image(pid: Pid) -> bool {
    let Ok(image) = std::fs::read_link(format!("/proc/{pid}/exe")) else { return true };
    let name = image.file_name().unwrap_or_default().as_encoded_bytes();
    name.strip_suffix(b" (deleted)").unwrap_or(name) == NAME
}
