//! At most one process, whatever happens: messages that are lost, late or come twice, members that restart and forget,
//! a BEAM that hangs while its process lives on, clocks that run at different rates, orderly stops.
//!
//! Moments are relative to now, so that a state that is reached again is the same one. The clocks of all members run
//! as fast as they may.
#![allow(missing_docs, clippy::unwrap_used)]

use snakepit_lease::{Answer, Holder, Member, Rules, Time, majority_until};
use stateright::{Checker, Model, Property};

/// In real time a member's lease takes one less, since its clock runs fast.
const RULES: Rules = Rules { lease: 4, drift: 1, ending: 1 };
const MEMBERS: usize = 3;

/// As the clocks of members count it, which are as fast as they may be.
const MEMBER_RULES: Rules = Rules { lease: RULES.lease - RULES.drift, ..RULES };

/// What can be wrong with the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// A member grants at once after a restart.
    NoWaitAfterRestart,
    /// A grant counts from when the answer arrived.
    CountedFromReply,
    /// The process is asked to die when the lease is over, and takes its time.
    EndingIgnored,
    /// The lease is given back when the process is told to end.
    ReleasedBeforeDead,
    /// All clocks are taken to run at the same rate.
    DriftIgnored,
    /// The BEAM ends its process when the lease is over, and nobody does if it hangs.
    NoGuardian,
    /// One member will do.
    NoMajority,
}

/// Two contenders, each of which gets the lease once, or gives up.
struct Cluster {
    flaw: Flaw,
}

/// What is between a contender and a member. A request that is late makes the member's grant last longer, and nothing else,
/// so only answers are late here. A message that never comes is one that is not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Link {
    /// An answer that is on its way, as the moment at which the request was sent. The next one takes its place.
    granted: Option<Time>,
    /// Until when the grant of this member counts for this contender.
    counts_until: Time,
}

