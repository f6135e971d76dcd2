//! Readiness gate `rljob.dev/weights-synced` of engine pods: true once the current container holds
//! weights of the run, false for its successor. The gates of an engine that spans pods also record
//! its containers before they hold weights, once all of them are up.
//!
//! The gate informs `kubectl`, disruption budgets and Services. The coordinator checks versions
//! itself before it routes to an engine, and later weight syncs do not change the gate.

use jiff::{SignedDuration, Timestamp};
use rljob_crds::EnginePurpose;
use rljob_crds::names::{REASON_SYNCED, REASON_SYNCING};
use rljob_protocol::status::{EngineCondition, EngineState};

use super::engines::Engine;
use super::facts::{Gate, PodFacts};
use crate::desired::Role;

/// Age of a container up to which a report may describe its predecessor: three missed answers of
/// one second each, and a margin.
const REPORT_LAG: SignedDuration = SignedDuration::from_secs(5);

/// A new state for the gate of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateChange {
    pub name: String,
    pub uid: String,
    pub gate: Gate,
    /// CamelCase.
    pub reason: &'static str,
}

/// Returns the gates to change now, and the time of the next change.
pub(super) fn changes(
    engines: &[Engine<'_>],
    reported: &[EngineState],
    now: Timestamp,
) -> (Vec<GateChange>, Option<Timestamp>) {
    let (mut changes, mut next) = (Vec::new(), None);
    for engine in engines.iter().filter(|engine| !engine.is_incomplete()) {
        let (Some([open, closed]), Some(since)) = (engine.gates(), engine.running_since()) else {
            continue;
        };
        let synced = engine.first().is_some_and(|pod| {
            let is_about = |state: &&EngineState| state.is_about(&pod.name, &pod.uid);
            reported.iter().filter(is_about).any(|state| holds_weights(pod.role, state))
        });
        let is_recorded = engine.spans() && engine.is_up();
        let reliable_at = since.saturating_add(REPORT_LAG).unwrap_or(Timestamp::MAX);
        for pod in engine.remaining() {
            let Some(gate) = pod.gate.as_ref().filter(|gate| **gate != open) else { continue };
            if synced && now >= reliable_at {
                changes.push(change(pod, open.clone(), REASON_SYNCED));
                continue;
            }
            if gate.open || (is_recorded && *gate != closed) {
                changes.push(change(pod, closed.clone(), REASON_SYNCING));
            }
            if synced {
                next = next.into_iter().chain([reliable_at]).min();
            }
        }
    }
    (changes, next)
}

/// Whether an engine of the role has what it serves: weights of a version, or a fixed model, which
/// has none.
fn holds_weights(role: Role, state: &EngineState) -> bool {
    let is_fixed = role.purpose().and_then(EnginePurpose::fixed_model).is_some();
    (is_fixed && state.state == EngineCondition::Ready) || state.version.is_some()
}

fn change(pod: &PodFacts, gate: Gate, reason: &'static str) -> GateChange {
    GateChange { name: pod.name.clone(), uid: pod.uid.clone(), gate, reason }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::version::Version;

    use super::super::Container;
    use super::super::engines::engines;
    use super::super::test_support::{inference_of, pod, terminating};
    use super::*;
    use crate::decide::test_support::at;

    fn engine(gate: Option<Gate>) -> PodFacts {
        PodFacts {
            gate,
            container: Some(Container { id: "c2".to_owned(), since: at(0) }),
            ..pod("sums-inference-0")
        }
    }

    fn open(id: &str) -> Gate {
        Gate { open: true, message: format!("container {id} holds weights of the run") }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table of cases")]
    fn a_gate_opens_once_per_container_and_later_syncs_do_not_change_it() {
        let closed = Gate {
            open: false,
            message: "container c2 holds no weights of the run yet".to_owned(),
        };
        for (case, pod, synced, second, expected, next) in [
            ("new, without weights", engine(Some(Gate::default())), false, 100, None, None),
            (
                "synced",
                engine(Some(Gate::default())),
                true,
                100,
                Some((open("c2"), "Synced")),
                None,
            ),
            (
                "the report may describe the predecessor",
                engine(Some(Gate::default())),
                true,
                4,
                None,
                Some(at(5)),
            ),
            ("open", engine(Some(open("c2"))), true, 100, None, None),
            ("open, during the next sync", engine(Some(open("c2"))), false, 100, None, None),
            (
                "open for the predecessor",
                engine(Some(open("c1"))),
                false,
                100,
                Some((closed.clone(), "Syncing")),
                None,
            ),
            (
                "open for the predecessor, synced",
                engine(Some(open("c1"))),
                true,
                100,
                Some((open("c2"), "Synced")),
                None,
            ),
            (
                "open for the predecessor, whose report it may be",
                engine(Some(open("c1"))),
                true,
                1,
                Some((closed.clone(), "Syncing")),
                Some(at(5)),
            ),
            ("already closed", engine(Some(closed.clone())), false, 100, None, None),
            ("template without the gate", engine(None), true, 100, None, None),
            (
                "terminating",
                terminating(engine(Some(Gate::default())), 90, 30),
                true,
                100,
                None,
                None,
            ),
            (
                "no running container",
                PodFacts { container: None, ..engine(Some(open("c1"))) },
                true,
                100,
                None,
                None,
            ),
        ] {
            let version = synced.then_some(Version { step: 1, attempt: 0 });
            let states = [EngineState {
                name: "sums-inference-0".to_owned(),
                state: EngineCondition::Stale,
                version,
                silent_seconds: None,
                uid: None,
                unsuitable: None,
            }];
            let expected: Vec<GateChange> =
                expected.map(|(gate, reason)| change(&pod, gate, reason)).into_iter().collect();
            let pods = [pod];
            let found = changes(&engines(&pods, inference_of(1)), &states, at(second));
            assert_eq!(found, (expected, next), "{case}");
        }
    }

    #[test]
    fn the_gates_of_an_engine_that_spans_pods_record_its_containers_and_open_together() {
        let member = |ordinal: u32, gate: Option<Gate>, since| PodFacts {
            gate,
            container: Some(Container { id: format!("c{ordinal}"), since: at(since) }),
            ..pod(&format!("sums-inference-{ordinal}"))
        };
        let state = EngineState {
            name: "sums-inference-2".to_owned(),
            state: EngineCondition::Ready,
            version: Some(Version { step: 1, attempt: 0 }),
            silent_seconds: None,
            uid: None,
            unsuitable: None,
        };
        let closed = Gate {
            open: false,
            message: "containers c2, c3 hold no weights of the run yet".to_owned(),
        };
        let open =
            Gate { open: true, message: "containers c2, c3 hold weights of the run".to_owned() };
        let of = |pods: &[PodFacts], states: &[EngineState]| {
            let (changes, next) = changes(&engines(pods, inference_of(2)), states, at(10));
            let changes = changes.into_iter().map(|change| (change.name, change.gate));
            (changes.collect::<Vec<_>>(), next)
        };
        let both = |gate: &Gate| {
            let names = ["sums-inference-2", "sums-inference-3"];
            names.map(|name| (name.to_owned(), gate.clone())).to_vec()
        };
        let new = || Some(Gate::default());
        let starting = [member(2, new(), 0), PodFacts { up_since: None, ..member(3, new(), 0) }];
        assert_eq!(of(&starting, &[]), (vec![], None));
        let up = [member(2, new(), 0), member(3, new(), 0)];
        assert_eq!(of(&up, &[]), (both(&closed), None));
        assert_eq!(of(&up, std::slice::from_ref(&state)), (both(&open), None));
        let recorded = [member(2, Some(closed.clone()), 0), member(3, Some(closed.clone()), 8)];
        assert_eq!(of(&recorded, &[]), (vec![], None));
        assert_eq!(of(&recorded, &[state]), (vec![], Some(at(13))), "after the newest container");
        assert_eq!(of(&recorded[..1], &[]), (vec![], None), "incomplete");
    }
}
