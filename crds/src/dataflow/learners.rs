//! Calls of the learners in a step.

use super::call::{Call, Kind, LearnerCall, Model, Phase, Workers};
use super::data::Data;
use crate::RLJobSpec;
use crate::algorithm::grpo::KlTerm;
use crate::algorithm::{Algorithm, FrozenModel, ModelRole, Signal};

/// Optimizer updates of each trained model in a step: passes over the batch times minibatches, of
/// which there are no more than prompts.
pub fn updates(spec: &RLJobSpec, algorithm: Algorithm<'_>) -> u32 {
    let minibatches = spec.training.minibatches.min(algorithm.batch_size(&spec.rollout));
    minibatches.saturating_mul(algorithm.epochs())
}

/// The calls of the learners, in the order in which they run: first the passes without gradients,
/// then advantages and weights, then each update of the policy and of the critic. A value head is
/// updated with the policy.
pub fn learner_calls(spec: &RLJobSpec, algorithm: Algorithm<'_>) -> Vec<LearnerCall> {
    if !spec.algorithm.has_learners() {
        return Vec::new();
    }
    let is_served = algorithm.served_teacher().is_some();
    let signals = algorithm.signals(&spec.rollout, updates(spec, algorithm));
    let critic = algorithm.model_roles().contains(&ModelRole::Critic);
    let critic = critic && !algorithm.has_value_head();
    let updates = [Some(LearnerCall::Policy), critic.then_some(LearnerCall::Critic)];
    let is_made = |call: &LearnerCall| !is_served || *call != LearnerCall::Reference;
    let passes = signals.into_iter().filter_map(LearnerCall::of_signal).filter(is_made);
    passes.chain([LearnerCall::Advantages]).chain(updates.into_iter().flatten()).collect()
}

/// The calls with their data.
pub fn calls(spec: &RLJobSpec, algorithm: Algorithm<'_>) -> Vec<Call> {
    let calls = learner_calls(spec, algorithm);
    let of = Declaration { spec, algorithm, calls: &calls };
    let declared = |call: &LearnerCall| of.after_group(of.call(*call));
    calls.iter().map(|call| Call { seconds: Some(call.seconds()), ..declared(call) }).collect()
}

/// What the data of a call depends on.
struct Declaration<'a> {
    spec: &'a RLJobSpec,
    algorithm: Algorithm<'a>,
    calls: &'a [LearnerCall],
}

