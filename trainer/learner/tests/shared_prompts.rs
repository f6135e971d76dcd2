//! Passes over prompts that are computed once for the samples of a group, compared with passes that
//! compute them for each sample: log-probabilities, values and gradients within 1e-5 in fp32.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rljob_learner::model::{
    Head, Model, ModelConfig, PackedTokens, Recomputed, SharedPrefix, WholeParameters,
    hugging_face, random,
};
use tch::{Device, Kind, Tensor};

const VOCABULARY: i64 = 50;
const TEMPERATURE: f64 = 0.7;

/// (prompt tokens, completion tokens of each sample). The third group has one sample, others have
/// empty completions, and a prompt of one token.
const GROUPS: [(usize, &[usize]); 5] =
    [(7, &[5, 0, 17, 6]), (40, &[3, 3]), (9, &[8]), (1, &[2, 11, 4]), (12, &[0, 0])];

/// Architecture: biases of projections, norms of heads, query heads, tied embeddings.
#[derive(Clone, Copy, Debug)]
struct Shape {
    qkv_bias: bool,
    qk_norm: bool,
    heads: i64,
    tied: bool,
}

/// Llama, Qwen2 and Qwen3, tied and untied; the last without grouped queries.
const SHAPES: [Shape; 7] = [
    Shape { qkv_bias: false, qk_norm: false, heads: 4, tied: false },
    Shape { qkv_bias: false, qk_norm: false, heads: 4, tied: true },
    Shape { qkv_bias: true, qk_norm: false, heads: 6, tied: false },
    Shape { qkv_bias: true, qk_norm: false, heads: 6, tied: true },
    Shape { qkv_bias: false, qk_norm: true, heads: 4, tied: false },
    Shape { qkv_bias: false, qk_norm: true, heads: 4, tied: true },
    Shape { qkv_bias: false, qk_norm: true, heads: 2, tied: true },
];

fn model(shape: Shape) -> Model {
    Model::new(ModelConfig {
        vocab_size: VOCABULARY,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 3,
        num_attention_heads: shape.heads,
        num_key_value_heads: 2,
        head_dim: 8,
        qkv_bias: shape.qkv_bias,
        qk_norm: shape.qk_norm,
        rope_theta: 100.0,
        rope_scaling: None,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: shape.tied,
        max_position_embeddings: 64,
        eos_token_ids: vec![2],
        bos_token_id: None,
        initializer_range: 0.2,
    })
}

/// Random weights, with biases and norms that differ from 0 and 1.
fn parameters(model: &Model, compute: Kind) -> WholeParameters {
    let wave = |block: &Tensor| {
        let places = Tensor::arange(block.numel() as i64, (Kind::Float, Device::Cpu));
        block + (places * 0.37).sin() * 0.1
    };
    let blocks = random::random(model.layout(), model.config(), 5).unwrap();
    let blocks = blocks.iter().map(wave).collect();
    WholeParameters::new(model.layout(), blocks, compute)
}

/// Sequences of a micro-batch.
#[derive(Default)]
struct Sequences {
    tokens: Vec<i64>,
    mask: Vec<u8>,
    lengths: Vec<usize>,
    prefixes: Vec<SharedPrefix>,
}

impl Sequences {
    fn new<'a>(groups: impl IntoIterator<Item = &'a (usize, &'a [usize])>) -> Self {
        let mut all = Self::default();
        for (prompt, completions) in groups {
            let sequences = all.lengths.len()..all.lengths.len() + completions.len();
            all.prefixes.push(SharedPrefix { sequences, tokens: *prompt });
            for (sample, completion) in completions.iter().enumerate() {
                let token = |place: usize| {
                    let of_sample = if place < *prompt { 0 } else { 11 + sample * 5 };
                    ((place * place * 3 + prompt * 7 + of_sample) % VOCABULARY as usize) as i64
                };
                all.tokens.extend((0..prompt + completion).map(token));
                all.mask.extend((0..prompt + completion).map(|place| u8::from(place >= *prompt)));
                all.lengths.push(prompt + completion);
            }
        }
        all
    }

    fn shared(&self) -> PackedTokens {
        let Self { tokens, mask, lengths, prefixes } = self;
        PackedTokens::with_prefixes(tokens, mask, lengths, prefixes, VOCABULARY).unwrap()
    }

    fn repeated(&self) -> PackedTokens {
        PackedTokens::new(&self.tokens, &self.mask, &self.lengths, VOCABULARY).unwrap()
    }
}

/// Results of passes over micro-batches.
struct Passes {
    logprobs: Tensor,
    loss: f64,
    gradients: Vec<Tensor>,
}

/// Derivative of the loss with respect to each trained token.
fn coefficients(packed: &PackedTokens) -> Tensor {
    (Tensor::arange(packed.num_trained(), (Kind::Float, Device::Cpu)) * 1.3).sin() - 0.2
}

