//! Passes over a model: calls for weights and gradients, which are collectives when sharded;
//! packing; precision; values.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod tiny;

use rljob_learner::model::{
    Gradient, Head, Model, ModelError, PackedTokens, Parameters, Recomputed, WholeParameters,
    random,
};
use rljob_learner::objective::sft;
use tch::{Kind, Tensor};
use tiny::VOCABULARY;

fn model(tied: bool, compute: Kind) -> (Model, WholeParameters) {
    let model = tiny::model(tied);
    let blocks = random::random(model.layout(), model.config(), 5).unwrap();
    let parameters = WholeParameters::new(model.layout(), blocks, compute);
    (model, parameters)
}

/// Sequences of the given lengths, with all tokens trained except the first.
fn packed(lengths: &[usize]) -> PackedTokens {
    let tokens: Vec<i64> = lengths
        .iter()
        .flat_map(|&length| {
            (0..length)
                .map(move |position| ((position * 7 + length * 3) % VOCABULARY as usize) as i64)
        })
        .collect();
    let mask: Vec<u8> = lengths
        .iter()
        .flat_map(|&length| (0..length).map(|position| u8::from(position > 0)))
        .collect();
    PackedTokens::new(&tokens, &mask, lengths, VOCABULARY).unwrap()
}

fn whole(model: &Model, blocks: &[Tensor]) -> WholeParameters {
    let blocks = blocks.iter().map(Tensor::copy).collect();
    WholeParameters::new(model.layout(), blocks, Kind::Float)
}

fn gradients(
    model: &Model,
    parameters: &mut WholeParameters,
    micro_batches: &[PackedTokens],
) -> Tensor {
    parameters.zero_gradients();
    for packed in micro_batches {
        model
            .forward_backward(parameters, None, packed, 1.0, &mut |chunk| {
                sft::loss(&chunk.tokens.logprobs_N, &chunk.tokens.logprobs_N.full_like(0.01))
                    .0
                    .into()
            })
            .unwrap();
    }
    Tensor::cat(parameters.gradients(), 0)
}

/// Norm of the difference relative to the norm of the expected value.
fn relative(actual: &Tensor, expected: &Tensor) -> f64 {
    (actual - expected).norm().double_value(&[]) / expected.norm().double_value(&[])
}

/// Parameters that record calls.
struct Recorded {
    inner: WholeParameters,
    calls: Vec<(&'static str, usize)>,
}

impl Parameters for Recorded {
    fn weights(&mut self, block: usize, next: Option<usize>) -> Result<Tensor, ModelError> {
        self.calls.push(("weights", block));
        self.inner.weights(block, next)
    }

    fn gradient(&mut self, block: usize) -> Result<Gradient, ModelError> {
        self.inner.gradient(block)
    }

