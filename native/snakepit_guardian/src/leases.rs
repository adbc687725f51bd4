//! Leases: what runs under one is ended with it, unless the BEAM renews it in time.
//!
//! A BEAM that hangs renews nothing, and its processes would live on while another node starts them too. So it
//! is the guardian that keeps the time. The moments are of a clock that counts also while the machine is suspended, which
//! the guardian's other clock does not.

use std::collections::HashMap;
use std::time::Duration;

use crate::event::Time;

/// What is due for those that run under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// To ask them to end, with so much time until they are killed.
    Ask(Duration),
    /// To kill them.
    Kill,
}

#[derive(Debug, Default)]
struct Lease {
    ask_at: Time,
    kill_at: Time,
    asked: bool,
    children: Vec<u64>,
}

/// All leases that are not over.
#[derive(Debug, Default)]
pub struct Leases {
    by_number: HashMap<u64, Lease>,
}

impl Leases {
    /// Begins a lease or renews it. It is never shortened: requests may come late.
    pub fn renew(&mut self, number: u64, ask_at: Time, kill_at: Time) {
        let lease = self.by_number.entry(number).or_default();
        lease.kill_at = lease.kill_at.max(kill_at);
        // Those that were asked to end are ending.
        if !lease.asked {
            lease.ask_at = lease.ask_at.max(ask_at.min(kill_at));
        }
    }

    /// Adds a child that is to run under a lease. Returns `false` if it must not, because the lease is over or never was.
    /// `is_there` says which of those before it are.
    pub fn add(
        &mut self,
        now: Time,
        number: u64,
        child: u64,
        is_there: impl Fn(u64) -> bool,
    ) -> bool {
        match self.by_number.get_mut(&number) {
            Some(lease) if !lease.asked && now < lease.ask_at => {
                lease.children.retain(|child| is_there(*child));
                lease.children.push(child);
                true
            }
            _ => false,
        }
    }

    /// Returns when something is due.
    pub fn deadline(&self) -> Option<Time> {
        let next = |lease: &Lease| if lease.asked { lease.kill_at } else { lease.ask_at };
        self.by_number.values().map(next).min()
    }

    /// Returns the children for which something is due, and what.
    pub fn due(&mut self, now: Time) -> Vec<(u64, Due)> {
        let mut due = Vec::new();
        self.by_number.retain(|_, lease| {
            let over = lease.kill_at <= now;
            if over {
                due.extend(lease.children.iter().map(|child| (*child, Due::Kill)));
            } else if lease.ask_at <= now && !lease.asked {
                lease.asked = true;
                let left = lease.kill_at.saturating_sub(now);
                due.extend(lease.children.iter().map(|child| (*child, Due::Ask(left))));
            }
            !over
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Duration::from_millis(ms)
    }

    #[test]
    fn those_under_a_lease_are_asked_and_then_killed() {
        let mut leases = Leases::default();
        leases.renew(1, at(80), at(100));
        assert!(leases.add(at(10), 1, 7, |_| true));
        assert_eq!(leases.deadline(), Some(at(80)));
        assert_eq!(leases.due(at(79)), []);
        assert_eq!(leases.due(at(90)), [(7, Due::Ask(at(10)))]);
        assert_eq!(leases.deadline(), Some(at(100)));
        assert_eq!(leases.due(at(99)), []);
        assert_eq!(leases.due(at(100)), [(7, Due::Kill)]);
        assert_eq!(leases.deadline(), None);
    }

    #[test]
    fn a_lease_that_is_renewed_goes_on_and_is_never_shortened() {
        let mut leases = Leases::default();
        leases.renew(1, at(80), at(100));
        assert!(leases.add(at(0), 1, 7, |_| true));
        leases.renew(1, at(180), at(200));
        leases.renew(1, at(130), at(150));
        assert_eq!(leases.due(at(179)), []);
        assert_eq!(leases.due(at(300)), [(7, Due::Kill)]);
    }

    #[test]
    fn nothing_starts_under_a_lease_that_is_ending_or_unknown() {
        let mut leases = Leases::default();
        assert!(!leases.add(at(0), 1, 7, |_| true));
        leases.renew(1, at(80), at(100));
        assert!(!leases.add(at(80), 1, 7, |_| true));
        assert_eq!(leases.due(at(80)), []);
        leases.renew(1, at(180), at(200));
        // Who was asked to end is not saved by a renewal, and has more time.
        assert!(!leases.add(at(90), 1, 7, |_| true));
        assert_eq!(leases.deadline(), Some(at(200)));
    }

    #[test]
    fn children_that_are_gone_are_forgotten() {
        let mut leases = Leases::default();
        leases.renew(1, at(80), at(100));
        assert!(leases.add(at(0), 1, 7, |_| true));
        assert!(leases.add(at(0), 1, 8, |_| false));
        assert_eq!(leases.due(at(100)), [(8, Due::Kill)]);
    }
}
