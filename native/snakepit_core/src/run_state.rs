//! The life of a run.

/// Where a run is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunState {
    /// The run id is claimed; nothing else has happened.
    Initializing,
    /// Dead runs are being cleaned up; no worker may start yet.
    CleaningStale,
    /// Workers may start.
    Running,
    /// Workers are being ended.
    ShuttingDown,
    /// Nothing is left.
    Terminated,
}

impl RunState {
    /// All states, in the order of a life.
    pub const ALL: [Self; 5] = [
        Self::Initializing,
        Self::CleaningStale,
        Self::Running,
        Self::ShuttingDown,
        Self::Terminated,
    ];

    /// The only state that may follow; `None` at the end.
    pub fn next(self) -> Option<Self> {
        match self {
            Self::Initializing => Some(Self::CleaningStale),
            Self::CleaningStale => Some(Self::Running),
            Self::Running => Some(Self::ShuttingDown),
            Self::ShuttingDown => Some(Self::Terminated),
            Self::Terminated => None,
        }
    }

    /// Whether `to` may follow this state.
    pub fn may_become(self, to: Self) -> bool {
        self.next() == Some(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_has_four_steps_and_no_others() {
        let steps: Vec<_> = RunState::ALL
            .iter()
            .flat_map(|from| RunState::ALL.iter().map(move |to| (*from, *to)))
            .filter(|(from, to)| from.may_become(*to))
            .collect();
        let life: Vec<_> = RunState::ALL.windows(2).map(|pair| (pair[0], pair[1])).collect();
        assert_eq!(steps, life);
    }
}
