//! Numbers of a step and of an evaluation: named scalars, and the registry of their names.
//!
//! An objective or a reward adds a scalar by adding its name to the registry; no type and no
//! reader changes. A line of `metrics.jsonl` is one [`StepMetrics`], a line of
//! `evaluations.jsonl` one [`EvaluationMetrics`]; scalars are fields of these objects, so files of
//! earlier releases have the same names.

mod evaluation;
mod registry;
mod scalars;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::evaluation::EvaluationMetrics;
pub use self::registry::*;
pub use self::scalars::Scalars;

/// One step's numbers, reduced over all ranks: a line of `metrics.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepMetrics {
    /// The step, from 1.
    pub step: u32,
    /// Attempt of the learner group that computed it.
    pub attempt: u32,
    /// Samples by staleness: steps between the oldest weights that sampled any of a sample's tokens
    /// and the weights that are trained. Empty for `sft`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub staleness: BTreeMap<u32, u32>,
    /// Everything else, by the names of [`REGISTRY`].
    #[serde(flatten)]
    pub scalars: Scalars,
}

impl StepMetrics {
    /// A step's numbers with these scalars.
    pub fn with_scalars<N: Into<String>>(
        step: u32,
        scalars: impl IntoIterator<Item = (N, f64)>,
    ) -> Self {
        Self { step, scalars: scalars.into_iter().collect(), ..Self::default() }
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.scalars.get(name)
    }

    /// The part that a peer of this protocol version can read, with every name that it requires.
    #[must_use]
    pub fn for_peer(mut self, protocol: u32) -> Self {
        self.scalars.keep_known_by(protocol);
        if protocol < 2 {
            for name in REQUIRED_BY_VERSION_1 {
                self.scalars.add(name, 0.0);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use rljob_crds::dataflow::{LearnerCall, Phase};

    #[test]
    fn scalars_are_fields_and_whole_numbers_have_no_fraction() {
        let metrics = StepMetrics {
            step: 3,
            attempt: 1,
            staleness: BTreeMap::from([(0, 6), (1, 2)]),
            scalars: [(LOSS, 0.1), (TOKENS, 128.0), ("reward/format", 0.5)].into_iter().collect(),
        };
        let json = concat!(
            r#"{"step":3,"attempt":1,"staleness":{"0":6,"1":2},"#,
            r#""loss":0.1,"reward/format":0.5,"tokens":128}"#
        );
        assert_eq!(serde_json::to_string(&metrics).unwrap(), json);
        assert_eq!(serde_json::from_str::<StepMetrics>(json).unwrap(), metrics);
    }

    #[test]
    fn nulls_and_fields_that_are_not_numbers_are_ignored() {
        let line = r#"{"step":1,"attempt":0,"reward":null,"loss":2.5,"later":{"a":1}}"#;
        let expected = StepMetrics::with_scalars(1, [(LOSS, 2.5)]);
        assert_eq!(serde_json::from_str::<StepMetrics>(line).unwrap(), expected);
    }

    #[test]
    fn durations_of_plans_are_metrics() {
        let phases = [Phase::Sync, Phase::Rollouts, Phase::Batch, Phase::Training];
        let phases = phases.into_iter().filter_map(Phase::seconds);
        let names = phases.chain(LearnerCall::ALL.map(LearnerCall::seconds));
        let is_seconds =
            |name: &str| REGISTRY.iter().any(|metric| (metric.name, metric.unit) == (name, "s"));
        let missing: Vec<&str> = names.filter(|name| !is_seconds(name)).collect();
        assert_eq!(missing, Vec::<&str>::new());
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = REGISTRY.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), REGISTRY.len());
    }

    #[test]
    fn a_peer_of_version_1_gets_the_scalars_of_version_1() {
        let metrics = StepMetrics::with_scalars(1, [(LOSS, 2.5), ("reward/format", 0.5)]);
        let reduced = metrics.clone().for_peer(1);
        assert_eq!((reduced.get(LOSS), reduced.get("reward/format")), (Some(2.5), None));
        assert!(REQUIRED_BY_VERSION_1.iter().all(|name| reduced.get(name).is_some()));
        assert_eq!(metrics.clone().for_peer(2), metrics);
    }
}
