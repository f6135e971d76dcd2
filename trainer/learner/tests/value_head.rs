//! Passes of a policy with a value head: their gradients are the sums of those of a language model
//! and of a critic with the same weights, within 1e-5 in fp32. Both are compared with autograd in
//! `parity`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod tiny;

use rljob_learner::model::{
    Chunk, Head, Model, PackedTokens, SharedPrefix, ValueHead, WholeParameters, random,
};
use tch::{Device, Kind, Tensor};
use tiny::{HIDDEN, VOCABULARY};

const TEMPERATURE: f64 = 0.7;

fn wave(count: i64, pace: f64) -> Tensor {
    (Tensor::arange(count, (Kind::Float, Device::Cpu)) * pace).sin()
}

fn whole(model: &Model, blocks: Vec<Tensor>, compute: Kind) -> WholeParameters {
    WholeParameters::new(model.layout(), blocks, compute)
}

/// Three models with the same weights: a policy, its value head, and a critic.
struct Models {
    policy: (Model, WholeParameters),
    head: WholeParameters,
    critic: (Model, WholeParameters),
}

impl Models {
    fn new(tied: bool, compute: Kind) -> Self {
        let policy = tiny::model(tied);
        let blocks = random::random(policy.layout(), policy.config(), 5).unwrap();
        let head = policy.clone().with_head(Head::Value);
        let critic = policy.clone().with_head(Head::Scalar);
        let score = wave(HIDDEN, 0.61);
        let mut of_critic: Vec<Tensor> = blocks.iter().map(Tensor::copy).collect();
        let norm = of_critic.pop().unwrap().narrow(0, 0, HIDDEN);
        of_critic.push(Tensor::cat(&[&norm, &score], 0));
        Self {
            head: whole(&head, vec![score], compute),
            critic: (critic.clone(), whole(&critic, of_critic, compute)),
            policy: (policy.clone(), whole(&policy, blocks, compute)),
        }
    }

    /// Gradients of the policy's blocks and of its head, and the values of the pass.
    fn joint(&mut self, packed: &PackedTokens) -> (Vec<Tensor>, Tensor, Tensor) {
        let (model, parameters) = &mut self.policy;
        parameters.zero_gradients();
        self.head.zero_gradients();
        let mut values = None;
        let mut of_values = |of_pass: &Tensor| {
            values = Some(of_pass.copy());
            of_values(packed)
        };
        let head = ValueHead { parameters: &mut self.head, loss: &mut of_values };
        let mut of_chunk = |chunk: &Chunk| chunk.of(&of_logprobs(packed)).into();
        model.forward_backward(parameters, Some(head), packed, TEMPERATURE, &mut of_chunk).unwrap();
        let gradients = parameters.gradients().iter().map(Tensor::copy).collect();
        (gradients, self.head.gradients()[0].copy(), values.unwrap())
    }

    /// As [`Self::joint`], by a pass of the policy and one of the critic.
    fn separate(&mut self, packed: &PackedTokens) -> (Vec<Tensor>, Tensor, Tensor) {
        let ((policy, of_policy), (critic, of_critic)) = (&mut self.policy, &mut self.critic);
        of_policy.zero_gradients();
        of_critic.zero_gradients();
        let mut of_chunk = |chunk: &Chunk| chunk.of(&of_logprobs(packed)).into();
        policy.forward_backward(of_policy, None, packed, TEMPERATURE, &mut of_chunk).unwrap();
        let mut values = None;
        let mut loss = |of_pass: &Tensor| {
            values = Some(of_pass.copy());
            of_values(packed)
        };
        critic.values_forward_backward(of_critic, packed, &mut loss).unwrap();
        let last = of_critic.gradients().last().unwrap();
        let head = last.narrow(0, HIDDEN, HIDDEN).copy();
        let sum = |(of_policy, of_critic): (&Tensor, &Tensor)| {
            // The last block of the critic has its head in place of that of the policy.
            let shared = if of_policy.size() == of_critic.size() {
                of_critic.copy()
            } else {
                let rest = of_policy.numel() as i64 - HIDDEN;
                of_critic.narrow(0, 0, HIDDEN).constant_pad_nd([0, rest])
            };
            of_policy + shared
        };
        let sums = of_policy.gradients().iter().zip(of_critic.gradients()).map(sum).collect();
        (sums, head, values.unwrap())
    }
}

/// Derivatives of the loss with respect to the log-probabilities of trained tokens.
fn of_logprobs(packed: &PackedTokens) -> Tensor {
    wave(packed.num_trained(), 1.3) - 0.2
}

/// Derivatives of the loss with respect to the values of trained tokens.
fn of_values(packed: &PackedTokens) -> Tensor {
    wave(packed.num_trained(), 0.7) * 0.5 + 0.1
}

