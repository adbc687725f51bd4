//! Leases on the model of a kernel, and what must hold of them.

use std::time::Duration;

use snakepit_core::wire::Request;

use super::kernel::State;
use super::shell::Shell;

impl Shell {
    fn lease_time(&self) -> Duration {
        self.kernel.now + self.suspended
    }

    pub fn pass_lease_time(&mut self) {
        if self.machine.lease_deadline().is_some() {
            self.machine.pass_lease_time(self.kernel.now, self.lease_time());
            self.perform_all();
        }
    }

    pub fn renew(&mut self, lease: u64, ms: u64) {
        let ask_at = self.lease_time() + Duration::from_millis(ms);
        let kill_at = ask_at + Duration::from_millis(ms / 2);
        let last = self.leases.entry(lease).or_default();
        *last = kill_at.max(*last);
        let millis = |moment: Duration| u64::try_from(moment.as_millis()).unwrap();
        let (ask_at_ms, kill_at_ms) = (millis(ask_at), millis(kill_at));
        self.request(Request::Lease { lease, ask_at_ms, kill_at_ms });
    }

    pub fn is_over(&self, id: u64) -> bool {
        let lease = self.under.get(&id);
        lease.is_some_and(|lease| self.leases.get(lease).is_none_or(|at| *at <= self.lease_time()))
    }

    /// Nothing that was killed because its lease is over lives on, if it can be killed.
    pub fn check_leases(&self) {
        // A moment ago some could not be killed, and the next try is at most a second away.
        if self.kernel.now < self.kernel.let_go_at + Duration::from_secs(1) {
            return;
        }
        for (id, pid) in self.out.iter().filter(|(id, _)| self.is_over(**id)) {
            let Some(leader) = self.kernel.processes.get(pid) else { continue };
            let dead = matches!(leader.state, State::Zombie(_));
            let stays = leader.nature.stuck || leader.nature.refuses.is_some();
            assert!(dead || stays, "the lease of {id} is over, and {leader:?} lives");
        }
    }
}
