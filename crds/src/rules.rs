//! Rules across the parts of a spec, in CEL. Rules within a part stand beside its type.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::ValidationRule;

use crate::gpus::broadcast_rule;

/// What each algorithm needs of other parts, and its message.
const ALGORITHMS: [(&str, &str); 27] = [
    (
        "!has(self.algorithm.grpo) || has(self.rewards) && size(self.rewards) > 0 || \
         has(self.rollout) && has(self.rollout.workflow) && has(self.rollout.workflow.agent)",
        "algorithm.grpo needs rewards",
    ),
    (
        "!has(self.algorithm.grpo) || !has(self.dataset.evaluation) || \
         !has(self.dataset.evaluation.completion)",
        "dataset.evaluation.completion is not used by algorithm.grpo; remove it",
    ),
    (
        "!has(self.algorithm.grpo) || self.inference.replicas >= 1",
        "algorithm.grpo needs inference.replicas of at least 1",
    ),
    (
        "!has(self.algorithm.ppo) || has(self.rewards) && size(self.rewards) > 0 || \
         has(self.rollout) && has(self.rollout.workflow) && has(self.rollout.workflow.agent)",
        "algorithm.ppo needs rewards",
    ),
    (
        "!has(self.algorithm.ppo) || !has(self.dataset.evaluation) || \
         !has(self.dataset.evaluation.completion)",
        "dataset.evaluation.completion is not used by algorithm.ppo; remove it",
    ),
    (
        "!has(self.algorithm.ppo) || self.inference.replicas >= 1",
        "algorithm.ppo needs inference.replicas of at least 1",
    ),
    (
        "!has(self.algorithm.distillation) || has(self.algorithm.distillation.offPolicy) || \
         !has(self.dataset.evaluation) || !has(self.dataset.evaluation.completion)",
        "dataset.evaluation.completion is not used by algorithm.distillation; remove it",
    ),
    (
        "!has(self.algorithm.distillation) || has(self.algorithm.distillation.offPolicy) || \
         self.inference.replicas >= 1",
        "algorithm.distillation needs inference.replicas of at least 1",
    ),
    (
        "!has(self.algorithm.distillation) || !has(self.rollout.dynamicSampling)",
        "rollout.dynamicSampling compares rewards, which algorithm.distillation does not learn \
         from; remove it",
    ),
    (
        "!has(self.algorithm.distillation) || !has(self.algorithm.distillation.teacher.server) \
         && !has(self.algorithm.distillation.teacher.engines) || self.rollout.temperature == 1.0",
        "algorithm.distillation.teacher.server and engines need rollout.temperature 1",
    ),
    (
        "!has(self.algorithm.grpo) || !has(self.algorithm.grpo.distillation) || \
         !has(self.algorithm.grpo.distillation.teacher.server) || self.rollout.temperature == 1.0",
        "algorithm.grpo.distillation.teacher.server needs rollout.temperature 1",
    ),
    (
        "!has(self.dataset.train) || !has(self.dataset.train.curriculum) || \
         has(self.algorithm.grpo) || has(self.algorithm.ppo) || has(self.algorithm.distillation) \
         && !has(self.algorithm.distillation.offPolicy)",
        "dataset.train.curriculum needs an algorithm that samples: grpo, ppo or distillation",
    ),
    (
        "!has(self.algorithm.ppo) || !has(self.training.steps) || \
         self.algorithm.ppo.criticWarmupSteps < self.training.steps",
        "algorithm.ppo.criticWarmupSteps must be below training.steps: the policy would not be \
         trained",
    ),
    (
        "!has(self.dataset.train) || has(self.dataset.train.chosen) == (has(self.algorithm.dpo) \
         || has(self.algorithm.orpo) || has(self.algorithm.rewardModel))",
        "dataset.train.chosen and rejected belong to algorithm.dpo, orpo and rewardModel, which \
         need them",
    ),
    (
        "has(self.algorithm.dpo) || has(self.algorithm.orpo) || has(self.algorithm.rewardModel) || \
         !has(self.dataset.evaluation) || !has(self.dataset.evaluation.chosen)",
        "dataset.evaluation.chosen and rejected belong to algorithm.dpo, orpo and rewardModel",
    ),
    (
        "!has(self.algorithm.dpo) && !has(self.algorithm.orpo) && \
         !has(self.algorithm.rewardModel) || \
         (!has(self.dataset.train) || !has(self.dataset.train.completion)) && \
         (!has(self.dataset.evaluation) || !has(self.dataset.evaluation.completion))",
        "completion is not used by algorithm.dpo, orpo and rewardModel; set chosen and rejected",
    ),
    (
        "has(self.algorithm.sft) || has(self.algorithm.distillation) && \
         has(self.algorithm.distillation.offPolicy) || !has(self.dataset.evaluation) || \
         !has(self.dataset.evaluation.conversation) || has(self.dataset.evaluation.answer) || \
         has(self.dataset.evaluation.chosen) || has(self.dataset.evaluation.suites)",
        "dataset.evaluation.conversation without answer is for algorithm.sft, which measures the \
         loss of the assistant's messages",
    ),
    (
        "!has(self.algorithm.rewardModel) || self.inference.replicas == 0",
        "algorithm.rewardModel needs inference.replicas 0: engines serve language models only",
    ),
    (
        "has(self.algorithm.evaluation) != has(self.dataset.train)",
        "dataset.train is missing, or is not used by algorithm.evaluation; remove it then",
    ),
    (
        "[has(self.algorithm.evaluation), has(self.training.steps), \
         has(self.training.epochs)].filter(x, x).size() == 1",
        "set exactly one of training.steps and training.epochs, and neither with \
         algorithm.evaluation",
    ),
    (
        "!has(self.algorithm.evaluation) || has(self.rewards) && size(self.rewards) > 0 || \
         has(self.rollout) && has(self.rollout.workflow) && has(self.rollout.workflow.agent)",
        "algorithm.evaluation needs rewards",
    ),
    (
        "!has(self.algorithm.evaluation) || has(self.dataset.evaluation) && \
         (has(self.dataset.evaluation.answer) || has(self.dataset.evaluation.suites)) && \
         !has(self.dataset.evaluation.completion)",
        "algorithm.evaluation needs dataset.evaluation with answer and without completion",
    ),
    (
        "!has(self.algorithm.evaluation) || self.inference.replicas >= 1",
        "algorithm.evaluation needs inference.replicas of at least 1",
    ),
    (
        "!has(self.algorithm.evaluation) || !has(self.restoreFrom)",
        "restoreFrom is not used by algorithm.evaluation; remove it",
    ),
    (
        "!has(self.algorithm.evaluation) || !has(self.rollbackTo)",
        "rollbackTo is not used by algorithm.evaluation; remove it",
    ),
    (
        "!has(self.algorithm.evaluation) || self.model.weights == 'Pretrained'",
        "algorithm.evaluation needs model.weights Pretrained: random weights are drawn by \
         learners",
    ),
    (
        "!has(self.algorithm.evaluation) || !has(self.evaluation)",
        "evaluation.engines is not used by algorithm.evaluation, which has no training beside \
         it: inference engines evaluate; remove evaluation",
    ),
];