/// Sequences of 5, 9, 1 and 6 tokens; with `shares`, the first two share two tokens.
fn packed(shares: bool) -> PackedTokens {
    let lengths = [5, 9, 1, 6];
    let token = |place: usize| (3 + place * place * 7 % 47) as i64;
    let tokens: Vec<i64> = lengths.into_iter().flat_map(|length| (0..length).map(token)).collect();
    let of_length = |length: usize| (0..length).map(|place| u8::from(place > 1));
    let mask: Vec<u8> = lengths.into_iter().flat_map(of_length).collect();
    let shared = [SharedPrefix { sequences: 0..2, tokens: 2 }];
    let prefixes = if shares { &shared[..] } else { &[] };
    PackedTokens::with_prefixes(&tokens, &mask, &lengths, prefixes, VOCABULARY).unwrap()
}

/// Norm of the difference relative to the norm of the expected value.
fn relative(actual: &Tensor, expected: &Tensor) -> f64 {
    (actual - expected).norm().double_value(&[]) / expected.norm().double_value(&[])
}

#[test]
fn gradients_are_the_sums_of_those_of_the_policy_and_of_a_critic() {
    for (tied, shares) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut models, packed) = (Models::new(tied, Kind::Float), packed(shares));
        let (joint, separate) = (models.joint(&packed), models.separate(&packed));
        let blocks = joint.0.iter().zip(&separate.0);
        let others = [(&joint.1, &separate.1), (&joint.2, &separate.2)];
        for (index, (actual, expected)) in blocks.chain(others).enumerate() {
            let difference = relative(actual, expected);
            assert!(difference <= 1e-5, "tied {tied}, part {index}: {difference:.1e}");
        }
    }
}

#[test]
fn values_and_log_probabilities_of_one_pass_are_those_of_two() {
    for shares in [false, true] {
        let (Models { policy, mut head, critic }, packed) =
            (Models::new(true, Kind::Float), packed(shares));
        let ((policy, mut parameters), (critic, mut of_critic)) = (policy, critic);
        let (tokens, values) =
            policy.logprobs_and_values(&mut parameters, &mut head, &packed, TEMPERATURE).unwrap();
        let alone = policy.head_values(&mut parameters, &mut head, &packed).unwrap();
        let expected = critic.values(&mut of_critic, &packed).unwrap();
        let logprobs = policy.logprobs(&mut parameters, &packed, TEMPERATURE).unwrap();
        assert_eq!((values.values_N, values.end_Q), (alone.values_N.copy(), alone.end_Q.copy()));
        for (actual, expected) in [
            (alone.values_N, expected.values_N),
            (alone.end_Q, expected.end_Q),
            (tokens.logprobs_N, logprobs.logprobs_N),
            (tokens.entropy_N, logprobs.entropy_N),
        ] {
            assert!(relative(&actual, &expected) <= 1e-6, "{actual:?} is not {expected:?}");
        }
    }
}

#[test]
fn a_head_that_is_trained_alone_has_the_same_gradient_and_the_policy_none() {
    let (mut models, packed) = (Models::new(false, Kind::Float), packed(true));
    let (_, expected, _) = models.joint(&packed);
    let Models { policy: (policy, parameters), head, .. } = &mut models;
    parameters.zero_gradients();
    head.zero_gradients();
    let mut loss = |_: &Tensor| of_values(&packed);
    let of_head = ValueHead { parameters: head, loss: &mut loss };
    policy.head_forward_backward(parameters, of_head, &packed).unwrap();
    assert!(relative(&head.gradients()[0], &expected) <= 1e-6);
    assert!(parameters.gradients().iter().all(|gradient| *gradient == gradient.zeros_like()));
}

#[test]
fn bf16_passes_are_close_to_fp32_and_their_gradients_are_fp32() {
    let packed = packed(true);
    let of = |compute| {
        let (blocks, head, _) = Models::new(true, compute).joint(&packed);
        (Tensor::cat(&blocks, 0), head)
    };
    let (actual, expected) = (of(Kind::BFloat16), of(Kind::Float));
    assert_eq!((actual.0.kind(), actual.1.kind()), (Kind::Float, Kind::Float));
    let differences = [relative(&actual.0, &expected.0), relative(&actual.1, &expected.1)];
    assert!(differences.iter().all(|difference| *difference < 0.03), "{differences:?}");
}

#[test]
fn an_empty_micro_batch_adds_zeros() {
    let mut models = Models::new(true, Kind::Float);
    let empty = PackedTokens::new(&[], &[], &[], VOCABULARY).unwrap();
    let (blocks, head, values) = models.joint(&empty);
    assert_eq!((values.numel(), &head), (0, &head.zeros_like()));
    assert!(blocks.iter().all(|gradient| *gradient == gradient.zeros_like()));
}
