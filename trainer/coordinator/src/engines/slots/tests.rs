//! Tests of routing, backoff and updates in the engine table.

use std::time::Duration;

use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::status::{EngineCondition, HUNG_SECONDS};
use rljob_protocol::version::Version;

use crate::engines::progress::HANG_TIMEOUT;
use crate::engines::queue::Wanted;
use crate::engines::slots::{EngineSpan, Slots};
use crate::engines::suitability::{Limits, Unsuitable};
use crate::engines::weights::Weights;
use crate::timeline::REQUESTS;

const NOW: Duration = Duration::from_secs(100);
const LIMITS: Limits = Limits { requests: 64 };
const CURRENT: Version = Version { step: 3, attempt: 0 };

fn endpoint(name: &str, uid: Option<&str>) -> EngineEndpoint {
    let (url, uid) = (format!("http://{name}"), uid.map(str::to_owned));
    EngineEndpoint { name: name.to_owned(), url, uid }
}

fn two() -> Slots {
    let mut slots = Slots::default();
    slots.set(&[endpoint("engine-0", None), endpoint("engine-1", None)], NOW);
    slots
}

fn wanted(preferred: Option<&str>, weights: Weights, requests: u32, tokens: u64) -> Wanted {
    Wanted { preferred: preferred.map(str::to_owned), weights, requests, tokens }
}

#[test]
fn a_replacement_with_name_and_address_of_its_predecessor_is_another_engine() {
    let mut slots = Slots::default();
    slots.set(&[endpoint("engine-0", Some("a"))], NOW);
    synced(&mut slots, "engine-0");
    let later = NOW + Duration::from_secs(60);
    slots.set(&[endpoint("engine-0", Some("b"))], later);
    let [state] = &slots.states(Some(CURRENT), later)[..] else { panic!("one engine") };
    assert_eq!(
        (state.uid.as_deref(), state.version, state.silent_seconds),
        (Some("b"), None, Some(0))
    );
}

fn synced(slots: &mut Slots, name: &str) {
    let slot = slots.get_mut(name).unwrap();
    slot.answered("default".to_owned());
    slot.described(Ok(LIMITS));
    slot.update_begins();
    slot.update_ends(Some(CURRENT), NOW);
}

fn leased(slots: &mut Slots, tokens: u64) -> Option<String> {
    slots.lease(&wanted(None, Weights::Exactly(CURRENT), 8, tokens), NOW).map(|leased| leased.name)
}

#[test]
fn the_least_loaded_engine_gets_the_next_prompt_group() {
    let mut slots = two();
    synced(&mut slots, "engine-0");
    synced(&mut slots, "engine-1");
    let order: Vec<_> = [30, 10, 10, 20].map(|tokens| leased(&mut slots, tokens).unwrap()).to_vec();
    assert_eq!(order, ["engine-0", "engine-1", "engine-1", "engine-1"]);
}

#[test]
fn the_next_turn_of_a_sample_goes_to_its_engine_while_that_is_free() {
    let mut slots = two();
    synced(&mut slots, "engine-0");
    synced(&mut slots, "engine-1");
    let mut near = |preferred| {
        let leased = slots.lease(&wanted(preferred, Weights::Exactly(CURRENT), 8, 10), NOW);
        leased.unwrap().name
    };
    assert_eq!(near(Some("engine-1")), "engine-1");
    assert_eq!(
        (near(Some("engine-1")), near(Some("engine-9"))),
        ("engine-1".to_owned(), "engine-0".to_owned())
    );
    slots.get_mut("engine-1").unwrap().answered("default".to_owned());
    let other = slots.lease(&wanted(Some("engine-1"), Weights::Exactly(CURRENT), 8, 1), NOW);
    assert_eq!(other.unwrap().name, "engine-0");
}

#[test]
fn exact_weights_exclude_engines_with_another_version() {
    let mut slots = two();
    slots.get_mut("engine-0").unwrap().answered("default".to_owned());
    synced(&mut slots, "engine-1");
    assert_eq!(leased(&mut slots, 1), Some("engine-1".to_owned()));
    let other = Version { step: 3, attempt: 1 };
    assert!(slots.lease(&wanted(None, Weights::Exactly(other), 8, 1), NOW).is_none());
}

#[test]
fn minimum_steps_allow_stale_engines() {
    let mut slots = two();
    synced(&mut slots, "engine-1");
    let mut lease = |step| {
        slots.lease(&wanted(None, Weights::Since(step), 1, 1), NOW).map(|leased| leased.name)
    };
    assert_eq!(
        (lease(2), lease(3), lease(4)),
        (Some("engine-1".to_owned()), Some("engine-1".to_owned()), None)
    );
}

