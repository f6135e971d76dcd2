//! An engine that does not answer while its container runs: stopped, or waiting for ever. Probes do
//! not see it, since a stopped process still accepts connections; its coordinator asks it something
//! every second, and that is its heartbeat.

use jiff::{SignedDuration, Timestamp};
use rljob_protocol::status::EngineState;

use super::{PodFacts, earliest};
use crate::desired::Role;

/// Seconds of silence after which an engine that is up counts as hung. Its coordinator has stopped
/// routing to it after 10, so that this costs nothing but the engine; a server that only pauses
/// (garbage, a slow disk) is back by then.
pub const HUNG_SECONDS: u32 = 20;

/// The engines that hang, and when another one may.
pub(super) fn hung<'a>(
    pods: &'a [PodFacts],
    engines: &[EngineState],
    now: Timestamp,
) -> (Vec<&'a PodFacts>, Option<Timestamp>) {
    let (mut hung, mut next) = (Vec::new(), None);
    for pod in pods.iter().filter(|pod| {
        pod.role == Role::Inference
            && pod.wanted
            && pod.deletion.is_none()
            && is_silent(&pod.name, engines)
    }) {
        // Silence before the engine was up is that of its start.
        let Some(since) = pod.up_since else { continue };
        let due = since
            .saturating_add(SignedDuration::from_secs(HUNG_SECONDS.into()))
            .unwrap_or(Timestamp::MAX);
        if now >= due {
            hung.push(pod);
        } else {
            next = Some(earliest(next, due));
        }
    }
    (hung, next)
}

fn is_silent(name: &str, engines: &[EngineState]) -> bool {
    engines.iter().any(|engine| {
        engine.name == name && engine.silent_seconds.is_some_and(|seconds| seconds >= HUNG_SECONDS)
    })
}

#[cfg(test)]
mod tests {
    use rljob_protocol::status::EngineCondition;

    use super::super::test_support::{asked_to_go, pod};
    use super::*;
    use crate::decide::test_support::at;

    #[test]
    fn an_engine_is_hung_when_it_has_been_up_and_silent_for_long() {
        let engine = || PodFacts { up_since: Some(at(0)), ..pod("sums-inference-1") };
        for (case, pod, silent, second, expected) in [
            ("it answers", engine(), None, 100, (false, None)),
            ("it has been silent for a moment", engine(), Some(19), 100, (false, None)),
            ("it hangs", engine(), Some(20), 100, (true, None)),
            (
                "its coordinator still speaks of the process before",
                engine(),
                Some(300),
                5,
                (false, Some(at(20))),
            ),
            ("it starts", PodFacts { up_since: None, ..engine() }, Some(300), 100, (false, None)),
            ("it is going", asked_to_go(engine(), 90, 30), Some(300), 100, (false, None)),
            (
                "it is to leave",
                PodFacts { wanted: false, ..engine() },
                Some(300),
                100,
                (false, None),
            ),
            (
                "it is a trainer",
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
            };
            let states = [state("sums-inference-0", Some(999)), state("sums-inference-1", silent)];
            let pods = [pod];
            let (found, next) = hung(&pods, &states, at(second));
            assert_eq!((!found.is_empty(), next), expected, "{case}");
        }
    }
}
