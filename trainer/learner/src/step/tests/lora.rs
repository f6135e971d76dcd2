//! Training of adapters: the model without them at the start, ranks, checkpoints, the critic.

use std::path::Path;
use std::rc::Rc;

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::ModelRole;
use rljob_crds::lora::LoraSpec;
use rljob_protocol::metrics;
use rljob_storage::RunStore;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::fixture::{assert_close, batch, on_ranks, small_model, spec, train, trainer, weights};
use super::resume::{BEFORE, checkpoint, restore_point, restored};
use crate::fsdp::TrainedParameters;
use crate::model::{Model, ModelConfig, Parameters as _};
use crate::ranks::Ranks;
use crate::startup::restored_trainer;
use crate::trainer::Trainer;

pub fn with_lora(algorithm: &Value, minibatches: u32) -> RLJobSpec {
    let lora = Some(LoraSpec { rank: 4, alpha: 8.0, ..LoraSpec::default() });
    RLJobSpec { lora, ..spec(algorithm, "Random", minibatches) }
}

pub fn grpo() -> Value {
    json!({"grpo": {"klCoefficient": 0.1, "klTerm": "Loss"}})
}

/// Bits of the whole model as engines get it.
pub fn merged_bits(trainer: &mut Trainer) -> Vec<u32> {
    let whole = Tensor::cat(&merged(trainer), 0);
    Vec::<f32>::try_from(whole).unwrap().into_iter().map(f32::to_bits).collect()
}

/// The whole model as engines get it, by block.
fn merged(trainer: &mut Trainer) -> Vec<Tensor> {
    let policy = &mut trainer.models.policy;
    (0..policy.model.layout().blocks().len())
        .map(|block| policy.parameters.gather(block).unwrap().copy())
        .collect()
}

#[test]
fn the_first_step_has_the_losses_of_the_model_without_adapters_bit_for_bit() {
    let folder = small_model();
    for algorithm in [grpo(), json!({"sft": {}}), json!({"ppo": {}})] {
        let first = |spec| {
            let mut trainer = trainer(spec, folder.path(), Ranks::alone());
            let weights = merged(&mut trainer);
            let step = trainer.step(1, &batch(1, 1, 0, 1)).unwrap();
            let numbers = [metrics::LOSS, metrics::ENTROPY, metrics::REFERENCE_KL]
                .map(|name| step.get(name).map(f64::to_bits));
            (weights, numbers)
        };
        let (all, adapters) = (spec(&algorithm, "Random", 1), with_lora(&algorithm, 1));
        assert_eq!(first(adapters), first(all), "{algorithm}");
    }
}

#[test]
fn adapters_learn_and_nothing_else_changes() {
    let folder = small_model();
    let mut sft = with_lora(&json!({"sft": {}}), 1);
    sft.optimizer.learning_rate = 1e-2;
    let mut trainer = trainer(sft, folder.path(), Ranks::alone());
    let before = merged(&mut trainer);
    // The same batch: its loss falls.
    let losses: Vec<f64> = (1..=20)
        .map(|step| {
            let mut batch = batch(1, 1, 0, 1);
            batch.header.step = step;
            trainer.step(step, &batch).unwrap().get(metrics::LOSS).unwrap()
        })
        .collect();
    assert!(losses[19] < losses[0] - 0.3, "{losses:?}");
    let after = merged(&mut trainer);
    let layout = trainer.models.policy.model.layout().clone();
    for ((block, before), after) in layout.blocks().iter().zip(&before).zip(&after) {
        let views = block.views(before).into_iter().zip(block.views(after));
        for (spec, (before, after)) in block.tensors().iter().zip(views) {
            let is_target = spec.name.contains("_proj.weight");
            assert_eq!(before != after, is_target, "{}", spec.name);
        }
    }
    let TrainedParameters::Adapters(adapted) = &trainer.models.policy.parameters else {
        panic!("the policy has no adapters")
    };
    let mut reference = adapted.base().parameters();
    assert_eq!(reference.weights(1, None).unwrap(), before[1], "the base is frozen");
}

#[test]
fn two_ranks_have_the_metrics_of_one_and_repeat_bit_for_bit() {
    let folder = small_model();
    for (algorithm, sharding) in
        [(grpo(), "Full"), (grpo(), "Gradients"), (json!({"ppo": {"epochs": 2}}), "Full")]
    {
        let run = |ranks: Rc<Ranks>| {
            let mut spec = with_lora(&algorithm, 2);
            spec.training.sharding = Some(serde_json::from_value(json!(sharding)).unwrap());
            let mut trainer = trainer(spec, folder.path(), ranks);
            (train(&mut trainer, 1..=4, 2), weights(&trainer))
        };
        let (alone, _) = run(Ranks::alone());
        let two = on_ranks(2, run);
        assert_eq!(two[0].0, two[1].0);
        assert_close(&alone, &two[0].0);
        assert_eq!(two, on_ranks(2, run));
    }
}

