//! How much of the time reading output may take.
//!
//! A process that prints without end would otherwise keep the guardian, and with it a processor, busy. With
//! this it waits in its own `write` instead.

use std::time::Duration;

use crate::event::Time;

/// Output is read for at most this part of each period. What is printed in bursts is not held up.
const PERIOD: Duration = Duration::from_millis(10);
const SHARE: Duration = Duration::from_millis(2);

/// The time that was spent in the present period.
#[derive(Debug, Default)]
pub struct Budget {
    begun: Time,
    spent: Duration,
    rest_until: Option<Time>,
}

impl Budget {
    /// Adds that reading took from `begun` to `ended`. Returns true if that is enough for this period:
    /// nothing is read until [`Budget::deadline`].
    pub fn spend(&mut self, begun: Time, ended: Time) -> bool {
        if begun >= self.begun + PERIOD {
            self.begun = begun;
            self.spent = Duration::ZERO;
        }
        self.spent += ended.saturating_sub(begun);
        let enough = self.spent >= SHARE;
        if enough {
            self.rest_until = Some(self.begun + PERIOD);
        }
        enough
    }

    /// Returns when reading goes on, if it has to wait.
    pub fn deadline(&self) -> Option<Time> {
        self.rest_until
    }

    /// Returns true once, when the wait is over.
    pub fn resume(&mut self, now: Time) -> bool {
        let over = self.rest_until.is_some_and(|until| until <= now);
        if over {
            self.rest_until = None;
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Time {
        Duration::from_millis(count)
    }

    #[test]
    fn a_fifth_of_each_period_is_the_most() {
        let mut budget = Budget::default();
        assert!(!budget.spend(ms(20), ms(21)));
        assert!(budget.spend(ms(21), ms(22)));
        assert_eq!(budget.deadline(), Some(ms(30)));
        assert!(!budget.resume(ms(29)));
        assert!(budget.resume(ms(30)));
        assert!(!budget.resume(ms(30)));
        assert!(!budget.spend(ms(30), ms(31)), "a new period begins");
    }
}
