//! Objectives for tests only: a sequence-level ratio (GSPO, arXiv 2507.18071), and a critic that is
//! trained with the policy.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::collections::BTreeMap;
use std::rc::Rc;

use rljob_crds::algorithm::grpo::GrpoSpec;
use rljob_crds::algorithm::{ModelRole, RolloutSpec};
use rljob_protocol::batch::SampleRow;
use rljob_protocol::metrics::{BEHAVIOR_WEIGHT, GRADIENT_NORM, LOSS};
use serde_json::json;
use tch::{Kind, Tensor};

use super::fixture::{assert_close, batch, on_ranks, small_model, spec, train, trainer, weights};
use crate::fsdp::{Passes, shard_of};
use crate::model::{Head, TokenLogprobs, random};
use crate::models::{Models, RoleModel, TrainedModel};
use crate::objective::{
    Deferred, Objective, PrepareError, Signal, Statistic, Statistics, StepAdvantages, SumOverRanks,
    TokenLoss, TokenStreams,
};
use crate::ranks::Ranks;
use crate::trainer::Trainer;

/// Name of a metric that exists, so that it is reported.
const RATIO: Statistic = Statistic::Mean(BEHAVIOR_WEIGHT);

/// Sum of each sequence's values, at every token of the sequence.
fn over_sequences(values_N: &Tensor, streams: &TokenStreams) -> Tensor {
    let zeros = Tensor::zeros([streams.groups.len() as i64], (Kind::Float, values_N.device()));
    let sums = zeros.index_add(0, &streams.sequence_N, values_N);
    sums.index_select(0, &streams.sequence_N)
}

/// loss = −Σ weight · A · s, where s is exp of the mean of log-ratios over the sequence.
#[derive(Debug)]
struct SequenceRatio;

impl Objective for SequenceRatio {
    fn signals(&self, _minibatches: u32) -> Vec<Signal> {
        vec![Signal::Proximal, Signal::Policy]
    }

    fn advantages(&self, samples: &[SampleRow]) -> StepAdvantages {
        StepAdvantages::from_rewards(&GrpoSpec::default(), &RolloutSpec::default(), samples)
    }

    fn loss(&self, policy: &TokenLogprobs, streams: &TokenStreams) -> TokenLoss {
        let difference_N = &policy.logprobs_N - streams.proximal_logprobs_N.as_ref().unwrap();
        let lengths_N = over_sequences(&difference_N.ones_like(), streams);
        let ratio_N = (over_sequences(&difference_N, streams) / &lengths_N).exp();
        let loss_N = -(&streams.advantages_N * &streams.weights_N * &ratio_N);
        // Each token's log-probability changes the ratio of all tokens of its sequence.
        let gradient_N = over_sequences(&loss_N, streams) / lengths_N;
        TokenLoss {
            gradient_N,
            selected: None,
            loss: Deferred::sum(&loss_N),
            statistics: Statistics::new([(RATIO, Deferred::sum(&ratio_N))]),
        }
    }

    fn statistics(&self) -> Vec<Statistic> {
        vec![RATIO]
    }
}

/// Policy gradient with the advantage return − value, and a critic that learns the return.
#[derive(Debug)]
struct ActorCritic;

impl Objective for ActorCritic {
    fn signals(&self, _minibatches: u32) -> Vec<Signal> {
        vec![Signal::Values]
    }

    fn advantages(&self, samples: &[SampleRow]) -> StepAdvantages {
        let mut advantages = StepAdvantages::without_rewards(samples);
        for (advantage, sample) in advantages.samples.iter_mut().zip(samples) {
            advantage.advantage = sample.reward;
        }
        advantages
    }

    fn prepare(
        &mut self,
        _advantages: &StepAdvantages,
        streams: &mut [&mut TokenStreams],
        _sum: &SumOverRanks<'_>,
    ) -> Result<Statistics, PrepareError> {
        for streams in streams {
            streams.advantages_N -= streams.values_N.as_ref().unwrap();
        }
        Ok(Statistics::default())
    }

    fn loss(&self, policy: &TokenLogprobs, streams: &TokenStreams) -> TokenLoss {
        let gradient_N = -(&streams.advantages_N * &streams.weights_N);
        let loss = Deferred::sum(&(&policy.logprobs_N * &gradient_N));
        TokenLoss { gradient_N, selected: None, loss, statistics: Statistics::default() }
    }