fn passes(model: &Model, compute: Kind, micro_batches: &[PackedTokens]) -> Passes {
    let mut parameters = parameters(model, compute);
    let (mut logprobs, mut loss) = (Vec::new(), 0.0);
    for packed in micro_batches {
        logprobs.push(model.logprobs(&mut parameters, packed, TEMPERATURE).unwrap().logprobs_N);
        let weights = coefficients(packed);
        let mut of_chunk = |chunk: &rljob_learner::model::Chunk| {
            let gradient = chunk.of(&weights);
            loss += (&chunk.tokens.logprobs_N * &gradient).sum(Kind::Double).double_value(&[]);
            gradient.into()
        };
        model.forward_backward(&mut parameters, None, packed, TEMPERATURE, &mut of_chunk).unwrap();
    }
    let gradients = parameters.gradients().iter().map(Tensor::copy).collect();
    Passes { logprobs: Tensor::cat(&logprobs, 0), loss, gradients }
}

/// Norm of the difference relative to the norm of the expected value.
fn relative(actual: &Tensor, expected: &Tensor) -> f64 {
    (actual - expected).norm().double_value(&[]) / expected.norm().double_value(&[]).max(1e-9)
}

fn assert_near(model: &Model, actual: &Passes, expected: &Passes, tolerance: f64) {
    let loss = ((actual.loss - expected.loss) / expected.loss).abs();
    let logprobs = (&actual.logprobs - &expected.logprobs).abs() / expected.logprobs.abs();
    let logprobs = logprobs.max().double_value(&[]);
    assert!(loss <= tolerance && logprobs <= tolerance, "loss {loss:.1e}, {logprobs:.1e}");
    let named = |passes: &Passes| hugging_face::named_tensors(model.layout(), &passes.gradients);
    for ((name, actual), (_, expected)) in named(actual).iter().zip(&named(expected)) {
        let difference = relative(actual, expected);
        assert!(difference <= tolerance, "{name} of {:?}: {difference:.1e}", model.config());
    }
}

#[test]
fn a_shared_prompt_has_fewer_tokens_and_the_same_loss_and_gradients() {
    let sequences = Sequences::new(&GROUPS);
    let (shared, repeated) = (sequences.shared(), sequences.repeated());
    assert_eq!([shared.num_tokens(), repeated.num_tokens()], [69 + 59, 203]);
    assert_eq!([shared.num_trained(), repeated.num_trained()], [59, 59]);
    for shape in SHAPES {
        let model = model(shape);
        let expected = passes(&model, Kind::Float, &[sequences.repeated()]);
        let actual = passes(&model, Kind::Float, &[sequences.shared()]);
        assert_near(&model, &actual, &expected, 1e-5);
        for (layers, selective) in [(2, 0), (0, 2)] {
            let again = model.clone().recomputing(Recomputed { layers, selective });
            let recomputed = passes(&again, Kind::Float, &[sequences.shared()]);
            assert_near(&model, &recomputed, &expected, 1e-5);
        }
    }
}

#[test]
fn a_group_in_two_micro_batches_has_its_prompt_in_both() {
    type Groups<'a> = [(usize, &'a [usize]); 2];
    let (first, second): (Groups<'_>, Groups<'_>) =
        ([(7, &[5, 9]), (20, &[6])], [(7, &[4, 3]), (30, &[8, 1])]);
    let [first, second] = [first, second].map(|groups| Sequences::new(&groups));
    for shape in [SHAPES[3], SHAPES[4]] {
        let model = model(shape);
        let expected = passes(&model, Kind::Float, &[first.repeated(), second.repeated()]);
        let actual = passes(&model, Kind::Float, &[first.shared(), second.shared()]);
        assert_near(&model, &actual, &expected, 1e-5);
    }
}

#[test]
fn values_and_their_gradients_are_the_same() {
    let sequences = Sequences::new(&GROUPS);
    let model = model(SHAPES[0]).with_head(Head::Scalar);
    let run = |packed: &PackedTokens| {
        let mut parameters = parameters(&model, Kind::Float);
        let mut seen = None;
        let mut loss = |values: &Tensor| {
            seen = Some(values.copy());
            coefficients(packed)
        };
        model.values_forward_backward(&mut parameters, packed, &mut loss).unwrap();
        (seen.unwrap(), Tensor::cat(parameters.gradients(), 0))
    };
    let (actual, expected) = (run(&sequences.shared()), run(&sequences.repeated()));
    let differences = [relative(&actual.0, &expected.0), relative(&actual.1, &expected.1)];
    assert!(differences.iter().all(|difference| *difference <= 1e-5), "{differences:?}");
}

#[test]
fn passes_over_shared_prompts_repeat_bit_for_bit() {
    let sequences = Sequences::new(&GROUPS);
    let model = model(SHAPES[3]);
    let run = || passes(&model, Kind::Float, &[sequences.shared()]);
    let (first, second) = (run(), run());
    assert_eq!((first.logprobs, first.gradients), (second.logprobs, second.gradients));
}

#[test]
fn bf16_passes_over_shared_prompts_are_as_close_to_fp32_as_repeated_ones() {
    let sequences = Sequences::new(&GROUPS);
    for shape in [SHAPES[3], SHAPES[4]] {
        let model = model(shape);
        let all = |passes: &Passes| Tensor::cat(&passes.gradients, 0);
        let expected = all(&passes(&model, Kind::Float, &[sequences.repeated()]));
        let of = |packed| relative(&all(&passes(&model, Kind::BFloat16, &[packed])), &expected);
        let (shared, repeated) = (of(sequences.shared()), of(sequences.repeated()));
        assert!(shared <= 1.5 * repeated && repeated < 0.1, "{shared:.1e}, {repeated:.1e}");
    }
}