/// What other parts need of each other.
const PARTS: [(&str, &str); 12] = [
    (
        "!has(self.storage.s3) || !has(self.rollbackTo)",
        "rollbackTo needs a run on a volume: create an RLJob with restoreFrom.rljob",
    ),
    (
        "!has(self.evaluation) || has(self.dataset.evaluation) && \
         (has(self.dataset.evaluation.answer) || has(self.dataset.evaluation.suites))",
        "evaluation.engines needs dataset.evaluation with answer, whose prompts they complete",
    ),
    (
        "!has(self.evaluation) || !has(self.storage.s3)",
        "evaluation.engines cannot read weights from storage.s3: store the run on a volume, or \
         remove evaluation",
    ),
    (
        "!has(self.rewards) || self.rewards.filter(r, has(r.model) && \
         has(r.model.engines)).size() <= 1",
        "at most one reward may have model.engines: serve the other reward models at a url",
    ),
    (
        "!has(self.algorithm.distillation) || !has(self.algorithm.distillation.teacher.engines) \
         || !has(self.trainer.groups) || size(self.trainer.groups) == 0",
        "a teacher is on algorithm.distillation.teacher.engines or in trainer.groups: remove one",
    ),
    (
        "!has(self.lora) || self.model.weights == 'Pretrained'",
        "lora needs model.weights Pretrained: adapters of random weights fit no other model",
    ),
    (
        "self.weightSync.everySteps <= self.rollout.maxStaleness + 1",
        "weightSync.everySteps must be at most rollout.maxStaleness + 1: the batch of the next \
         step could not be sampled",
    ),
    (
        "!has(self.rollout.batchOrder) || self.rollout.batchOrder == 'Data' || \
         !self.training.deterministic",
        "rollout.batchOrder Finished depends on timing, which training.deterministic excludes: \
         set one of them",
    ),
    (
        "!has(self.storage.s3) || self.inference.replicas == 0 || !has(self.weightSync.method) \
         || self.weightSync.method == 'Distributed'",
        "engines cannot read weights from storage.s3: set weightSync.method to Distributed, or \
         store the run on a volume",
    ),
    (
        "!has(self.storage.s3) || !has(self.model.huggingFace) || \
         size(self.model.huggingFace.revision) == 40",
        "model.huggingFace.revision must be a commit of 40 hexadecimal digits with storage.s3: \
         each pod downloads the model separately",
    ),
    (
        "!has(self.storage.s3) || !has(self.model.rljob)",
        "engines cannot read a model from storage.s3: copy the export to a volume and set \
         model.path",
    ),
    (
        "has(self.storage.s3) || !has(self.restoreFrom) || !has(self.restoreFrom.s3)",
        "restoreFrom.s3 needs storage.s3, which configures the access",
    ),
];

const BROADCAST: &str = "weightSync.method Distributed needs engines and learners in one process \
                         group: both on CPUs, or both on NVIDIA GPUs";

/// All rules.
pub fn rules() -> Vec<ValidationRule> {
    let rule = |(rule, message): (&str, &str)| ValidationRule {
        rule: rule.to_owned(),
        message: Some(message.to_owned()),
        ..ValidationRule::default()
    };
    let broadcast = broadcast_rule();
    let all = ALGORITHMS.into_iter().chain(PARTS).chain([(broadcast.as_str(), BROADCAST)]);
    all.map(rule).collect()
}