    fn value_loss(&self, values_N: &Tensor, streams: &TokenStreams) -> TokenLoss {
        let returns_N = &streams.advantages_N + streams.values_N.as_ref().unwrap();
        let error_N = values_N - returns_N;
        let squares = Deferred::sum(&error_N.square());
        let loss_N = error_N.square() * &streams.weights_N;
        TokenLoss {
            gradient_N: error_N * 2.0 * &streams.weights_N,
            selected: None,
            loss: Deferred::sum(&loss_N),
            statistics: Statistics::new([(RATIO, squares)]),
        }
    }

    fn statistics(&self) -> Vec<Statistic> {
        vec![RATIO]
    }
}

fn with_objective(objective: Box<dyn Objective>, ranks: Rc<Ranks>, minibatches: u32) -> Trainer {
    let spec = spec(&json!({"grpo": {}}), "Random", minibatches);
    Trainer { objective, ..trainer(spec, small_model().path(), ranks) }
}

/// Adds a critic with random weights of the policy's shape.
fn with_critic(mut trainer: Trainer) -> Trainer {
    let model = trainer.models.policy.model.clone().with_head(Head::Scalar);
    let blocks = random::random(model.layout(), model.config(), 3).unwrap();
    let ranks = Rc::clone(&trainer.ranks);
    let shard = |block| shard_of(block, ranks.rank(), ranks.world_size());
    let masters = blocks.iter().map(shard).collect();
    let optimizer = trainer.spec.optimizer.clone();
    let critic =
        TrainedModel::new(model, &ranks, optimizer, Passes::full(Kind::Float), masters).unwrap();
    let others = BTreeMap::from([(ModelRole::Critic, RoleModel::Trained(Box::new(critic)))]);
    trainer.models = Models::new(trainer.models.policy, others);
    trainer
}

#[test]
fn a_sequence_ratio_is_computed_over_whole_sequences_on_any_number_of_ranks() {
    let run = |ranks: Rc<Ranks>| {
        let mut trainer = with_objective(Box::new(SequenceRatio), ranks, 2);
        (train(&mut trainer, 1..=4, 2), weights(&trainer))
    };
    let (alone, _) = run(Ranks::alone());
    let two = on_ranks(2, run);
    assert_eq!(two[0].0, two[1].0);
    assert_close(&alone, &two[0].0);
}

#[test]
fn the_first_update_of_a_sequence_ratio_is_that_of_grpo() {
    let folder = small_model();
    let grpo = json!({"grpo": {"lossAggregation": "Token"}});
    let mut of_grpo = trainer(spec(&grpo, "Random", 1), folder.path(), Ranks::alone());
    let mut of_sequences = with_objective(Box::new(SequenceRatio), Ranks::alone(), 1);
    let expected = of_grpo.step(1, &batch(1, 1, 0, 1)).unwrap();
    let found = of_sequences.step(1, &batch(1, 1, 0, 1)).unwrap();
    assert!(
        (found.get(LOSS).unwrap() - expected.get(LOSS).unwrap()).abs() < 1e-6,
        "{found:?} is not {expected:?}"
    );
    let norms = [&found, &expected].map(|step| step.get(GRADIENT_NORM).unwrap());
    assert!((norms[0] - norms[1]).abs() < 1e-4 * norms[1], "{norms:?}");
    assert!((found.get(BEHAVIOR_WEIGHT).unwrap() - 1.0).abs() < 1e-6, "{found:?}");
}

#[test]
fn a_critic_learns_the_returns_on_any_number_of_ranks() {
    let run = |ranks: Rc<Ranks>| {
        let mut trainer = with_critic(with_objective(Box::new(ActorCritic), ranks, 2));
        let steps = train(&mut trainer, 1..=12, 2);
        (steps, trainer.models.shapes().into_keys().collect::<Vec<_>>())
    };
    let (alone, roles) = run(Ranks::alone());
    assert_eq!(roles, [ModelRole::Policy, ModelRole::Critic]);
    let errors: Vec<f64> = alone.iter().map(|step| step.get(BEHAVIOR_WEIGHT).unwrap()).collect();
    assert!(errors[10] + errors[11] < 0.9 * (errors[0] + errors[1]), "{errors:?}");
    let two = on_ranks(2, run);
    assert_eq!(two[0].0, two[1].0);
    assert_close(&alone, &two[0].0);
}

#[test]
fn an_objective_that_needs_a_missing_role_fails() {
    let mut trainer = with_objective(Box::new(ActorCritic), Ranks::alone(), 1);
    let error = trainer.step(1, &batch(1, 1, 0, 1)).unwrap_err();
    assert_eq!(error.to_string(), "the algorithm has no Critic model");
}
