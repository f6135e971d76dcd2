//! Golden values of losses over pairs, and of the divergence from a teacher's tokens.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_crds::algorithm::distillation::OffPolicySpec;
use rljob_kernels::head::{Distribution, TokenGradient};
use rljob_learner::model::{TokenLogprobs, TopTokens};
use rljob_learner::objective::dpo::Dpo;
use rljob_learner::objective::off_policy_distillation::OffPolicyDistillation;
use rljob_learner::objective::orpo::Orpo;
use rljob_learner::objective::reward_model::RewardModel;
use rljob_learner::objective::{Objective, StepAdvantages, TokenStreams};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::inputs::{Golden, close};

/// Streams of pairs, whose chosen samples are first.
fn of_pairs(golden: &Golden) -> TokenStreams {
    let mut rows = golden.rows();
    for (index, row) in rows.iter_mut().enumerate() {
        row.reward = if index % 2 == 0 { 1.0 } else { 0.0 };
    }
    golden.streams(&StepAdvantages::of_pairs(&rows), &["reference"])
}

fn assert_dpo(case: &str, settings: Value) {
    let golden = Golden::read();
    let dpo = Dpo::new(&serde_json::from_value(settings).unwrap());
    golden.assert_loss(case, &dpo.loss(&golden.policy(), &of_pairs(&golden)));
}

#[test]
fn dpo_with_label_smoothing_is_trls() {
    assert_dpo("dpo/0.0", json!({"beta": 0.3}));
    assert_dpo("dpo/0.1", json!({"beta": 0.3, "labelSmoothing": 0.1}));
}

#[test]
fn ipo_is_areals() {
    assert_dpo("ipo", json!({"beta": 0.3, "loss": "Ipo"}));
}

#[test]
fn the_odds_ratio_loss_of_orpo_is_trls() {
    let golden = Golden::read();
    let orpo = Orpo::new(&serde_json::from_value(json!({"lambda": 0.3})).unwrap());
    golden.assert_loss("orpo", &orpo.loss(&golden.policy(), &of_pairs(&golden)));
}

#[test]
fn the_loss_of_a_reward_model_is_trls() {
    let golden = Golden::read();
    let loss = RewardModel.score_loss(&golden.tensor("scores"), &of_pairs(&golden));
    golden.assert_loss("rewardModel", &loss);
}

#[test]
fn off_policy_distillation_is_trls_with_the_rest_as_one_token() {
    let golden = Golden::read();
    let logits = |name: &str| golden.tensor(name).view([5, 8]);
    for (case, top_k, temperature) in
        [("offPolicy/3/1.0", 3, 1.0), ("offPolicy/3/2.0", 3, 2.0), ("offPolicy/8/1.0", 8, 1.0)]
    {
        let teacher = (logits("teacher") / temperature).log_softmax(-1, Kind::Float);
        let (logprobs_NK, tokens_NK) = teacher.topk(top_k, -1, true, true);
        let targets = Tensor::from_slice(&[0_i64, 3, 1, 7, 2]);
        let policy = logits("student");
        let read = policy.gather(-1, &tokens_NK, false);
        let distribution = Distribution::new(&policy.copy(), &targets, temperature).unwrap();
        let tokens = TokenLogprobs {
            logprobs_N: distribution.logprobs_C.shallow_clone(),
            entropy_N: distribution.entropy_C.shallow_clone(),
            selected_NK: Some(distribution.logprobs_of(&read, temperature)),
        };
        let streams = TokenStreams {
            weights_N: Tensor::full([5], 0.2, (Kind::Float, tch::Device::Cpu)),
            teacher: Some(TopTokens { tokens_NK: tokens_NK.to_kind(Kind::Int), logprobs_NK }),
            ..of_pairs(&golden)
        };
        let spec = OffPolicySpec { top_k: top_k as u32, temperature, batch_size: 1 };
        let loss = OffPolicyDistillation::new(&spec).loss(&tokens, &streams);
        close(case, &[loss.loss.value()], &golden.case(case, "loss"));
        let gradient =
            TokenGradient { logprobs_C: loss.gradient_N, entropy_C: None, selected: loss.selected };
        let found = distribution.logits_gradient(&targets, &gradient, temperature).unwrap();
        golden.assert_values(case, "gradient", &found);
    }
}