#[test]
fn requests_in_flight_are_limited_by_the_engine() {
    let mut slots = two();
    synced(&mut slots, "engine-0");
    let first = wanted(None, Weights::Exactly(CURRENT), 8, 1);
    let first = slots.lease(&first, NOW).unwrap();
    for _ in 1..LIMITS.requests / 8 {
        assert_eq!(leased(&mut slots, 1), Some("engine-0".to_owned()));
    }
    assert_eq!(leased(&mut slots, 1), None);
    slots.release(&first, 8, 1, NOW);
    assert_eq!(leased(&mut slots, 1), Some("engine-0".to_owned()));
}

#[test]
fn an_engine_is_stale_after_a_failed_update_even_if_it_reports_the_version() {
    let mut slots = two();
    synced(&mut slots, "engine-0");
    let slot = slots.get_mut("engine-0").unwrap();
    slot.update_begins();
    slot.update_ends(None, NOW);
    slot.answered(CURRENT.to_string());
    let later = NOW + Duration::from_secs(60);
    assert!(slots.lease(&wanted(None, Weights::Exactly(CURRENT), 1, 1), later).is_none());
    assert_eq!(slots.states(Some(CURRENT), later)[0].state, EngineCondition::Stale);
}

#[test]
fn an_engine_that_only_evaluates_is_ready_between_evaluations() {
    let mut slots = two();
    synced(&mut slots, "engine-0");
    let later = Version { step: CURRENT.step + 1, ..CURRENT };
    let state = |current| slots.evaluation_states(current, NOW)[0].state;
    assert_eq!(state(Some(CURRENT)), EngineCondition::Ready);
    assert_eq!(state(Some(later)), EngineCondition::Stale);
    assert_eq!(state(None), EngineCondition::Ready);
    assert_eq!(slots.states(None, NOW)[0].state, EngineCondition::Stale);
}

#[test]
fn an_engine_is_not_routable_before_this_process_resumed_it() {
    let mut slots = two();
    slots.get_mut("engine-0").unwrap().answered(CURRENT.to_string());
    slots.get_mut("engine-0").unwrap().described(Ok(LIMITS));
    assert_eq!(leased(&mut slots, 1), None);
    slots.get_mut("engine-0").unwrap().resumed = true;
    assert_eq!(leased(&mut slots, 1), Some("engine-0".to_owned()));
}

#[test]
fn an_engine_is_used_once_it_has_described_itself_and_is_suitable() {
    let mut slots = two();
    let usable = |slots: &Slots| slots.views(NOW)[0].usable;
    let slot = slots.get_mut("engine-0").unwrap();
    slot.answered("default".to_owned());
    assert!(slot.is_undescribed(NOW) && !usable(&slots));
    let slot = slots.get_mut("engine-0").unwrap();
    slot.described(Err(Unsuitable::WholeStreams));
    assert!(!slot.is_undescribed(NOW) && !usable(&slots));
    let message = Unsuitable::WholeStreams.to_string();
    assert_eq!(slots.states(None, NOW)[0].unsuitable, Some(message));
    slots.get_mut("engine-0").unwrap().described(Ok(LIMITS));
    assert!(usable(&slots));
    slots.get_mut("engine-0").unwrap().answered("restarted".to_owned());
    assert!(slots.get_mut("engine-0").unwrap().is_undescribed(NOW) && !usable(&slots));
}

#[test]
fn no_stream_opens_during_an_update() {
    let mut slots = two();
    synced(&mut slots, "engine-0");
    let streams = slots.lease(&wanted(None, Weights::Exactly(CURRENT), 1, 1), NOW).unwrap().streams;
    assert!(streams.open().is_some());
    slots.get_mut("engine-0").unwrap().update_begins();
    assert!(streams.open().is_none());
    slots.get_mut("engine-0").unwrap().update_ends(None, NOW);
    assert!(streams.open().is_some());
}

#[test]
fn a_lost_engine_cancels_its_requests_and_returns_stale() {
    let mut slots = two();
    synced(&mut slots, "engine-0");
    let lost = slots.lease(&wanted(None, Weights::Exactly(CURRENT), 1, 1), NOW).unwrap().lost;
    (0..3).for_each(|_| slots.get_mut("engine-0").unwrap().missed(NOW, false));
    assert!(lost.is_cancelled());
    slots.get_mut("engine-0").unwrap().answered("default".to_owned());
    assert_eq!(slots.states(Some(CURRENT), NOW)[0].state, EngineCondition::Stale);
}