    fn add_gradient(&mut self, block: usize, gradient: Gradient) -> Result<(), ModelError> {
        self.calls.push(("gradient", block));
        self.inner.add_gradient(block, gradient)
    }
}

fn calls(tied: bool, lengths: &[usize]) -> Vec<(&'static str, usize)> {
    let (model, inner) = model(tied, Kind::Float);
    calls_of(&model, inner, lengths)
}

fn calls_of(
    model: &Model,
    inner: WholeParameters,
    lengths: &[usize],
) -> Vec<(&'static str, usize)> {
    let mut recorded = Recorded { inner, calls: Vec::new() };
    model
        .forward_backward(&mut recorded, None, &packed(lengths), 1.0, &mut |chunk| {
            sft::loss(&chunk.tokens.logprobs_N, &chunk.tokens.logprobs_N.ones_like()).0.into()
        })
        .unwrap();
    recorded.calls
}

#[test]
fn an_empty_micro_batch_makes_the_calls_of_a_full_one() {
    let untied = [
        ("weights", 0),
        ("weights", 1),
        ("weights", 2),
        ("weights", 3),
        ("gradient", 3),
        ("weights", 2),
        ("gradient", 2),
        ("weights", 1),
        ("gradient", 1),
        ("gradient", 0),
    ];
    assert_eq!(calls(false, &[5, 3]), untied);
    assert_eq!(calls(false, &[]), untied);
    let tied = [
        ("weights", 0),
        ("weights", 1),
        ("weights", 2),
        ("weights", 3),
        ("weights", 0),
        ("gradient", 3),
        ("gradient", 0),
        ("weights", 2),
        ("gradient", 2),
        ("weights", 1),
        ("gradient", 1),
        ("gradient", 0),
    ];
    assert_eq!(calls(true, &[5, 3]), tied);
    assert_eq!(calls(true, &[]), tied);
}

#[test]
fn an_empty_micro_batch_adds_zeros() {
    let (model, mut parameters) = model(true, Kind::Float);
    let gradient = gradients(&model, &mut parameters, &[packed(&[])]);
    assert_eq!(gradient, gradient.zeros_like());
    assert_eq!(model.logprobs(&mut parameters, &packed(&[]), 1.0).unwrap().logprobs_N.size(), [0]);
}

#[test]
fn a_micro_batch_with_nothing_to_train_adds_zeros() {
    let (model, mut parameters) = model(false, Kind::Float);
    let untrained = PackedTokens::new(&[3, 4, 5], &[0, 0, 0], &[3], VOCABULARY).unwrap();
    let gradient = gradients(&model, &mut parameters, &[untrained]);
    assert_eq!(gradient, gradient.zeros_like());
}

#[test]
fn packed_sequences_have_the_gradient_of_separate_ones() {
    for tied in [false, true] {
        let (model, mut parameters) = model(tied, Kind::Float);
        let together = gradients(&model, &mut parameters, &[packed(&[5, 17, 1, 6])]);
        let alone = gradients(
            &model,
            &mut parameters,
            &[packed(&[5]), packed(&[17]), packed(&[1]), packed(&[6])],
        );
        assert!(relative(&together, &alone) < 1e-5, "{}", relative(&together, &alone));
    }
}

#[test]
fn recomputed_activations_have_the_same_gradient_and_calls() {
    for tied in [false, true] {
        let (model, mut parameters) = model(tied, Kind::Float);
        let kept = gradients(&model, &mut parameters, &[packed(&[5, 17, 6])]);
        for (layers, selective) in [(1, 0), (2, 0), (0, 1), (1, 1), (0, 2)] {
            let model = model.clone().recomputing(Recomputed { layers, selective });
            let recomputed = gradients(&model, &mut parameters, &[packed(&[5, 17, 6])]);
            assert!(relative(&recomputed, &kept) < 1e-6, "{}", relative(&recomputed, &kept));
        }
        let model = model.recomputing(Recomputed { layers: 1, selective: 1 });
        assert_eq!(calls_of(&model, parameters, &[5, 3]), calls(tied, &[5, 3]));
    }
}

#[test]
fn passes_are_deterministic() {
    rljob_collective::set_deterministic(true).unwrap();
    let (model, mut parameters) = model(true, Kind::Float);
    let first = gradients(&model, &mut parameters, &[packed(&[5, 17, 6])]);
    assert_eq!(gradients(&model, &mut parameters, &[packed(&[5, 17, 6])]), first);
}

#[test]
fn bf16_passes_are_close_to_fp32_and_their_gradients_are_fp32() {
    for tied in [false, true] {
        let (model, mut parameters) = model(tied, Kind::Float);
        let expected = gradients(&model, &mut parameters, &[packed(&[5, 17, 6])]);
        let mut rounded = WholeParameters::new(
            model.layout(),
            parameters.blocks().iter().map(Tensor::copy).collect(),
            Kind::BFloat16,
        );
        let actual = gradients(&model, &mut rounded, &[packed(&[5, 17, 6])]);
        assert_eq!(actual.kind(), Kind::Float);
        assert!(relative(&actual, &expected) < 0.03, "{}", relative(&actual, &expected));
    }
}

/// Σ coefficient · value over the trained tokens, in fp64.
fn weighted_values(
    model: &Model,
    parameters: &mut WholeParameters,
    packed: &PackedTokens,
    coefficients: &Tensor,
) -> f64 {
    let values = model.values(parameters, packed).unwrap().values_N;
    assert_eq!(values.size(), coefficients.size());
    (values.to_kind(Kind::Double) * coefficients).sum(Kind::Double).double_value(&[])
}

#[test]
fn the_gradient_of_values_is_the_slope_along_any_direction() {
    let model = tiny::model(true).with_head(Head::Scalar);
    let blocks = random::random(model.layout(), model.config(), 5).unwrap();
    let mut parameters = whole(&model, &blocks);
    let packed = packed(&[5, 9, 1, 6]);
    let coefficients = Tensor::arange(17, (Kind::Double, tch::Device::Cpu)).sin();
    model
        .values_forward_backward(&mut parameters, &packed, &mut |values| {
            let expected = model.values(&mut whole(&model, &blocks), &packed).unwrap().values_N;
            assert!(values.allclose(&expected, 1e-6, 1e-7, false), "{values:?}");
            coefficients.to_kind(Kind::Float)
        })
        .unwrap();
    for (index, block) in blocks.iter().enumerate() {
        let direction =
            (Tensor::arange(block.numel() as i64, (Kind::Float, tch::Device::Cpu)) * 1.7).sin();
        let at = |step: f64| {
            let moved = |(other, block): (usize, &Tensor)| {
                if other == index { block + &direction * step } else { block.copy() }
            };
            let blocks = blocks.iter().enumerate().map(moved).collect::<Vec<_>>();
            weighted_values(&model, &mut whole(&model, &blocks), &packed, &coefficients)
        };
        let slope = (at(1e-3) - at(-1e-3)) / 2e-3;
        let found =
            (&parameters.gradients()[index] * &direction).sum(Kind::Double).double_value(&[]);
        let tolerance = 0.02 * slope.abs().max(0.05);
        assert!((slope - found).abs() < tolerance, "block {index}: {found} is not {slope}");
    }
}

#[test]
fn the_value_after_a_sequence_is_that_before_its_next_token() {
    let model = tiny::model(true).with_head(Head::Scalar);
    let blocks = random::random(model.layout(), model.config(), 5).unwrap();
    let values = |tokens: &[i64], mask: &[u8], lengths: &[usize]| {
        let packed = PackedTokens::new(tokens, mask, lengths, 16).unwrap();
        model.values(&mut whole(&model, &blocks), &packed).unwrap()
    };
    let ends = values(&[3, 5, 7, 2, 4], &[0, 1, 0, 0, 1], &[3, 2]).end_Q;
    let longer = values(&[3, 5, 7, 1, 2, 4, 1], &[0, 0, 0, 1, 0, 0, 1], &[4, 3]).values_N;
    assert!(ends.allclose(&longer, 1e-5, 1e-6, false), "{ends:?} is not {longer:?}");
}

#[test]
fn a_pass_with_the_wrong_head_fails() {
    let (language_model, mut parameters) = model(true, Kind::Float);
    let error = language_model.values(&mut parameters, &packed(&[3])).unwrap_err();
    assert_eq!(error.to_string(), "the model has the head LanguageModel, expected Scalar");
}
