//! Fixed settings of the state machine, derived from the run configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rljob_crds::RunConfig;
use rljob_crds::job::WeightSyncMethod;
use rljob_crds::roles::TrainerSpec;
use rljob_crds::trainer_groups::TrainerGroupSpec;
use rljob_protocol::status::UNKNOWN_STEPS;
use rljob_protocol::supervisor::Restore;

use super::admission::Admission;
use super::learner_group::GroupSize;
use super::record::Record;

/// Fixed settings of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent settings")]
pub struct Settings {
    /// Steps of the run; [`UNKNOWN_STEPS`] until the data of a run with `epochs` is open.
    pub total_steps: u32,
    /// Passes over the data that determine the number of steps, if the spec has no steps.
    pub epochs: Option<u32>,
    /// Whether learners train. Without them, the run evaluates `model_directory` once.
    pub learners: bool,
    /// Folder of the model that the run starts from.
    pub model_directory: PathBuf,
    /// Size of the trainer.
    pub trainer: GroupSize,
    /// Sizes of the groups of `trainer.groups`, by name.
    pub groups: BTreeMap<String, GroupSize>,
    /// Whether batches come from engines or from the dataset.
    pub rollouts: bool,
    /// Steps between evaluations of each suite; empty without evaluation data.
    pub evaluation_every: Vec<u32>,
    /// Whether an evaluation samples completions, for their accuracy.
    pub accuracy: bool,
    /// Whether learners measure the loss of the evaluation data (`sft`, pairs).
    pub validation: bool,
    /// Most evaluations that wait for evaluation engines; none if engines of rollouts evaluate.
    pub max_pending: Option<u32>,
    /// Admission of rollouts.
    pub admission: Admission,
    /// Method of weight sync.
    pub method: WeightSyncMethod,
    /// Ranks of one engine.
    pub engine_ranks: u32,
    /// Initial checkpoint of a run without checkpoints.
    pub restore_from: Option<Restore>,
    /// Location of checkpoints, exports and published weights: the run directory or
    /// `s3://bucket/prefix`.
    pub run_directory: PathBuf,
}

impl Settings {
    /// Settings of a run configuration. The caller sets `restore_from`.
    pub fn from_config(config: &RunConfig) -> Self {
        let spec = &config.spec;
        let suites = spec.dataset.suites();
        let size = |replicas: i32, trainer: &TrainerSpec| GroupSize {
            supervisors: replicas.max(0).unsigned_abs(),
            processes: trainer.processes(),
        };
        let of_group = |group: &TrainerGroupSpec| {
            (group.name.clone(), size(group.replicas, &spec.trainer.of_group(group)))
        };
        Self {
            total_steps: spec.training.known_steps().unwrap_or(UNKNOWN_STEPS),
            epochs: spec.training.epochs,
            learners: spec.algorithm.has_learners(),
            model_directory: config.model_directory.clone(),
            trainer: size(spec.trainers(), &spec.trainer),
            groups: spec.frozen_group().into_iter().map(of_group).collect(),
            rollouts: spec.algorithm.has_rollouts(),
            evaluation_every: suites.iter().map(|suite| suite.data.every_steps).collect(),
            accuracy: suites.iter().any(|suite| suite.data.answer.is_some()),
            validation: suites.iter().any(|suite| suite.data.measures_loss()),
            max_pending: spec.evaluation.as_ref().map(|evaluation| evaluation.max_pending),
            admission: Admission::of(spec),
            method: spec.weight_sync_method(),
            engine_ranks: spec.inference.ranks(),
            restore_from: None,
            run_directory: config.run_store(),
        }
    }

    /// Sets the number of steps that the data of an earlier process had, if the passes over it are
    /// the same.
    #[must_use]
    pub fn with_recorded_steps(mut self, record: &Record) -> Self {
        if let Some(recorded) = record.steps.filter(|own| Some(own.epochs) == self.epochs) {
            self.set_steps(recorded.steps);
        }
        self
    }

    /// Sets the number of steps that the data has.
    pub fn set_steps(&mut self, steps: u32) {
        self.total_steps = steps;
        self.admission.total_steps = steps;
    }

    /// Whether batches are sampled while the learners train.
    pub fn ahead(&self) -> bool {
        self.rollouts && self.admission.max_staleness > 0
    }
}
