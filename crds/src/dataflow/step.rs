//! Plan of a step of a job.

use serde::Serialize;

use super::call::{Call, Phase};
use super::data::Data;
use super::planner::{PlanError, Stage, stages};
use super::{learners, rollouts};
use crate::algorithm::{DataKind, ModelRole};
use crate::{EnginePurpose, RLJobSpec};

/// The calls of a step in their order. Not in it: evaluations, validations, checkpoints and
/// exports, which follow a step.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Field of `spec.algorithm`.
    pub algorithm: &'static str,
    /// Prompts, demonstrations or pairs of a step; 0 of an evaluation.
    pub batch_size: u32,
    /// Samples of one prompt; two of a pair.
    pub group_size: u32,
    /// Optimizer updates of each trained model.
    pub updates: u32,
    /// Further steps whose rollouts run beside the training of a step (`rollout.maxStaleness`).
    pub steps_ahead: u32,
    /// Engines of the spec.
    pub engines: u32,
    /// Engines of the spec that only evaluate.
    pub evaluation_engines: u32,
    /// Engines of the spec that serve the reward model.
    pub reward_engines: u32,
    /// Engines of the spec that serve the teacher.
    pub teacher_engines: u32,
    /// Learners (FSDP ranks) of the spec.
    pub learners: u32,
    /// What exists before the step.
    pub given: Vec<Data>,
    /// In order: each waits for those before it that make its inputs.
    pub stages: Vec<Stage>,
}

impl Plan {
    /// The calls, in order.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.stages.iter().flat_map(|stage| &stage.lanes).flat_map(|lane| &lane.calls)
    }

    /// Numbers of the first and the last stage with a call of a phase, from 1.
    pub fn stages_of(&self, phases: &[Phase]) -> Option<(usize, usize)> {
        let has = |stage: &Stage| {
            let mut calls = stage.lanes.iter().flat_map(|lane| &lane.calls);
            calls.any(|call| phases.contains(&call.phase))
        };
        let numbers = (1..).zip(&self.stages).filter(|(_, stage)| has(stage));
        let numbers: Vec<usize> = numbers.map(|(number, _)| number).collect();
        Some((*numbers.first()?, *numbers.last()?))
    }
}

/// The plan of a step of a spec; of an evaluation, that of its only pass.
///
/// # Errors
/// The spec has no algorithm, or its calls cannot be ordered.
pub fn plan(spec: &RLJobSpec) -> Result<Plan, PlanError> {
    let algorithm = spec.algorithm.resolve().ok_or(PlanError::NoAlgorithm)?;
    let data = algorithm.data();
    let mut calls = match data {
        DataKind::Prompts | DataKind::None => rollouts::calls(spec),
        DataKind::Demonstrations => vec![rollouts::pack([Data::Demonstrations])],
        DataKind::Pairs => vec![rollouts::pack([Data::Pairs])],
    };
    match data {
        DataKind::Prompts => calls.extend(rollouts::batch(spec, algorithm, &calls)),
        DataKind::None => calls.push(rollouts::estimate(&calls)),
        DataKind::Demonstrations | DataKind::Pairs => {}
    }
    calls.extend(learners::calls(spec, algorithm));
    let rows = match data {
        DataKind::Prompts | DataKind::None => Data::Prompts,
        DataKind::Demonstrations => Data::Demonstrations,
        DataKind::Pairs => Data::Pairs,
    };
    let critic = algorithm.model_roles().contains(&ModelRole::Critic);
    let weights = [Some(Data::PolicyWeights), critic.then_some(Data::CriticWeights)];
    let given: Vec<Data> = std::iter::once(rows).chain(weights.into_iter().flatten()).collect();
    let engines = |purpose| spec.num_engines(purpose).max(0).unsigned_abs();
    Ok(Plan {
        algorithm: algorithm.name(),
        batch_size: algorithm.batch_size(&spec.rollout),
        group_size: algorithm.group_size(),
        updates: learners::updates(spec, algorithm),
        steps_ahead: if algorithm.has_rollouts() { spec.rollout.max_staleness } else { 0 },
        engines: engines(EnginePurpose::Rollouts),
        evaluation_engines: engines(EnginePurpose::Evaluation),
        reward_engines: engines(EnginePurpose::Reward),
        teacher_engines: engines(EnginePurpose::Teacher),
        learners: if spec.algorithm.has_learners() { spec.trainer.world_size() } else { 0 },
        stages: stages(calls, &given)?,
        given,
    })
}