#[test]
fn checkpoints_have_the_adapters_only_and_are_restored_bit_for_bit_on_one_and_two_ranks() {
    let folder = small_model();
    for algorithm in [grpo(), json!({"ppo": {}})] {
        let spec = with_lora(&algorithm, 2);
        let run = tempfile::tempdir().unwrap();
        let point = |attempt| restore_point(run.path(), attempt);
        let mut uninterrupted = trainer(spec.clone(), folder.path(), Ranks::alone());
        train(&mut uninterrupted, 1..=BEFORE, 2);
        checkpoint(&uninterrupted, &point(0)).wait().unwrap();
        let at_checkpoint = merged_bits(&mut uninterrupted);
        let after = train(&mut uninterrupted, BEFORE + 1..=5, 2);
        let resumed = on_ranks(2, |ranks| {
            let mut resumed = restored(&spec, folder.path(), &point(0), ranks);
            checkpoint(&resumed, &point(1)).wait().unwrap();
            assert!(merged_bits(&mut resumed) == at_checkpoint);
            train(&mut resumed, BEFORE + 1..=5, 2)
        });
        for steps in resumed {
            assert_close(&after, &steps);
        }
        for attempt in [0, 1] {
            let mut resumed = restored(&spec, folder.path(), &point(attempt), Ranks::alone());
            assert_eq!(train(&mut resumed, BEFORE + 1..=5, 2), after, "attempt {attempt}");
            assert_eq!(weights(&resumed), weights(&uninterrupted));
        }
        let tensors =
            Tensor::read_safetensors(point(0).path.join("rank-0-of-1.safetensors")).unwrap();
        let of_policy = tensors.iter().filter(|(name, _)| name.starts_with("block."));
        let elements: usize = of_policy.map(|(_, tensor)| tensor.numel()).sum();
        let trained = uninterrupted.models.policy.parameters.shards().iter();
        let trained: i64 = trained.map(|shard| shard.numel).sum();
        assert_eq!(elements as i64, 3 * trained);
    }
}

/// The error of a job that starts from a checkpoint of another one.
pub fn rejected(spec: RLJobSpec, folder: &Path, run: &Path) -> String {
    let restore = restore_point(run, 0);
    let place = RunStore::Folder(restore.path.clone());
    let model = Model::new(ModelConfig::from_folder(folder).unwrap());
    let checkpoint = (restore.version, &place);
    let error = restored_trainer(spec, model, Ranks::alone(), checkpoint, folder).unwrap_err();
    assert!(error.is_input());
    error.to_string()
}

#[test]
fn adapters_of_another_base_scale_or_kind_are_rejected() {
    let folder = small_model();
    let run = tempfile::tempdir().unwrap();
    let spec = with_lora(&grpo(), 2);
    let mut first = trainer(spec.clone(), folder.path(), Ranks::alone());
    train(&mut first, 1..=BEFORE, 2);
    checkpoint(&first, &restore_point(run.path(), 0)).wait().unwrap();
    let mut other_base = spec.clone();
    other_base.training.seed = 9;
    let mut other_scale = spec.clone();
    other_scale.lora.as_mut().unwrap().alpha = 4.0;
    let without = RLJobSpec { lora: None, ..spec };
    for spec in [other_base, other_scale, without] {
        let message = rejected(spec, folder.path(), run.path());
        assert!(message.contains(", adapters of the base "), "{message}");
        let remedy = "; name a checkpoint of a job with this model, lora and kind of algorithm";
        assert!(message.ends_with(remedy), "{message}");
    }
}

#[test]
fn the_critic_of_ppo_has_adapters_and_trains_its_head() {
    let folder = small_model();
    let mut trainer = trainer(with_lora(&json!({"ppo": {}}), 1), folder.path(), Ranks::alone());
    let head = |trainer: &mut Trainer| {
        let critic = trainer.models.trained_mut(ModelRole::Critic).unwrap();
        let last = critic.parameters.shards().last().unwrap();
        (last.master.narrow(0, 32, 32).copy(), critic.parameters.shards().len())
    };
    let (before, blocks) = head(&mut trainer);
    assert_eq!((before.abs().max().double_value(&[]), blocks), (0.0, 3));
    let steps = train(&mut trainer, 1..=3, 1);
    assert!(head(&mut trainer).0.abs().sum(Kind::Double).double_value(&[]) > 0.0);
    assert!(steps.iter().all(|step| step.get(metrics::CRITIC_GRADIENT_NORM) > Some(0.0)));
}
