//! The rules of a lease: by them a process exists at most once in a cluster.
//!
//! Members grant a lease to one holder at a time. Who has grants of a majority of the members may run the process, for as
//! long as those grants last. `Snakepit.Cluster.Lease` has the same rules in Elixir; here they are checked by a
//! model (`tests/safety.rs`, `tests/tokens.rs`, `tests/takeover.rs`).
//!
//! ```text
//! holder's clock   request sent ─────────────────┬───────────────┬──── the grant counts no more
//!                  │          runs              kill   ending   dead
//!                  ▼
//! member's clock      granted ───────────────────────────────────────────────▶ free for another
//!                     └──────────────── lease, by a clock that may run fast ──┘
//! ```
//!
//! 1. A grant counts for the holder from the moment at which it *sent its request*. The member counts from when the
//!    request came in, which is later.
//! 2. For the holder it counts less long, by as much as the member's clock may run faster during one lease.
//! 3. The process is killed so much earlier that it is dead when the grant counts no more.
//! 4. A member that has restarted has forgotten what it granted. It grants nothing for one lease.
//! 5. A lease is given back when the process is dead, and not when it was asked to end.
//! 6. The token of a lease is greater than any number that a majority has on its disks, and each member has it on its
//!    disk before it grants. Each attempt has a token of its own. At most one process does not need that; growing tokens do.

/// A moment or a duration, in any unit.
pub type Time = i64;

/// How long everything takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long a member's grant lasts, by its clock.
    pub lease: Time,
    /// How much of that a clock that runs faster than the holder's may skip.
    pub drift: Time,
    /// What it takes to kill a process.
    pub ending: Time,
}

impl Rules {
    /// Returns how long a grant counts for the holder, from the moment of its request.
    pub fn counts(&self) -> Time {
        self.lease - self.drift
    }

    /// Returns how long after the request the process is killed, if nothing renews its lease.
    pub fn runs(&self) -> Time {
        self.counts() - self.ending
    }
}

/// One who asks for a lease.
pub type Holder = u8;

/// A number that is greater for a later lease.
pub type Token = u64;

/// What a member has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// To whom.
    pub holder: Holder,
    /// Which of its leases.
    pub token: Token,
    /// Until when.
    pub until: Time,
}

/// What a member answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The lease is granted, or is granted again.
    Granted,
    /// Another has it.
    Taken,
    /// It has restarted, and may have granted it to another before.
    Restarted,
    /// The token has to be greater than this.
    Stale(Token),
}

/// One who grants a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// Until when it grants nothing.
    pub silent_until: Time,
    /// What it has granted.
    pub grant: Option<Grant>,
    /// The greatest token that it has granted, on its disk.
    pub number: Token,
}

impl Member {
    /// Returns a member that begins now, with the number from its disk.
    pub fn restarted(now: Time, rules: &Rules, number: Token) -> Self {
        Self { silent_until: now + rules.lease, grant: None, number }
    }

    /// Answers one who wants the lease, with a token of its own.
    pub fn acquire(&mut self, now: Time, rules: &Rules, holder: Holder, token: Token) -> Answer {
        let own = self.grant.is_some_and(|grant| (grant.holder, grant.token) == (holder, token));
        match self.free_for(now, holder, token) {
            Answer::Granted if !own && token <= self.number => Answer::Stale(self.number),
            Answer::Granted => {
                self.number = self.number.max(token);
                self.extend(now, rules, holder, token)
            }
            refusal => refusal,
        }
    }

    /// Answers one who has the lease. Its token need not be the greatest here: in a minority another may have tried.
    pub fn renew(&mut self, now: Time, rules: &Rules, holder: Holder, token: Token) -> Answer {
        match self.free_for(now, holder, token) {
            Answer::Granted => self.extend(now, rules, holder, token),
            refusal => refusal,
        }
    }

    /// The holder gives the lease back, or gives up.
    pub fn release(&mut self, holder: Holder, token: Token) {
        self.grant = self.grant.filter(|grant| (grant.holder, grant.token) != (holder, token));
    }

    fn free_for(&self, now: Time, holder: Holder, token: Token) -> Answer {
        match self.grant {
            _ if now < self.silent_until => Answer::Restarted,
            Some(grant) if (grant.holder, grant.token) == (holder, token) => Answer::Granted,
            Some(grant) if now < grant.until => Answer::Taken,
            _ => Answer::Granted,
        }
    }

    fn extend(&mut self, now: Time, rules: &Rules, holder: Holder, token: Token) -> Answer {
        self.grant = Some(Grant { holder, token, until: now + rules.lease });
        Answer::Granted
    }
}

/// Returns until when the grants of a majority count, if each of them counts until the given moment.
pub fn majority_until(mut counts_until: Vec<Time>) -> Option<Time> {
    counts_until.sort_unstable_by(|a, b| b.cmp(a));
    counts_until.get(counts_until.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { lease: 10, drift: 1, ending: 2 };

    #[test]
    fn a_member_grants_to_one_at_a_time_and_to_another_when_the_lease_is_over() {
        let mut member = Member::default();
        assert_eq!(member.acquire(0, &RULES, 1, 5), Answer::Granted);
        assert_eq!(member.acquire(9, &RULES, 2, 6), Answer::Taken);
        assert_eq!(member.renew(9, &RULES, 1, 5), Answer::Granted);
        assert_eq!(member.acquire(18, &RULES, 2, 6), Answer::Taken);
        assert_eq!(member.acquire(19, &RULES, 2, 5), Answer::Stale(5));
        assert_eq!(member.acquire(19, &RULES, 2, 6), Answer::Granted);
        member.release(1, 5);
        assert_eq!(member.acquire(19, &RULES, 1, 7), Answer::Taken);
        member.release(2, 6);
        assert_eq!(member.acquire(19, &RULES, 1, 7), Answer::Granted);
    }

    #[test]
    fn a_member_that_has_restarted_grants_nothing_for_one_lease() {
        let mut member = Member::restarted(100, &RULES, 7);
        assert_eq!(member.renew(109, &RULES, 1, 7), Answer::Restarted);
        assert_eq!(member.acquire(110, &RULES, 1, 7), Answer::Stale(7));
        assert_eq!(member.renew(110, &RULES, 1, 7), Answer::Granted);
    }

    #[test]
    fn a_majority_counts_until_the_first_of_its_grants_is_over() {
        assert_eq!(majority_until(vec![5, 9, 7]), Some(7));
        assert_eq!(majority_until(vec![0, 9, 0, 8, 7]), Some(7));
        assert_eq!(majority_until(vec![3]), Some(3));
        assert_eq!(majority_until(vec![9, 4]), Some(4));
        assert_eq!(majority_until(vec![9, 8, 4, 3]), Some(4));
    }
}