/// A member, and what is between it and each contender. States that differ in the order of these are one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    member: Member,
    links: [Link; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    #[default]
    Idle,
    /// It asks for the lease, or has it.
    Trying,
    Over,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Contender {
    stage: Stage,
    /// When its process is killed unless that is put off.
    kill_at: Option<Time>,
    /// When its process, which has been killed, is dead.
    dead_at: Option<Time>,
    hangs: bool,
    has_hung: bool,
}

impl Contender {
    fn has_process(&self) -> bool {
        self.kill_at.is_some() || self.dead_at.is_some()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct State {
    places: [Place; MEMBERS],
    contenders: [Contender; 2],
    restarted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Tick,
    Ask(usize, usize),
    Hear(usize, usize),
    GiveUp(usize),
    Release(usize, usize),
    Stop(usize),
    Hang(usize),
    Wake(usize),
    Restart(usize),
}

impl Cluster {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn counts(&self) -> Time {
        RULES.counts() + Time::from(self.is(Flaw::DriftIgnored))
    }

    fn hear(&self, state: &mut State, c: usize, p: usize) {
        let link = &mut state.places[p].links[c];
        let Some(sent) = link.granted.take() else { return };
        let begun = if self.is(Flaw::CountedFromReply) { 0 } else { sent };
        if state.contenders[c].stage == Stage::Trying {
            link.counts_until = link.counts_until.max(begun + self.counts());
            self.run(state, c);
        }
    }

    /// Starts the process, or puts off its end, if a majority has granted that.
    fn run(&self, state: &mut State, c: usize) {
        let mut until: Vec<Time> =
            state.places.iter().map(|one| one.links[c].counts_until).collect();
        if self.is(Flaw::NoMajority) {
            until = until.iter().copied().max().into_iter().collect();
        }
        let ending = if self.is(Flaw::EndingIgnored) { 0 } else { RULES.ending };
        let kill_at = majority_until(until).unwrap() - ending;
        let contender = &mut state.contenders[c];
        if kill_at > 0 && contender.dead_at.is_none() {
            contender.kill_at = contender.kill_at.max(Some(kill_at));
        }
    }

    fn tick(&self, state: &mut State) {
        for place in &mut state.places {
            let member = &mut place.member;
            member.silent_until = (member.silent_until - 1).max(0);
            member.grant = member.grant.and_then(|mut grant| {
                grant.until -= 1;
                (grant.until > 0).then_some(grant)
            });
            for link in &mut place.links {
                link.counts_until = (link.counts_until - 1).max(0);
                link.granted =
                    link.granted.map(|sent| sent - 1).filter(|sent| *sent > -RULES.lease);
            }
        }
        for c in 0..state.contenders.len() {
            let contender = &mut state.contenders[c];
            contender.dead_at = contender.dead_at.map(|at| at - 1).filter(|at| *at > 0);
            contender.kill_at = contender.kill_at.map(|at| (at - 1).max(0));
            let can_kill = !(self.is(Flaw::NoGuardian) && contender.hangs);
            if contender.kill_at == Some(0) && can_kill {
                kill(state, c);
            }
        }
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { places: Default::default(), contenders: Default::default(), restarted: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        for (c, contender) in state.contenders.iter().enumerate() {
            if contender.hangs {
                actions.push(Action::Wake(c));
                continue;
            }
            let over = contender.stage == Stage::Over;
            for p in 0..MEMBERS {
                // Of places that are the same, one will do.
                if p > 0 && state.places[p] == state.places[p - 1] {
                    continue;
                }
                let place = &state.places[p];
                if !over {
                    actions.push(Action::Ask(c, p));
                }
                if place.links[c].granted.is_some() {
                    actions.push(Action::Hear(c, p));
                }
                let may_release = !contender.has_process() || self.is(Flaw::ReleasedBeforeDead);
                let granted = place.member.grant.is_some_and(|one| usize::from(one.holder) == c);
                if over && may_release && granted {
                    actions.push(Action::Release(c, p));
                }
            }
            if contender.stage == Stage::Trying && !contender.has_process() {
                actions.push(Action::GiveUp(c));
            }
            if contender.kill_at.is_some() {
                actions.push(Action::Stop(c));
            }
            if c == 0 && !contender.has_hung && contender.kill_at.is_some() {
                actions.push(Action::Hang(c));
            }
        }
        if !state.restarted {
            actions.extend((0..MEMBERS).map(Action::Restart));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Tick => self.tick(&mut next),
            Action::Ask(c, p) => ask(&mut next, c, p),
            Action::Hear(c, p) => self.hear(&mut next, c, p),
            Action::GiveUp(c) => forget(&mut next, c),
            Action::Release(c, p) => next.places[p].member.release(Holder::try_from(c).unwrap(), 1),
            Action::Stop(c) => kill(&mut next, c),
            Action::Hang(c) => {
                next.contenders[c].hangs = true;
                next.contenders[c].has_hung = true;
            }
            Action::Wake(c) => next.contenders[c].hangs = false,
            Action::Restart(p) => {
                next.restarted = true;
                next.places[p].member = if self.is(Flaw::NoWaitAfterRestart) {
                    Member::default()
                } else {
                    Member::restarted(0, &MEMBER_RULES, 0)
                };
            }
        }
        next.places.sort_unstable();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one process", |_: &Self, state: &State| {
                !state.contenders.iter().all(Contender::has_process)
            }),
            // That the model is not one in which nothing happens.
            Property::sometimes("the other's turn", |_: &Self, state: &State| {
                state.contenders[1].kill_at.is_some() && state.contenders[0].stage == Stage::Over
            }),
            Property::sometimes(
                "a process after a member has restarted",
                |_: &Self, state: &State| state.restarted && state.contenders[0].has_process(),
            ),
        ]
    }
}

/// A request has come in, and is answered.
fn ask(state: &mut State, c: usize, p: usize) {
    let contender = &mut state.contenders[c];
    contender.stage = Stage::Trying;
    let place = &mut state.places[p];
    let holder = Holder::try_from(c).unwrap();
    if place.member.renew(0, &MEMBER_RULES, holder, 1) == Answer::Granted {
        place.links[c].granted = Some(0);
    }
}

/// Its guardian kills the process.
fn kill(state: &mut State, c: usize) {
    state.contenders[c].kill_at = None;
    state.contenders[c].dead_at = Some(RULES.ending);
    forget(state, c);
}

/// The lease, or the attempt to get one, is over.
fn forget(state: &mut State, c: usize) {
    state.contenders[c].stage = Stage::Over;
    for place in &mut state.places {
        place.links[c] = Link::default();
    }
}

fn overlap_with(flaw: Flaw) -> bool {
    let checker = Cluster { flaw }.checker().threads(2).spawn_bfs().join();
    let found = checker.discovery("at most one process").is_some();
    println!("{flaw:?}: {} states, overlap: {found}", checker.unique_state_count());
    if flaw == Flaw::None {
        checker.assert_properties();
    }
    found
}

#[test]
fn there_is_never_more_than_one_process() {
    assert!(!overlap_with(Flaw::None));
}

#[test]
fn each_mistake_in_the_rules_is_found() {
    for flaw in [
        Flaw::NoWaitAfterRestart,
        Flaw::CountedFromReply,
        Flaw::EndingIgnored,
        Flaw::ReleasedBeforeDead,
        Flaw::DriftIgnored,
        Flaw::NoGuardian,
        Flaw::NoMajority,
    ] {
        assert!(overlap_with(flaw), "{flaw:?} is not found");
    }
}
