//! Sets of engines of a job: those of rollouts, of evaluations and of a reward model.

use crate::RLJobSpec;
use crate::roles::InferenceSpec;

/// What engines of a set do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnginePurpose {
    /// They sample rollouts, and evaluations if no other engines do.
    Rollouts,
    /// They sample evaluations only.
    Evaluation,
    /// They serve the reward model.
    Reward,
}

/// Engines of a job for one purpose.
#[derive(Clone, Debug)]
pub struct EngineSet<'a> {
    /// What they do.
    pub purpose: EnginePurpose,
    /// Their field of the spec, for example `evaluation.engines`.
    pub field: String,
    /// Their settings.
    pub engines: &'a InferenceSpec,
}

impl RLJobSpec {
    /// The sets of engines of the job, those of rollouts first.
    pub fn engine_sets(&self) -> impl Iterator<Item = EngineSet<'_>> {
        let set = |purpose, field: String, engines| EngineSet { purpose, field, engines };
        let rollouts = set(EnginePurpose::Rollouts, "inference".to_owned(), &self.inference);
        let evaluation = self.evaluation_engines().map(|engines| {
            set(EnginePurpose::Evaluation, "evaluation.engines".to_owned(), engines)
        });
        let reward = self.served_reward_model().map(|(index, _, engines)| {
            set(EnginePurpose::Reward, format!("rewards[{index}].model.engines"), engines)
        });
        std::iter::once(rollouts).chain(evaluation).chain(reward)
    }

    /// Engines that only evaluate, if the job has them.
    pub fn evaluation_engines(&self) -> Option<&InferenceSpec> {
        self.evaluation.as_ref().map(|evaluation| &evaluation.engines)
    }

    /// Engines of the reward model, if the job has them.
    pub fn reward_engines(&self) -> Option<&InferenceSpec> {
        self.served_reward_model().map(|(_, _, engines)| engines)
    }

    /// As [`Self::reward_engines`], to change them.
    pub fn reward_engines_mut(&mut self) -> Option<&mut InferenceSpec> {
        let models = self.rewards.iter_mut().filter_map(|reward| reward.model.as_mut());
        models
            .filter(|model| model.served().is_some())
            .find_map(|model| model.engines.as_deref_mut())
    }

    /// Index of the reward whose model engines of the job serve, its model folder, and the engines.
    pub fn served_reward_model(&self) -> Option<(usize, &str, &InferenceSpec)> {
        self.rewards.iter().enumerate().find_map(|(index, reward)| {
            let (path, engines) = reward.model.as_ref()?.served()?;
            Some((index, path, engines))
        })
    }

    /// Number of engines that only evaluate.
    pub fn num_evaluation_engines(&self) -> i32 {
        self.evaluation_engines().map_or(0, |engines| engines.replicas)
    }

    /// Number of engines of the reward model.
    pub fn num_reward_engines(&self) -> i32 {
        self.reward_engines().map_or(0, |engines| engines.replicas)
    }
}
