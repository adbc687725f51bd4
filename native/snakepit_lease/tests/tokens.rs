//! Tokens only grow: each lease has a greater one than all leases before it, whatever members forget when they restart.
#![allow(missing_docs, clippy::unwrap_used)]

use snakepit_lease::{Answer, Holder, Member, Rules, Token};
use stateright::{Checker, Model, Property};

const RULES: Rules = Rules { lease: 1, drift: 0, ending: 0 };
const MEMBERS: usize = 3;
const GREATEST: Token = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// A member grants before its disk has the token.
    NotStored,
    /// A member grants whatever the token is.
    NotCompared,
    /// One whose lease is over tries again with the same token.
    UsedAgain,
}

struct Tokens(Flaw);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    member: Member,
    stored: Token,
    /// For which token each contender has a grant.
    granted: [Token; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Contender {
    token: Token,
    holds: bool,
    /// The token of its last lease, which is over.
    spent: Token,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    places: [Place; MEMBERS],
    contenders: [Contender; 2],
    last: Token,
    shrunk: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Try(usize),
    Ask(usize, usize),
    End(usize),
    /// The lease that this member has granted runs out, or its holder gives it back.
    Free(usize),
    Restart(usize),
}

impl State {
    fn held(&self, place: &Place) -> bool {
        place.member.grant.is_some_and(|grant| {
            let holder = &self.contenders[usize::from(grant.holder)];
            holder.holds && holder.token == grant.token
        })
    }
}

impl Model for Tokens {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (places, contenders) = Default::default();
        vec![State { places, contenders, last: 0, shrunk: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (c, contender) in state.contenders.iter().enumerate() {
            if contender.holds {
                actions.push(Action::End(c));
            } else {
                actions.push(Action::Try(c));
                if contender.token > contender.spent {
                    actions.extend((0..MEMBERS).map(|p| Action::Ask(c, p)));
                }
            }
        }
        for (p, place) in state.places.iter().enumerate() {
            if !state.held(place) {
                actions.extend([Action::Free(p), Action::Restart(p)]);
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Try(c) => {
                let contender = &mut next.contenders[c];
                contender.token += 1;
                if contender.token > GREATEST {
                    return None;
                }
            }
            Action::Ask(c, p) => {
                let (place, token) = (&mut next.places[p], next.contenders[c].token);
                let holder = Holder::try_from(c).unwrap();
                if self.0 == Flaw::NotCompared {
                    place.member.number = 0;
                }
                let answer = place.member.acquire(0, &RULES, holder, token);
                if answer != Answer::Granted {
                    return None;
                }
                if self.0 != Flaw::NotStored {
                    place.stored = place.member.number;
                }
                place.granted[c] = token;
                let grants = next.places.iter().filter(|one| one.granted[c] == token).count();
                // Those that it has are as good as when they were granted: `safety.rs` has the clocks.
                let lasting = next.places.iter().filter(|one| {
                    one.member.grant.is_some_and(|g| (g.holder, g.token) == (holder, token))
                });
                if grants > MEMBERS / 2 && lasting.count() > MEMBERS / 2 {
                    next.contenders[c].holds = true;
                    next.shrunk |= token <= next.last;
                    next.last = token;
                }
            }
            Action::End(c) => {
                let contender = &mut next.contenders[c];
                contender.holds = false;
                contender.spent = if self.0 == Flaw::UsedAgain { 0 } else { contender.token };
            }
            Action::Free(p) => next.places[p].member.grant = None,
            Action::Restart(p) => {
                let number = next.places[p].stored;
                next.places[p].member = Member { number, ..Member::default() };
            }
        }
        next.places.sort_unstable();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("tokens grow", |_: &Self, state: &State| !state.shrunk),
            Property::sometimes("several leases", |_: &Self, state: &State| state.last == GREATEST),
        ]
    }
}

fn shrinks_with(flaw: Flaw) -> bool {
    let checker = Tokens(flaw).checker().threads(2).spawn_bfs().join();
    if flaw == Flaw::None {
        checker.assert_properties();
    }
    checker.discovery("tokens grow").is_some()
}

#[test]
fn tokens_only_grow() {
    assert!(!shrinks_with(Flaw::None));
}

#[test]
fn each_mistake_is_found() {
    assert!(shrinks_with(Flaw::NotStored));
    assert!(shrinks_with(Flaw::NotCompared));
    assert!(shrinks_with(Flaw::UsedAgain));
}
