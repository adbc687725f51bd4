//! The codec, both directions, with anything.
#![allow(missing_docs, clippy::unwrap_used)]

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_bytes::ByteBuf;
use snakepit_core::wire::{
    Abort, Event, Exit, Hello, Input, KillMode, Output, Request, Scope, Spawn, Stdio, Step,
    StopPolicy, VERSION, decode, encode,
};

mod checks;

fn bytes() -> impl Strategy<Value = ByteBuf> {
    vec(any::<u8>(), 0..40).prop_map(ByteBuf::from)
}

fn stdio() -> impl Strategy<Value = Stdio> {
    let inputs = [Input::Null, Input::Inherit, Input::Passed];
    let input = prop::sample::select(inputs.to_vec());
    prop_oneof![
        (input, output(), output(), option::of(bytes())).prop_map(
            |(input, output, error, token)| Stdio::Streams { input, output, error, token }
        ),
        bytes().prop_map(Stdio::Terminal),
    ]
}

fn output() -> impl Strategy<Value = Output> {
    let plain = [Output::Tail, Output::Null, Output::Inherit, Output::Passed, Output::Merged];
    let file = (bytes(), any::<bool>());
    prop_oneof![
        prop::sample::select(plain.to_vec()),
        file.prop_map(|(path, truncate)| Output::File { path, truncate }),
    ]
}

fn policy() -> impl Strategy<Value = StopPolicy> {
    let modes = [KillMode::Tree, KillMode::Group, KillMode::Leader, KillMode::Mixed];
    let abort = any::<(i32, u64)>().prop_map(|(signal, grace_ms)| Abort { signal, grace_ms });
    let mode = prop::sample::select(modes.to_vec());
    (any::<i32>(), option::of(any::<u64>()), mode, option::of(abort))
        .prop_map(|(signal, grace_ms, mode, abort)| StopPolicy { signal, grace_ms, mode, abort })
}

fn spawn() -> impl Strategy<Value = Spawn> {
    let what = (any::<u64>(), ".*", vec(bytes(), 0..4), any::<bool>(), vec(bytes(), 0..4));
    let place = (option::of(bytes()), option::of(any::<u32>()), stdio(), option::of(bytes()));
    let user = (option::of(any::<u32>()), option::of(vec(any::<u32>(), 0..4)));
    let limits = (vec(any::<(u32, u64, u64)>(), 0..3), option::of(any::<i32>()), policy());
    let limits = (limits, option::of(any::<u64>()), any::<bool>());
    (what, place, user, limits).prop_map(|(what, place, user, limits)| Spawn {
        id: what.0,
        worker_id: what.1,
        arg0: what.2.first().cloned(),
        arguments: what.2,
        inherit: what.3,
        set: what.4.clone(),
        unset: what.4,
        directory: place.0,
        umask: place.1,
        stdio: place.2,
        lifeline: place.3,
        uid: user.0,
        gid: user.0,
        groups: user.1,
        nice: limits.0.1,
        limits: limits.0.0,
        oom_score_adj: limits.0.1,
        stop: limits.0.2,
        lease: limits.1,
        release: limits.2,
    })
}

fn hello() -> impl Strategy<Value = Hello> {
    (any::<i64>(), ".*", bytes(), any::<(u64, u64, u32)>()).prop_map(|(pid, id, path, rest)| {
        Hello {
            version: VERSION,
            beam_pid: pid,
            run_id: id,
            run_directory: path,
            grace_ms: rest.0,
            log_level: "info".into(),
            tail_bytes: rest.1,
            ahead: rest.2,
            first_id: rest.0,
        }
    })
}

fn request() -> impl Strategy<Value = Request> {
    let scope = prop_oneof![Just(Scope::Process), Just(Scope::Group), Just(Scope::Tree)];
    prop_oneof![
        hello().prop_map(Request::Hello),
        any::<u32>().prop_map(|count| Request::Fork { count }),
        spawn().prop_map(|spawn| Request::Spawn(Box::new(spawn))),
        any::<u64>().prop_map(|id| Request::Release { id }),
        any::<(u64, i32, u64)>().prop_map(|(id, signal, grace_ms)| Request::Stop {
            id,
            signal,
            grace_ms
        }),
        (any::<(u64, i32)>(), scope).prop_map(|((id, signal), scope)| Request::Signal {
            id,
            signal,
            scope
        }),
        any::<(u64, bool)>().prop_map(|(grace_ms, strict)| Request::StopAll { grace_ms, strict }),
        any::<u64>().prop_map(|id| Request::Tail { id }),
        any::<u64>().prop_map(|id| Request::Roots { id }),
        any::<(u64, u64)>().prop_map(|(id, grace_ms)| Request::Extend { id, grace_ms }),
        Just(Request::Info),
        Just(Request::Ping),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let exit =
        any::<(Option<i32>, Option<i32>, bool, u64)>().prop_map(|(status, signal, core, n)| Exit {
            status,
            signal,
            core,
            user_us: n,
            system_us: n,
            max_rss_kb: n,
        });
    let counts = (any::<(u64, u64)>(), vec(any::<i64>(), 0..4));
    prop_oneof![
        (any::<(u32, i64)>(), bytes(), bytes()).prop_map(|((version, pid), identity, socket)| {
            Event::Welcome { version, pid, identity, socket }
        }),
        ".*".prop_map(|reason| Event::Refused { reason }),
        (any::<(u64, i64)>(), bytes()).prop_map(|((id, pid), identity)| Event::Ready {
            id,
            pid,
            identity
        }),
        any::<i32>().prop_map(|errno| Event::ForkFailed { errno }),
        any::<u64>().prop_map(|id| Event::Started { id }),
        (any::<(u64, i32)>(), 0..Step::ALL.len()).prop_map(|((id, errno), step)| Event::Failed {
            id,
            step: Step::ALL[step],
            errno
        }),
        (any::<u64>(), exit, bytes()).prop_map(|(id, exit, tail)| Event::Exited { id, exit, tail }),
        counts.clone().prop_map(|((id, killed), survivors)| Event::TreeGone {
            id,
            killed,
            survivors
        }),
        counts.prop_map(|((stopped, killed), survivors)| Event::AllGone {
            stopped,
            killed,
            survivors
        }),
        (any::<u64>(), bytes()).prop_map(|(id, tail)| Event::Tail { id, tail }),
        any::<(u64, u64, u64)>().prop_map(|(children, ahead, adopted)| Event::Info {
            children,
            ahead,
            adopted
        }),
        (".*", ".*").prop_map(|(level, message)| Event::Log { level, message }),
    ]
}

proptest! {
    #[test]
    fn a_request_survives_the_trip(request in request()) {
        prop_assert_eq!(decode::<Request>(&encode(&request)), Some(request));
    }

    #[test]
    fn an_event_survives_the_trip(event in event()) {
        prop_assert_eq!(decode::<Event>(&encode(&event)), Some(event));
    }

    #[test]
    fn a_damaged_message_is_refused_or_read_as_it_would_be_written(
        request in request(), event in event(), place in any::<prop::sample::Index>(), flip in 1..=u8::MAX,
    ) {
        for mut bytes in [encode(&request), encode(&event)] {
            let place = place.index(bytes.len());
            bytes[place] ^= flip;
            checks::wire::check(&bytes);
            prop_assert_eq!(decode::<Request>(&bytes[..place]), None, "a cut message is none");
            prop_assert_eq!(decode::<Event>(&bytes[..place]), None, "a cut message is none");
        }
    }
}
