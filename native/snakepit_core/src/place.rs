//! Where a run was. Only in the same place may anyone end what is left of it: in another container its pids belong
//! to other processes, and on another machine there is nothing to end. The rules are those of
//! `Snakepit.Ledger.Place`, which has them as a table.

use std::fs;

use crate::identity::Origin;
use crate::ledger::RunRecord;
use crate::{Error, Process};

/// Where the BEAM of a run ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// Here, and it is gone.
    Here,
    /// Here, and it runs.
    Running,
    /// In another container of this kernel.
    OtherContainer,
    /// On an earlier boot of this machine: nothing is left.
    OtherBoot,
    /// On another machine, or that cannot be told.
    Elsewhere,
}

/// Returns where the BEAM of this run ran. One that says nothing of itself counts as one from here: each of its
/// processes is looked at by itself.
///
/// # Errors
///
/// [`Error::Os`].
pub fn whereabouts(record: Option<&RunRecord>) -> Result<Whereabouts, Error> {
    let Some((record, beam)) = record.and_then(|record| Some((record, record.beam.as_ref()?)))
    else {
        return Ok(Whereabouts::Here);
    };
    let same_machine = || record.machine.is_some() && record.machine == machine();
    let same_namespace = || record.namespace.is_some() && record.namespace == namespace();
    Ok(match beam.origin()? {
        Origin::OtherNamespace => Whereabouts::OtherContainer,
        Origin::OtherBoot if same_machine() && same_namespace() => Whereabouts::OtherBoot,
        Origin::Unknown if !same_machine() => Whereabouts::Elsewhere,
        Origin::OtherBoot | Origin::Elsewhere => Whereabouts::Elsewhere,
        Origin::Here | Origin::Unknown => match Process::still_runs(beam) {
            Ok(false) => Whereabouts::Here,
            // A process that may be the BEAM counts as the BEAM.
            Ok(true) | Err(Error::Ambiguous(_)) => Whereabouts::Running,
            Err(error) => return Err(error),
        },
    })
}

/// Both: images are copied with the first, and the second is `localhost` on many machines.
fn machine() -> Option<String> {
    let id = fs::read_to_string("/etc/machine-id").ok()?;
    let id = id.trim();
    let name = nix::unistd::gethostname().ok()?.into_string().ok()?;
    // As `:inet.gethostname/0` has it, without the domain.
    let host = name.split('.').next().unwrap_or_default();
    (id.len() == 32).then(|| format!("{id}@{host}"))
}

fn namespace() -> Option<String> {
    fs::read_link("/proc/self/ns/pid").ok()?.into_os_string().into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identity, Pid};

    fn of(beam: Identity) -> RunRecord {
        let (machine, namespace) = (machine(), namespace());
        RunRecord { beam: Some(beam), machine, namespace, ..RunRecord::default() }
    }

    fn whereabouts_of(record: &RunRecord) -> Whereabouts {
        whereabouts(Some(record)).unwrap()
    }

    #[test]
    fn this_process_runs_here_and_others_are_told_by_boot_namespace_and_machine() {
        let own = Process::open(Pid::current()).unwrap().unwrap().identity().clone();
        assert_eq!(whereabouts(None).unwrap(), Whereabouts::Here);
        assert_eq!(whereabouts_of(&of(own.clone())), Whereabouts::Running);
        let contained = of(Identity { namespace: 1, ..own.clone() });
        assert_eq!(whereabouts_of(&contained), Whereabouts::OtherContainer);
        let earlier = of(Identity { boot: [9; 16], ..own });
        if machine().is_some() {
            assert_eq!(whereabouts_of(&earlier), Whereabouts::OtherBoot);
        }
        let other = RunRecord { machine: Some("x@y".into()), ..earlier };
        assert_eq!(whereabouts_of(&other), Whereabouts::Elsewhere);
    }
}
