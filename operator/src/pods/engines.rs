//! Engines and their pods. An engine that spans pods is one process group of their containers: if
//! one of these is lost or restarts, the others must be replaced with it.
//!
//! ```text
//!  all containers up   each pod's gate records them ([`super::gate`])
//!  others present      a recorded one is gone: all pods of the engine are deleted together
//! ```
//!
//! Pods without a record have not formed a group and wait for each other.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::facts::{Gate, PodFacts};
use crate::desired::Role;

/// Pods of one engine, by ordinal.
pub(super) struct Engine<'a> {
    pub(super) pods: Vec<&'a PodFacts>,
    /// Pods that it needs.
    size: u32,
}

/// Groups pods of engines: `pods_per_engine` consecutive ordinals of a role are one engine. Other
/// roles have none.
pub(super) fn engines(
    pods: &[PodFacts],
    pods_per_engine: impl Fn(Role) -> Option<u32>,
) -> Vec<Engine<'_>> {
    let mut engines = BTreeMap::<(Role, u32), Engine<'_>>::new();
    for pod in pods {
        let Some(size) = pods_per_engine(pod.role) else { continue };
        let index = pod.ordinal.checked_div(size).unwrap_or_default();
        let engine = engines.entry((pod.role, index));
        engine.or_insert_with(|| Engine { pods: Vec::new(), size }).pods.push(pod);
    }
    engines.into_values().collect()
}

/// Whether the pod of this ordinal is the first of its engine, which serves.
pub fn serves(ordinal: u32, pods_per_engine: u32) -> bool {
    ordinal.checked_rem(pods_per_engine).unwrap_or_default() == 0
}

impl<'a> Engine<'a> {
    /// Whether it has several pods.
    pub(super) fn spans(&self) -> bool {
        self.size > 1
    }

    /// The pods that are not terminating.
    pub(super) fn remaining(&self) -> impl Iterator<Item = &'a PodFacts> {
        self.pods.iter().copied().filter(|pod| pod.deletion.is_none())
    }

    /// The pod that serves.
    pub(super) fn first(&self) -> Option<&'a PodFacts> {
        self.remaining().find(|pod| serves(pod.ordinal, self.size))
    }

    /// Whether all of its pods are up.
    pub(super) fn is_up(&self) -> bool {
        self.remaining().filter(|pod| pod.up_since.is_some()).count() >= self.size as usize
    }

    /// Start of the newest container, if all are running.
    pub(super) fn running_since(&self) -> Option<Timestamp> {
        self.ids()?;
        self.remaining().filter_map(|pod| Some(pod.container.as_ref()?.since)).max()
    }

    /// Open and closed state of the gates for the present containers, if all are running.
    pub(super) fn gates(&self) -> Option<[Gate; 2]> {
        let ids = self.ids()?;
        let (noun, s) = if self.spans() { ("containers", "") } else { ("container", "s") };
        let ids = ids.join(", ");
        let open = format!("{noun} {ids} hold{s} weights of the run");
        let closed = format!("{noun} {ids} hold{s} no weights of the run yet");
        Some([Gate { open: true, message: open }, Gate { open: false, message: closed }])
    }

    /// Whether a pod has formed a group with containers that are gone.
    pub(super) fn is_incomplete(&self) -> bool {
        let present = self.gates();
        let is_present =
            |recorded: &Gate| present.iter().flatten().any(|gate| gate.message == recorded.message);
        let wanted = self.remaining().filter(|pod| pod.wanted);
        let mut records =
            wanted.filter_map(|pod| pod.gate.as_ref()).filter(|gate| !gate.message.is_empty());
        self.spans() && records.any(|recorded| !is_present(recorded))
    }

    fn ids(&self) -> Option<Vec<&'a str>> {
        let running = self.remaining().filter_map(|pod| pod.container.as_ref());
        let ids: Vec<&str> = running.map(|container| container.id.as_str()).collect();
        (ids.len() >= self.size as usize).then_some(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Container;
    use super::super::test_support::{inference_of, pod, terminating};
    use super::*;
    use crate::decide::test_support::at;

    fn member(ordinal: u32, container: &str, record: &str) -> PodFacts {
        PodFacts {
            gate: Some(Gate { open: false, message: record.to_owned() }),
            container: Some(Container { id: container.to_owned(), since: at(0) }),
            ..pod(&format!("sums-inference-{ordinal}"))
        }
    }

    #[test]
    fn consecutive_pods_are_an_engine_and_the_first_serves() {
        let pods: Vec<PodFacts> = [0, 1, 2, 5].map(|ordinal| member(ordinal, "c", "")).into();
        let pods = [&pods[..], &[pod("sums-trainer-0")]].concat();
        let grouped = |size| {
            let name = |pod: &PodFacts| pod.ordinal;
            let engines = engines(&pods, inference_of(size));
            let summary = engines.iter().map(|engine| {
                let ordinals = engine.pods.iter().map(|pod| name(pod)).collect::<Vec<_>>();
                (ordinals, engine.first().map(name), engine.is_up())
            });
            summary.collect::<Vec<_>>()
        };
        assert_eq!(
            grouped(2),
            [(vec![0, 1], Some(0), true), (vec![2], Some(2), false), (vec![5], None, false),]
        );
        let alone = [0, 1, 2, 5].map(|ordinal| (vec![ordinal], Some(ordinal), true));
        assert_eq!(grouped(1), alone);
    }

    #[test]
    fn an_engine_is_incomplete_if_a_recorded_container_is_gone() {
        let record = "containers a, b hold no weights of the run yet";
        let formed = || [member(0, "a", record), member(1, "b", record)];
        let with = |change: fn(&mut [PodFacts; 2])| {
            let mut pods = formed();
            change(&mut pods);
            pods
        };
        let cases = [
            ("complete", formed().to_vec(), false),
            ("starting", vec![member(0, "a", ""), member(1, "b", "")], false),
            ("starting, alone", vec![member(0, "a", "")], false),
            ("a pod is gone", formed()[..1].to_vec(), true),
            (
                "a pod is terminating",
                vec![member(0, "a", record), terminating(member(1, "b", record), 0, 30)],
                true,
            ),
            ("a pod was recreated", vec![member(0, "a", record), member(1, "c", "")], true),
            ("a container restarted", vec![member(0, "a", record), member(1, "c", record)], true),
            ("a container exited", with(|pods| pods[1].container = None).to_vec(), true),
            ("all are recreated", vec![member(0, "c", ""), member(1, "d", "")], false),
            ("all are terminating", formed().map(|pod| terminating(pod, 0, 30)).to_vec(), false),
            (
                "scaled down",
                with(|pods| {
                    pods[0].wanted = false;
                    pods[1].container = None;
                })
                .map(|pod| PodFacts { wanted: false, ..pod })
                .to_vec(),
                false,
            ),
        ];
        for (case, pods, expected) in cases {
            assert_eq!(engines(&pods, inference_of(2))[0].is_incomplete(), expected, "{case}");
        }
        let restarted = [member(0, "c", "container a holds weights of the run")];
        assert!(
            !engines(&restarted, inference_of(1))[0].is_incomplete(),
            "its container restarts alone"
        );
    }
}
