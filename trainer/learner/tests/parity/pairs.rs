//! Objectives that learn from pairs, in the comparison with transformers and TRL's formulas.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::path::Path;

use rljob_crds::algorithm::dpo::{DpoLoss, DpoSpec};
use rljob_crds::algorithm::orpo::OrpoSpec;
use rljob_learner::model::{Head, Model, PackedTokens, WholeParameters, hugging_face};
use rljob_learner::objective::dpo::Dpo;
use rljob_learner::objective::orpo::Orpo;
use rljob_learner::objective::reward_model::RewardModel;
use rljob_learner::objective::{Objective, TokenStreams};
use tch::{Device, Kind, Tensor};
use tempfile::TempDir;

/// DPO with label smoothing, IPO and ORPO, by the names of the reference values.
pub fn preferences() -> [(&'static str, Box<dyn Objective>); 3] {
    let dpo = |loss, label_smoothing| {
        Dpo::new(&DpoSpec { loss, label_smoothing, beta: 0.7, batch_size: 2 })
    };
    let orpo = Orpo::new(&OrpoSpec { lambda: 0.7, batch_size: 2 });
    [
        ("dpo", Box::new(dpo(DpoLoss::Sigmoid, 0.2))),
        ("ipo", Box::new(dpo(DpoLoss::Ipo, 0.0))),
        ("orpo", Box::new(orpo)),
    ]
}

/// Streams of two pairs in a minibatch, the chosen sample first.
pub fn streams(packed: &PackedTokens, reference_logprobs_N: Option<Tensor>) -> TokenStreams {
    let sequence_N = packed.sequence_N();
    let signs_N = Tensor::from_slice(&[1.0_f32, -1.0, 1.0, -1.0]).index_select(0, sequence_N);
    TokenStreams {
        sequence_N: sequence_N.shallow_clone(),
        groups: vec![0, 0, 1, 1],
        truncated: vec![false; 4],
        sampler_logprobs_N: signs_N.zeros_like(),
        weights_N: signs_N.full_like(0.5),
        advantages_N: signs_N,
        turn_rewards_N: None,
        turn_starts_M: None,
        reference_logprobs_N,
        teacher: None,
        proximal_logprobs_N: None,
        values_N: None,
        end_values_Q: None,
        returns_N: None,
        behavior: None,
    }
}

/// Writes the model with a scalar head, as an export is written.
pub fn with_scalar_head(model: &Model, folder: &Path, mut blocks: Vec<Tensor>) -> TempDir {
    let scalar = model.clone().with_head(Head::Scalar);
    let hidden = model.config().hidden_size;
    let score = (Tensor::arange(hidden, (Kind::Float, Device::Cpu)) * 0.61).sin();
    let last = blocks.pop().unwrap().narrow(0, 0, hidden);
    blocks.push(Tensor::cat(&[last, score], 0));
    let written = tempfile::tempdir().unwrap();
    hugging_face::write_folder(written.path(), folder, scalar.layout(), &blocks, Kind::Float)
        .unwrap();
    written
}

/// Scores, loss and gradients of the reward model in `folder`, of this shape, by the names of the
/// reference values.
pub fn reward_model(folder: &Path, shape: &Model, packed: &PackedTokens) -> Vec<(String, Tensor)> {
    let model = shape.clone().with_head(Head::Scalar);
    let blocks = hugging_face::read_tensors(folder, model.layout(), Kind::Float).unwrap();
    let mut parameters = WholeParameters::new(model.layout(), blocks, Kind::Float);
    let scores_Q = model.scores(&mut parameters, packed).unwrap();
    let (streams, mut loss) = (streams(packed, None), 0.0);
    let mut gradient = |scores_Q: &Tensor| {
        let found = RewardModel.score_loss(scores_Q, &streams);
        loss += found.loss.value();
        found.gradient_N
    };
    model.scores_forward_backward(&mut parameters, packed, &mut gradient).unwrap();
    let gradients = hugging_face::named_tensors(model.layout(), parameters.gradients());
    let values = [("scores".to_owned(), scores_Q), ("reward.loss".to_owned(), Tensor::from(loss))];
    let named = gradients.into_iter().map(|(name, value)| (format!("reward.{name}"), value));
    values.into_iter().chain(named).collect()
}