#[test]
fn silence_starts_with_the_first_missed_poll() {
    let mut slots = two();
    let silent = |slots: &Slots, seconds: u64| {
        slots.states(None, NOW + Duration::from_secs(seconds))[0].silent_seconds
    };
    assert_eq!(silent(&slots, 7), Some(7), "never answered since it was listed");
    let answer =
        |slots: &mut Slots| slots.get_mut("engine-0").unwrap().answered("default".to_owned());
    assert_eq!(answer(&mut slots), Some(NOW));
    assert_eq!(answer(&mut slots), None);
    assert_eq!(silent(&slots, 8), None);
    (10..13).for_each(|second| {
        slots.get_mut("engine-0").unwrap().missed(NOW + Duration::from_secs(second), false);
    });
    assert_eq!(silent(&slots, 15), Some(5));
}

#[test]
fn a_hung_engine_is_silent_until_another_process_replaces_it() {
    let mut slots = two();
    synced(&mut slots, "engine-0");
    let lost = slots.lease(&wanted(None, Weights::Exactly(CURRENT), 1, 1), NOW).unwrap().lost;
    let checks = (1..=200).map(|second| NOW + Duration::from_secs(second));
    let found: Vec<_> = checks.filter(|now| slots.detect_hangs(*now)).collect();
    assert_eq!((found.clone(), lost.is_cancelled()), (vec![NOW + HANG_TIMEOUT], true));
    let silent = |slots: &Slots| {
        slots.states(Some(CURRENT), NOW + Duration::from_secs(200))[0].silent_seconds
    };
    assert_eq!(
        slots.states(None, NOW + HANG_TIMEOUT)[0].silent_seconds,
        Some(HUNG_SECONDS),
        "it is replaced at once"
    );
    slots.get_mut("engine-0").unwrap().answered(CURRENT.to_string());
    assert_eq!(silent(&slots), Some(80), "the same process");
    slots.get_mut("engine-0").unwrap().answered("default".to_owned());
    assert_eq!(
        (silent(&slots), leased(&mut slots, 1)),
        (None, None),
        "the new process needs weights"
    );
}

#[test]
fn a_refused_connection_proves_that_a_hung_engine_without_weights_was_replaced() {
    let mut slots = two();
    let slot = slots.get_mut("engine-0").unwrap();
    slot.answered("default".to_owned());
    slot.update_begins();
    slot.update_ends(None, NOW);
    slot.mark_hung(NOW);
    let later = NOW + Duration::from_secs(60);
    let answers = |slots: &mut Slots| {
        slots.get_mut("engine-0").unwrap().answered("default".to_owned());
        slots.states(None, later)[0].silent_seconds.is_none()
    };
    assert!(!answers(&mut slots), "the same process");
    slots.get_mut("engine-0").unwrap().missed(NOW, false);
    assert!(!answers(&mut slots), "a late response proves nothing");
    slots.get_mut("engine-0").unwrap().missed(NOW, true);
    assert!(answers(&mut slots), "a new process with the same version");
}

#[test]
fn engines_that_respond_are_idle_while_they_have_no_request() {
    let mut slots = two();
    synced(&mut slots, "engine-0");
    let seconds = |slots: &mut Slots, now| {
        slots.count_idle(Duration::from_secs(now));
        slots.idle().as_secs()
    };
    assert_eq!(seconds(&mut slots, 10), 10, "only one engine has responded");
    synced(&mut slots, "engine-1");
    assert_eq!(seconds(&mut slots, 12), 14);
    leased(&mut slots, 1).unwrap();
    assert_eq!(seconds(&mut slots, 15), 17);
}

#[test]
fn times_in_which_an_engine_has_requests_are_taken_once() {
    let mut slots = two();
    synced(&mut slots, "engine-0");
    let at = Duration::from_secs;
    let lease = |slots: &mut Slots, now| {
        slots.lease(&wanted(None, Weights::Exactly(CURRENT), 1, 1), at(now)).unwrap()
    };
    let (first, second) = (lease(&mut slots, 10), lease(&mut slots, 11));
    slots.release(&first, 1, 1, at(12));
    let of = |began, ended| EngineSpan {
        engine: "engine-0".to_owned(),
        name: REQUESTS,
        times: (at(began), at(ended)),
    };
    assert_eq!(slots.take_spans(at(13)), [of(10, 13)], "it still has a request");
    slots.release(&second, 1, 1, at(14));
    let third = lease(&mut slots, 16);
    slots.release(&third, 1, 1, at(18));
    assert_eq!(slots.take_spans(at(20)), [of(13, 14), of(16, 18)]);
    assert_eq!(slots.take_spans(at(30)), []);
}
