//! With a majority connected there is a holder again within a stated time, whatever was before.
#![allow(missing_docs, clippy::unwrap_used)]

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use snakepit_lease::{Answer, Grant, Member, Rules, Time};
use stateright::{Checker, Model, Property};

const RULES: Rules = Rules { lease: 4, drift: 1, ending: 1 };
/// How long a contender pauses at the most while it is alone.
const PAUSE: Time = 2;
/// One who has nothing to do with it any more.
const DEAD: u8 = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pauses {
    /// All the same: nobody draws.
    Fixed,
    /// One of the contenders is left, or has drawn another pause than the others.
    Alone,
}

/// Two members of three are connected. Nothing is lost from now on.
struct Takeover(Pauses);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    members: [Member; 2],
    pauses: [Time; 2],
    waited: Time,
    held: bool,
}

/// Which contender each member hears first, and how long those who fail pause.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Turn([usize; 2], Time);

impl Takeover {
    fn contenders(&self) -> usize {
        if self.0 == Pauses::Alone { 1 } else { 2 }
    }
}

fn member_states() -> Vec<Member> {
    let silent = (0..=RULES.lease).map(|until| Member { silent_until: until, ..Member::default() });
    let grant = |until| Some(Grant { holder: DEAD, token: 1, until });
    let taken = (1..=RULES.lease).map(|until| Member { grant: grant(until), ..Member::default() });
    silent.chain(taken).collect()
}

impl Model for Takeover {
    type State = State;
    type Action = Turn;

    fn init_states(&self) -> Vec<State> {
        let mut states = Vec::new();
        for a in member_states() {
            for b in member_states() {
                for pause in 0..PAUSE {
                    let pauses = [pause; 2];
                    states.push(State { members: [a, b], pauses, waited: 0, held: false });
                }
            }
        }
        states
    }

    fn actions(&self, state: &State, actions: &mut Vec<Turn>) {
        if state.held || state.waited > RULES.lease + PAUSE {
            return;
        }
        let pauses = if self.0 == Pauses::Fixed { PAUSE..=PAUSE } else { 1..=PAUSE };
        for pause in pauses {
            actions.extend([[0, 0], [0, 1], [1, 0], [1, 1]].map(|first| Turn(first, pause)));
        }
    }

    fn next_state(&self, state: &State, Turn(first, pause): Turn) -> Option<State> {
        let mut next = *state;
        let mut grants = [0; 2];
        for (member, first) in next.members.iter_mut().zip(first) {
            for c in [first, 1 - first] {
                let asks = next.pauses[c] == 0 && c < self.contenders();
                let holder = u8::try_from(c).unwrap();
                if asks && member.renew(0, &RULES, holder, 1) == Answer::Granted {
                    grants[c] += 1;
                }
            }
        }
        next.held = grants.contains(&2);
        for (c, left) in next.pauses.iter_mut().enumerate() {
            if *left == 0 {
                *left = pause;
                // Who fails gives up what it has got.
                next.members.iter_mut().for_each(|one| one.release(u8::try_from(c).unwrap(), 1));
            }
            *left -= 1;
        }
        next.waited += 1;
        for member in &mut next.members {
            member.silent_until = (member.silent_until - 1).max(0);
            member.grant = member.grant.and_then(|mut grant| {
                grant.until -= 1;
                (grant.until > 0).then_some(grant)
            });
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("held in time", |_: &Self, state: &State| {
            state.held || state.waited <= RULES.lease + PAUSE
        })]
    }
}

fn is_late(pauses: Pauses) -> bool {
    let checker = Takeover(pauses).checker().threads(2).spawn_bfs().join();
    checker.discovery("held in time").is_some()
}

#[test]
fn a_contender_has_the_lease_one_lease_and_one_pause_later() {
    assert!(!is_late(Pauses::Alone));
}

#[test]
fn contenders_whose_pauses_are_the_same_may_never_get_it() {
    assert!(is_late(Pauses::Fixed));
}

/// Rounds until one of the contenders asks when no other does. Each that fails draws a pause below a bound that doubles.
fn rounds(random: &mut SmallRng, contenders: usize) -> u32 {
    let mut at = vec![0_u64; contenders];
    for round in 1.. {
        let first = *at.iter().min().unwrap();
        let asking: Vec<usize> = (0..contenders).filter(|c| at[*c] == first).collect();
        if asking.len() == 1 {
            return round;
        }
        let bound = 2_u64 << round.min(6);
        for c in asking {
            at[c] = first + random.random_range(1..=bound);
        }
    }
    unreachable!("the loop has no end")
}

#[test]
fn contenders_that_draw_growing_pauses_get_it_soon() {
    let mut random = SmallRng::seed_from_u64(1);
    for contenders in [2, 3, 5, 9] {
        let most = (0..100_000).map(|_| rounds(&mut random, contenders)).max().unwrap();
        println!("{contenders} contenders: at most {most} rounds in 100,000 tries");
        assert!(most <= 12, "{contenders} contenders took {most} rounds");
    }
}
