//! What this place lets the BEAM do, as Elixir sees it.

use rustler::{Encoder, Env, NifMap, NifUnitEnum, Term};
use snakepit_core::self_test::{self, Facts, Table};

use crate::terms::{Bytes, errno_atom, map};

mod atoms {
    rustler::atoms! {
        os_pid, table, own, foreign, absent, pidfd, handles, lock_limit, hides, boot, filtered,
    }
}

/// `Snakepit.Native.self_test/0`. Reads from `/proc`.
#[rustler::nif(schedule = "DirtyIo")]
fn self_test() -> FactsTerm {
    FactsTerm(self_test::examine())
}

#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
#[derive(NifUnitEnum)]
enum LevelTerm {
    Fine,
    Note,
    Weaker,
    Broken,
}

#[derive(NifMap)]
struct FindingTerm {
    check: String,
    level: LevelTerm,
    found: String,
    cost: String,
    remedy: String,
}

/// `Snakepit.Native.doctor_report/1`. Reads files, and makes one for a moment.
#[cfg(target_os = "linux")]
#[rustler::nif(schedule = "DirtyIo")]
fn doctor_report(data_dirs: Vec<Bytes>) -> Vec<FindingTerm> {
    use snakepit_core::doctor::{self, Level};

    let data_dirs: Vec<_> = data_dirs.into_iter().map(crate::as_path).collect();
    let term = |finding: doctor::Finding| FindingTerm {
        check: finding.check.to_owned(),
        level: match finding.level {
            Level::Fine => LevelTerm::Fine,
            Level::Note => LevelTerm::Note,
            Level::Weaker => LevelTerm::Weaker,
            Level::Broken => LevelTerm::Broken,
        },
        found: finding.found,
        cost: finding.cost,
        remedy: finding.remedy,
    };
    doctor::report(&data_dirs).into_iter().map(term).collect()
}

/// There is no guardian on this system, and nothing to find out.
#[cfg(not(target_os = "linux"))]
#[rustler::nif(schedule = "DirtyIo")]
fn doctor_report(_data_dirs: Vec<Bytes>) -> Vec<FindingTerm> {
    Vec::new()
}

struct FactsTerm(Facts);

impl Encoder for FactsTerm {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let Facts { pid, table, pidfd, handles, lock_limit, hides, boot, filtered } = &self.0;
        let table = match table {
            Table::Own => atoms::own().encode(env),
            Table::Foreign(pid) => (atoms::foreign(), *pid).encode(env),
            Table::Absent(errno) => (atoms::absent(), errno_atom(env, *errno)).encode(env),
        };
        let pidfd = pidfd.map(|refusal| (refusal.call, errno_atom(env, refusal.errno)));
        let pairs = [
            (atoms::os_pid(), pid.as_raw().encode(env)),
            (atoms::table(), table),
            (atoms::pidfd(), pidfd.encode(env)),
            (atoms::handles(), handles.encode(env)),
            (atoms::lock_limit(), lock_limit.encode(env)),
            (atoms::hides(), hides.encode(env)),
            (atoms::boot(), boot.encode(env)),
            (atoms::filtered(), filtered.encode(env)),
        ];
        map(env, &pairs)
    }
}
