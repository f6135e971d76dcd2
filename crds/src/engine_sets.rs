//! Sets of engines of a job: those of rollouts, of evaluations, of a reward model and of a teacher.

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
    /// They serve the teacher.
    Teacher,
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

/// A model that engines of the job serve and that no step changes: a reward model or a teacher.
#[derive(Clone, Debug)]
pub struct FixedModel<'a> {
    /// What its engines do.
    pub purpose: EnginePurpose,
    /// Field of the spec with `path` and `engines`, for example `rewards[0].model`.
    pub field: String,
    /// Folder of the model.
    pub path: &'a str,
    /// Engines that serve it.
    pub engines: &'a InferenceSpec,
}

impl EnginePurpose {
    /// Name of the role of the engines, in names of pods and processes.
    pub fn role(self) -> &'static str {
        match self {
            Self::Rollouts => "inference",
            Self::Evaluation => "evaluation",
            Self::Reward => "reward",
            Self::Teacher => "teacher",
        }
    }

    /// Name of their fixed model in messages; `None` of engines that get the weights of the policy.
    pub fn fixed_model(self) -> Option<&'static str> {
        match self {
            Self::Rollouts | Self::Evaluation => None,
            Self::Reward => Some("reward model"),
            Self::Teacher => Some("teacher"),
        }
    }
}

impl RLJobSpec {
    /// The sets of engines of the job, those of rollouts first.
    pub fn engine_sets(&self) -> impl Iterator<Item = EngineSet<'_>> {
        let set = |purpose, field: String, engines| EngineSet { purpose, field, engines };
        let rollouts = set(EnginePurpose::Rollouts, "inference".to_owned(), &self.inference);
        let evaluation = self.evaluation.as_ref().map(|evaluation| {
            set(EnginePurpose::Evaluation, "evaluation.engines".to_owned(), &evaluation.engines)
        });
        let fixed = self.fixed_models();
        let fixed = fixed.map(move |model| {
            set(model.purpose, format!("{}.engines", model.field), model.engines)
        });
        std::iter::once(rollouts).chain(evaluation).chain(fixed)
    }

    /// The models that engines of the job serve and that no step changes.
    pub fn fixed_models(&self) -> impl Iterator<Item = FixedModel<'_>> {
        let reward = self.rewards.iter().enumerate().find_map(|(index, reward)| {
            let (path, engines) = reward.model.as_ref()?.served()?;
            let field = format!("rewards[{index}].model");
            Some(FixedModel { purpose: EnginePurpose::Reward, field, path, engines })
        });
        let teacher = self.algorithm.teacher_field().and_then(|(field, teacher)| {
            let (path, engines) = teacher.on_engines()?;
            let field = field.trim_start_matches("spec.").to_owned();
            Some(FixedModel { purpose: EnginePurpose::Teacher, field, path, engines })
        });
        reward.into_iter().chain(teacher)
    }

    /// The fixed model that engines of this purpose serve, if the job has them.
    pub fn fixed_model(&self, purpose: EnginePurpose) -> Option<FixedModel<'_>> {
        self.fixed_models().find(|model| model.purpose == purpose)
    }

    /// Engines of this purpose, if the job has them.
    pub fn engines(&self, purpose: EnginePurpose) -> Option<&InferenceSpec> {
        match purpose {
            EnginePurpose::Rollouts => Some(&self.inference),
            EnginePurpose::Evaluation => self.evaluation.as_ref().map(|own| &own.engines),
            EnginePurpose::Reward | EnginePurpose::Teacher => {
                self.fixed_model(purpose).map(|model| model.engines)
            }
        }
    }

    /// As [`Self::engines`], to change them.
    pub fn engines_mut(&mut self, purpose: EnginePurpose) -> Option<&mut InferenceSpec> {
        match purpose {
            EnginePurpose::Rollouts => Some(&mut self.inference),
            EnginePurpose::Evaluation => Some(&mut self.evaluation.as_mut()?.engines),
            EnginePurpose::Reward => {
                let models = self.rewards.iter_mut().filter_map(|reward| reward.model.as_mut());
                let mut served = models.filter(|model| model.served().is_some());
                served.find_map(|model| model.engines.as_deref_mut())
            }
            EnginePurpose::Teacher => {
                let teacher = &mut self.algorithm.distillation.as_mut()?.teacher;
                teacher.source().on_engines()?;
                teacher.engines.as_deref_mut()
            }
        }
    }

    /// Number of engines of this purpose.
    pub fn num_engines(&self, purpose: EnginePurpose) -> i32 {
        self.engines(purpose).map_or(0, |engines| engines.replicas)
    }
}
