//! Engines that do not answer although their container is running: stopped, or blocked.
//!
//! Probes miss them, because a stopped process still accepts connections. The coordinator polls
//! every engine once a second; its answers are the engine's heartbeat.

use jiff::{SignedDuration, Timestamp};
use rljob_protocol::status::{EngineState, HUNG_SECONDS};

use super::facts::PodFacts;

/// Returns the engines that hang, and the time at which the next one may.
pub(super) fn hung<'a>(
    pods: &'a [PodFacts],
    engines: &[EngineState],
    now: Timestamp,
) -> (Vec<&'a PodFacts>, Option<Timestamp>) {
    let (mut hung, mut next) = (Vec::new(), None);
    for pod in pods.iter().filter(|pod| {
        pod.role.is_engine()
            && pod.wanted
            && pod.deletion.is_none()
            && is_unresponsive(pod, engines)
    }) {
        // Missed answers from before the engine was up belong to its start.
        let Some(since) = pod.up_since else { continue };
        let due = since
            .saturating_add(SignedDuration::from_secs(HUNG_SECONDS.into()))
            .unwrap_or(Timestamp::MAX);
        if now >= due {
            hung.push(pod);
        } else {
            next = next.into_iter().chain([due]).min();
        }
    }
    (hung, next)
}

fn is_unresponsive(pod: &PodFacts, engines: &[EngineState]) -> bool {
    engines.iter().any(|engine| engine.is_about(&pod.name, &pod.uid) && engine.is_hung())
}

#[cfg(test)]
mod tests {
    use rljob_protocol::status::EngineCondition;

    use super::super::test_support::{pod, terminating};
    use super::*;
    use crate::decide::test_support::at;
    use crate::desired::Role;

    #[test]
    fn an_engine_hangs_after_20_s_up_without_an_answer() {
        let engine = || PodFacts { up_since: Some(at(0)), ..pod("sums-inference-1") };
        for (case, pod, silent, second, expected) in [
            ("answers", engine(), None, 100, (false, None)),
            ("silent for 19 s", engine(), Some(19), 100, (false, None)),
            ("hangs", engine(), Some(20), 100, (true, None)),
            (
                "the report may describe the predecessor",
                engine(),
                Some(300),
                5,
                (false, Some(at(20))),
            ),
            ("starting", PodFacts { up_since: None, ..engine() }, Some(300), 100, (false, None)),
            ("terminating", terminating(engine(), 90, 30), Some(300), 100, (false, None)),
            ("scaled down", PodFacts { wanted: false, ..engine() }, Some(300), 100, (false, None)),
            (
                "a trainer",
                PodFacts { role: Role::Trainer, ..engine() },
                Some(300),
                100,
                (false, None),
            ),
        ] {
            let state = |name: &str, silent_seconds| EngineState {
                name: name.to_owned(),
                state: EngineCondition::Unreachable,
                version: None,
                silent_seconds,
                uid: None,
                unsuitable: None,
            };
            let states = [state("sums-inference-0", Some(999)), state("sums-inference-1", silent)];
            let pods = [pod];
            let (found, next) = hung(&pods, &states, at(second));
            assert_eq!((!found.is_empty(), next), expected, "{case}");
        }
    }

    #[test]
    fn a_replacement_is_not_judged_on_the_silence_of_its_predecessor() {
        let pods = [PodFacts { up_since: Some(at(0)), ..pod("sums-inference-1") }];
        let hangs = |uid: &str| {
            let state = EngineState {
                name: "sums-inference-1".to_owned(),
                state: EngineCondition::Unreachable,
                version: None,
                silent_seconds: Some(300),
                uid: Some(uid.to_owned()),
                unsuitable: None,
            };
            !hung(&pods, &[state], at(100)).0.is_empty()
        };
        assert!(hangs(&pods[0].uid));
        assert!(!hangs("the predecessor"));
    }
}
