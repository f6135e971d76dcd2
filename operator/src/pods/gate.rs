//! The readiness gate `rljob.dev/weights-synced` of an engine's pod: open once this container holds
//! weights of the run, closed for the container after it. It is advice to those who look at pods
//! (`kubectl`, disruption budgets, Services); what is routed to is the coordinator's to check, and
//! later syncs do not touch the gate.

use jiff::{SignedDuration, Timestamp};
use rljob_crds::names::{REASON_SYNCED, REASON_SYNCING};
use rljob_protocol::status::EngineState;

use super::{PodFacts, earliest};

/// A report may speak of the process before this one: until three questions of one second each had
/// no answer, and one second more.
const REPORT_LAG: SignedDuration = SignedDuration::from_secs(5);

/// A gate as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Gate {
    /// Whether it is open.
    pub open: bool,
    /// For which container.
    pub message: String,
}

/// A gate to open or close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateChange {
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// How the gate is to stand.
    pub gate: Gate,
    /// CamelCase.
    pub reason: &'static str,
}

/// The gates that do not stand as they should, and when another one may not.
pub(super) fn changes(
    pods: &[PodFacts],
    engines: &[EngineState],
    now: Timestamp,
) -> (Vec<GateChange>, Option<Timestamp>) {
    let (mut changes, mut next) = (Vec::new(), None);
    for pod in pods.iter().filter(|pod| pod.deletion.is_none()) {
        let (Some(gate), Some(container)) = (&pod.gate, &pod.container) else { continue };
        let open = Gate {
            open: true,
            message: format!("container {} holds weights of the run", container.id),
        };
        let closed = Gate {
            open: false,
            message: format!("container {} holds no weights of the run yet", container.id),
        };
        let synced =
            engines.iter().any(|engine| engine.name == pod.name && engine.version.is_some());
        let certain = container.since.saturating_add(REPORT_LAG).unwrap_or(Timestamp::MAX);
        if *gate == open {
            continue;
        }
        if synced && now >= certain {
            changes.push(change(pod, open, REASON_SYNCED));
            continue;
        }
        if gate.open {
            changes.push(change(pod, closed, REASON_SYNCING));
        }
        if synced {
            next = Some(earliest(next, certain));
        }
    }
    (changes, next)
}

fn change(pod: &PodFacts, gate: Gate, reason: &'static str) -> GateChange {
    GateChange { name: pod.name.clone(), uid: pod.uid.clone(), gate, reason }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::status::EngineCondition;
    use rljob_protocol::version::Version;

    use super::super::Container;
    use super::super::test_support::{asked_to_go, pod};
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
    fn a_gate_opens_once_for_each_container_and_later_syncs_do_not_touch_it() {
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
                "a report that may be of the process before",
                engine(Some(Gate::default())),
                true,
                4,
                None,
                Some(at(5)),
            ),
            ("open", engine(Some(open("c2"))), true, 100, None, None),
            ("open, in the next sync", engine(Some(open("c2"))), false, 100, None, None),
            (
                "open for the container before",
                engine(Some(open("c1"))),
                false,
                100,
                Some((closed.clone(), "Syncing")),
                None,
            ),
            (
                "open for the container before, and synced",
                engine(Some(open("c1"))),
                true,
                100,
                Some((open("c2"), "Synced")),
                None,
            ),
            (
                "the same, but it may be an old report",
                engine(Some(open("c1"))),
                true,
                1,
                Some((closed.clone(), "Syncing")),
                Some(at(5)),
            ),
            ("closed already", engine(Some(closed.clone())), false, 100, None, None),
            ("a template without the gate", engine(None), true, 100, None, None),
            ("going", asked_to_go(engine(Some(Gate::default())), 90, 30), true, 100, None, None),
            (
                "no container runs",
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
            }];
            let expected: Vec<GateChange> =
                expected.map(|(gate, reason)| change(&pod, gate, reason)).into_iter().collect();
            assert_eq!(changes(&[pod], &states, at(second)), (expected, next), "{case}");
        }
    }
}
