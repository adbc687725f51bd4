//! What this place lets the BEAM do, as Elixir sees it.

use rustler::{Encoder, Env, Term};
use snakepit_core::self_test::{self, Facts, Table};

use crate::terms::{errno_atom, map};

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