impl Declaration<'_> {
    fn call(&self, call: LearnerCall) -> Call {
        match call {
            LearnerCall::Reference => self.frozen(),
            LearnerCall::Proximal => self.proximal(),
            LearnerCall::Values if self.algorithm.has_value_head() => {
                let inputs = [Data::Batch, Data::PolicyWeights, Data::CriticWeights];
                inference(Model::Policy).with(inputs, [Data::Values])
            }
            LearnerCall::Values => {
                inference(Model::Critic).with([Data::Batch, Data::CriticWeights], [Data::Values])
            }
            LearnerCall::Advantages => self.advantages(),
            LearnerCall::Policy => self.policy(),
            LearnerCall::Critic => self.critic(),
        }
    }

    /// The pass of the reference model or of a teacher, by the group that holds it.
    fn frozen(&self) -> Call {
        let (model, logprobs) = self.frozen_model();
        let group = self.spec.frozen_group().map(|group| Workers::Group(group.name.clone()));
        let is_ahead = group.is_some() && self.spec.rollout.max_staleness > 0;
        let note = is_ahead.then(|| "runs for later steps while a step is trained".to_owned());
        let call = inference(model).with([Data::Batch], [logprobs]).noting(note);
        Call { workers: group.unwrap_or(Workers::Learners), ..call }
    }

    /// Learners receive what a group infers with their batch, so that none of their calls begins
    /// before.
    fn after_group(&self, mut call: Call) -> Call {
        let logprobs = self.frozen_model().1;
        let is_first = call.workers == Workers::Learners && call.kind != Kind::Train;
        if is_first && self.spec.frozen_group().is_some() && !call.inputs.contains(&logprobs) {
            call.inputs.push(logprobs);
        }
        call
    }

    /// The frozen model and what it makes.
    fn frozen_model(&self) -> (Model, Data) {
        match self.algorithm.frozen_model() {
            Some(FrozenModel::TeacherTopTokens) => (Model::Teacher, Data::TeacherTopTokens),
            Some(FrozenModel::Teacher) => (Model::Teacher, Data::TeacherLogprobs),
            Some(FrozenModel::Reference) | None => (Model::Reference, Data::ReferenceLogprobs),
        }
    }

    /// The data if the learners have the call.
    fn if_called(&self, call: LearnerCall, data: Data) -> Option<Data> {
        self.calls.contains(&call).then_some(data)
    }

    /// The datum if the algorithm has a critic, of either kind.
    fn of_critic(&self, data: Data) -> Option<Data> {
        self.algorithm.model_roles().contains(&ModelRole::Critic).then_some(data)
    }

    /// The datum if the policy has a value head.
    fn of_value_head(&self, data: Data) -> Option<Data> {
        self.algorithm.has_value_head().then_some(data)
    }

    fn proximal(&self) -> Call {
        let inputs = [Data::Batch, Data::PolicyWeights].into_iter();
        let outputs = std::iter::once(Data::ProximalLogprobs);
        inference(Model::Policy).with(
            inputs.chain(self.of_value_head(Data::CriticWeights)),
            outputs.chain(self.of_value_head(Data::Values)),
        )
    }

    /// Log-probabilities of the reference model or of a teacher in the learners.
    fn reference(&self) -> Option<Data> {
        self.if_called(LearnerCall::Reference, self.frozen_model().1)
    }

    fn advantages(&self) -> Call {
        let policy = self.algorithm.policy();
        let is_reward = policy.as_ref().is_some_and(|policy| {
            policy.kl_term == KlTerm::Reward && policy.distillation.is_none()
        });
        let inputs = [
            Some(Data::Batch),
            self.reference().filter(|_| is_reward),
            self.if_called(LearnerCall::Proximal, Data::ProximalLogprobs),
            self.of_critic(Data::Values),
        ];
        let outputs = [
            policy.as_ref().map(|_| Data::Advantages),
            self.of_critic(Data::Returns),
            Some(Data::LossWeights),
        ];
        let name = if policy.is_some() { "advantages" } else { "weights" };
        Call::new(name, Kind::Transform, Workers::Learners, Phase::Training)
            .with(inputs.into_iter().flatten(), outputs.into_iter().flatten())
    }

    fn policy(&self) -> Call {
        let inputs = [
            Some(Data::Batch),
            Some(Data::PolicyWeights),
            self.of_value_head(Data::CriticWeights),
            self.reference(),
            self.if_called(LearnerCall::Proximal, Data::ProximalLogprobs),
            self.of_value_head(Data::Values),
            self.algorithm.policy().map(|_| Data::Advantages),
            self.of_value_head(Data::Returns),
            Some(Data::LossWeights),
        ];
        let outputs = [Some(Data::NewPolicyWeights), self.of_value_head(Data::NewCriticWeights)];
        let scores = self.algorithm.trains_scores();
        let model = if scores { Model::Reward } else { Model::Policy };
        self.train(model, self.policy_note())
            .with(inputs.into_iter().flatten(), outputs.into_iter().flatten())
    }

    fn critic(&self) -> Call {
        let inputs =
            [Data::Batch, Data::CriticWeights, Data::Values, Data::Returns, Data::LossWeights];
        self.train(Model::Critic, self.adapters()).with(inputs, [Data::NewCriticWeights])
    }

    fn train(&self, model: Model, note: Option<String>) -> Call {
        let name = format!("train {}", model.name());
        let call = Call::new(name, Kind::Train, Workers::Learners, Phase::Training).of(model);
        Call { updates: updates(self.spec, self.algorithm), ..call.noting(note) }
    }

    fn adapters(&self) -> Option<String> {
        let lora = self.spec.lora.as_ref()?;
        Some(format!("trains adapters of rank {} over frozen weights", lora.rank))
    }

    fn policy_note(&self) -> Option<String> {
        let signals =
            self.algorithm.signals(&self.spec.rollout, updates(self.spec, self.algorithm));
        let whole = signals.contains(&Signal::Policy).then(|| {
            "a forward pass over whole completions precedes each pass with gradients".to_owned()
        });
        let warmup = self.algorithm.critic_warmup_steps();
        let done = if self.algorithm.has_value_head() {
            "update the value head only"
        } else {
            "have forward passes only, no update"
        };
        let warmup = (warmup > 0).then(|| format!("steps 1 to {warmup} {done}"));
        let notes: Vec<String> = [self.adapters(), whole, warmup].into_iter().flatten().collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// A forward pass of the learners over the batch.
fn inference(model: Model) -> Call {
    let name = format!("infer {}", model.name());
    Call::new(name, Kind::Inference, Workers::Learners, Phase::Training).of(model)
}
