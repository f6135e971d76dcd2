//! Kernels against the plain versions, on the first GPU. Every test fails on a machine without one.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rljob_kernels::adamw::{self, AdamW, Operands};
use rljob_kernels::attention::{self, Heads, Prefix, Sequences};
use rljob_kernels::gae::{self, Discounts, Packed};
use rljob_kernels::head::{Distribution, SelectedGradient, TokenGradient};
use rljob_kernels::linear::{Write, weight_gradient};
use rljob_kernels::norm::{self, NormSaved};
use rljob_kernels::pinned::HostCopy;
use rljob_kernels::rotary::{Direction, Rotary, rotate_rows};
use rljob_kernels::swiglu;
use tch::{Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);

fn random(shape: &[i64]) -> Tensor {
    tch::manual_seed(7);
    Tensor::randn(shape, (Kind::Float, GPU)).to_kind(Kind::BFloat16)
}

/// Mean absolute difference divided by the mean absolute value.
fn error(found: &Tensor, expected: &Tensor) -> f64 {
    let [found, expected] = [found, expected].map(|tensor| tensor.to_kind(Kind::Double));
    let mean = |tensor: &Tensor| tensor.abs().mean(Kind::Double).double_value(&[]);
    mean(&(found - &expected)) / mean(&expected)
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor, limit: f64) {
    assert_eq!(found.size(), expected.size());
    let error = error(found, expected);
    assert!(error < limit, "relative error {error:.2e}, expected less than {limit:.0e}");
}

/// bfloat16 rounds to 8 bits: 2⁻⁹ of the value at most.
const ROUNDING: f64 = 4e-3;

#[test]
fn rms_norm_and_its_derivative() {
    for (rows, width) in [(1, 64), (37, 1536), (1000, 8192), (9, 16_384)] {
        let (x, dy, residual) =
            (random(&[rows, width]), random(&[rows, width]) * 0.5, random(&[rows, width]) * 0.3);
        let weight = random(&[width]);
        let (y, scale_T1) = norm::rms_norm(&x, &weight, 1e-6).unwrap();
        let (expected, expected_scale) = norm::plain(&x, &weight, 1e-6);
        assert_close(&y, &expected, ROUNDING);
        assert_close(&scale_T1, &expected_scale, 1e-5);
        let saved = NormSaved { x_TH: x, scale_T1 };
        let (dx, dweight) = norm::rms_norm_backward(&dy, &saved, &weight, Some(&residual)).unwrap();
        let (expected, expected_weight) = norm::plain_backward(&dy, &saved, &weight);
        assert_close(&dx, &(expected + &residual), ROUNDING);
        assert_close(&dweight, &expected_weight, 1e-4);
    }
}

#[test]
fn swiglu_and_its_derivative() {
    let (x, dy) = (random(&[301, 2 * 8960]), random(&[301, 8960]) * 0.5);
    assert_close(&swiglu::swiglu(&x).unwrap(), &swiglu::plain(&x), ROUNDING);
    let (y, dx) = swiglu::swiglu_backward(&dy, &x).unwrap();
    let (expected, expected_dx) = swiglu::plain_backward(&dy, &x);
    assert_close(&y, &expected, ROUNDING);
    assert_close(&dx, &expected_dx, ROUNDING);
}

#[test]
fn rotation_and_its_inverse() {
    let positions = Tensor::arange(500, (Kind::Int64, GPU));
    let frequencies: Vec<f32> = (0..64).map(|pair| 10_000_f32.powf(-pair as f32 / 64.0)).collect();
    let rotary = Rotary::new(&positions, &frequencies, Kind::BFloat16);
    let x = random(&[500, 16 * 128]);
    let rotated = x.copy();
    rotate_rows(&rotated, &rotary.tables(), 14, Direction::Forward).unwrap();
    let expected = rotary.apply(&x.narrow(1, 0, 14 * 128).view([500, 14, 128]));
    assert_close(&rotated.narrow(1, 0, 14 * 128), &expected.view([500, 14 * 128]), ROUNDING);
    assert_eq!(rotated.narrow(1, 14 * 128, 256), x.narrow(1, 14 * 128, 256));
    rotate_rows(&rotated, &rotary.tables(), 14, Direction::Backward).unwrap();
    assert_close(&rotated, &x, 2.0 * ROUNDING);
}

/// Attention and its derivative, of bfloat16 rows against fp32.
fn assert_attention(heads: Heads, lengths: &[i64], prefixes: &[Prefix], deterministic: bool) {
    let tokens: i64 = lengths.iter().sum();
    let sequences = Sequences::new(lengths, prefixes, heads, GPU, deterministic);
    let qkv = random(&[tokens, heads.width()]);
    let dout = random(&[tokens, heads.queries * heads.size]) * 0.5;
    let saved = attention::attention(&qkv, &sequences).unwrap();
    let qkv32 = qkv.to_kind(Kind::Float);
    assert_close(&saved.out_TH, &attention::plain(&qkv32, &sequences), 2.0 * ROUNDING);
    let dqkv = attention::attention_backward(&dout, &saved, &sequences).unwrap();
    let expected = attention::plain_backward(&dout.to_kind(Kind::Float), &qkv32, &sequences);
    assert_close(&dqkv, &expected, 2e-2);
    if deterministic {
        let again = attention::attention_backward(&dout, &saved, &sequences).unwrap();
        assert_eq!(dqkv, again);
    }
}

#[test]
fn attention_over_packed_sequences_and_its_derivative() {
    for (heads, lengths) in [
        (Heads { queries: 12, keys: 2, size: 128 }, vec![64, 1, 700, 129, 1500]),
        (Heads { queries: 9, keys: 3, size: 64 }, vec![300; 7]),
        (Heads { queries: 28, keys: 4, size: 128 }, vec![2048]),
    ] {
        for deterministic in [false, true] {
            assert_attention(heads, &lengths, &[], deterministic);
        }
    }
}

#[test]
fn attention_over_shared_prefixes_and_its_derivative() {
    let prefix = |first, rows, followers| Prefix { first, rows, followers };
    for heads in
        [Heads { queries: 12, keys: 2, size: 128 }, Heads { queries: 9, keys: 3, size: 64 }]
    {
        // Two groups, and a sequence without a prefix before, between and after them.
        let lengths = [40, 256, 100, 3, 700, 77, 33, 1, 500, 90];
        let prefixes = [prefix(40, 256, 803), prefix(1176, 33, 501)];
        for deterministic in [false, true] {
            assert_attention(heads, &lengths, &prefixes, deterministic);
        }
    }
}

#[test]
fn gradients_of_weights_are_accumulated_in_fp32() {
    let (dy, x) = (random(&[4096, 256]), random(&[4096, 512]));
    let exact = dy.to_kind(Kind::Double).tr().mm(&x.to_kind(Kind::Double));
    let mut out = Tensor::zeros([256, 512], (Kind::Float, GPU));
    weight_gradient(Write::Set, &mut out, &dy, &x).unwrap();
    assert_close(&out, &exact, 1e-5);
    weight_gradient(Write::Add, &mut out, &dy, &x).unwrap();
    assert_close(&out, &(exact * 2.0), 1e-5);
}

#[test]
fn log_probabilities_entropies_and_their_derivative() {
    let (rows, vocabulary) = (129, 151_936);
    let logits = random(&[rows, vocabulary]) * 3.0;
    let targets = Tensor::randint(vocabulary, [rows], (Kind::Int64, GPU));
    let random = || Tensor::randn([rows], (Kind::Float, GPU));
    let with_entropy = [(random(), None), (random(), Some(random()))];
    for (logprobs_C, entropy_C) in with_entropy {
        let tokens_CK = Tensor::randint(vocabulary, [rows, 1], (Kind::Int64, GPU));
        let selected = SelectedGradient {
            logits_CK: random().unsqueeze(1),
            target_C: random(),
            tokens_CK: tokens_CK.shallow_clone(),
        };
        let gradient = TokenGradient { logprobs_C, entropy_C, selected: Some(selected) };
        let read = logits.gather(-1, &tokens_CK, false);
        let expected = Distribution::plain(&logits.copy(), &targets, 0.7);
        let found = Distribution::new(&logits.copy(), &targets, 0.7).unwrap();
        assert_close(&found.logprobs_C, &expected.logprobs_C, 1e-5);
        assert_close(&found.entropy_C, &expected.entropy_C, 1e-4);
        assert_close(&found.logprobs_of(&read, 0.7), &expected.logprobs_of(&read, 0.7), 1e-5);
        let expected = expected.logits_gradient(&targets, &gradient, 0.7).unwrap();
        let found = found.logits_gradient(&targets, &gradient, 0.7).unwrap();
        assert_close(&found, &expected, ROUNDING);
    }
}

#[test]
fn advantages_of_packed_sequences() {
    let lengths: [i64; 9] = [1, 7, 0, 1023, 1024, 1025, 40, 0, 9000];
    let ends_Q = Tensor::from_slice(&lengths).cumsum(0, Kind::Int64).to_device(GPU);
    tch::manual_seed(5);
    let random = |length| Tensor::randn([length], (Kind::Float, GPU));
    let tokens: i64 = lengths.iter().sum();
    let (rewards_N, values_N) = (random(tokens), random(tokens));
    let end_values_Q = random(lengths.len() as i64);
    let packed = Packed { ends_Q: &ends_Q, values_N: &values_N, end_values_Q: &end_values_Q };
    let varied = [0.5, 0.9, 0.0, 1.0, 0.999, 0.97, 0.0, 0.5, 0.99];
    for (discount, lambdas) in
        [(1.0, [1.0; 9]), (0.99, [0.95; 9]), (0.9, [0.0; 9]), (0.0, [0.5; 9]), (0.97, varied)]
    {
        let lambda_Q = Tensor::from_slice(&lambdas).to_device(GPU);
        let discounts = Discounts { discount, lambda_Q: &lambda_Q };
        let found = gae::advantages(&packed, &rewards_N, discounts).unwrap();
        let expected = gae::plain(&packed, &rewards_N, discounts).unwrap();
        assert_close(&found, &expected, 1e-6);
        let largest = |tensor: Tensor| tensor.abs().max().double_value(&[]);
        let (difference, size) = (largest(&found - &expected), largest(expected));
        assert!(difference <= 1e-6 * size, "γ {discount}, λ {lambdas:?}: {difference}");
        assert_eq!(gae::advantages(&packed, &rewards_N, discounts).unwrap(), found);
    }
}

fn operands(all: &[Tensor]) -> Operands<'_> {
    Operands {
        weights: &all[0],
        gradient: &all[1],
        first_moment: &all[2],
        second_moment: &all[3],
        copy: Some(&all[4]),
        scale: None,
    }
}

#[test]
fn adamw_with_a_copy_in_bfloat16() {
    let length = 4 * 1001;
    let mut found: Vec<Tensor> =
        (0..4).map(|_| Tensor::randn([length], (Kind::Float, GPU))).collect();
    found[3] = found[3].square();
    found.push(Tensor::zeros([length], (Kind::BFloat16, GPU)));
    // Other tests draw from the GPU's generator meanwhile: the same seed gives other numbers.
    let expected: Vec<Tensor> = found.iter().map(Tensor::copy).collect();
    let settings = AdamW {
        learning_rate: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        weight_decay: 0.01,
        epsilon: 1e-8,
        step: 5,
        scale: 0.25,
    };
    adamw::update(&operands(&found), &settings).unwrap();
    adamw::plain(&operands(&expected), &settings).unwrap();
    for at in [0, 2, 3] {
        assert_close(&found[at], &expected[at], 1e-6);
    }
    assert_eq!(found[4], found[0].to_kind(Kind::BFloat16));
    let before: Vec<Tensor> = found.iter().map(Tensor::copy).collect();
    let none = Tensor::from(f32::NAN).to_device(GPU);
    adamw::update(&Operands { scale: Some(&none), ..operands(&found) }, &settings).unwrap();
    assert_eq!(found, before, "a scale that is not a number updates nothing");
    let scale = Tensor::from(0.25_f32).to_device(GPU);
    let other = AdamW { scale: 7.0, ..settings };
    adamw::update(&Operands { scale: Some(&scale), ..operands(&before) }, &other).unwrap();
    adamw::update(&operands(&found), &settings).unwrap();
    assert_eq!(found, before, "a scale on the device is that of the settings");
}

#[test]
fn copies_to_the_host_have_the_bits_of_the_tensors_and_use_their_memory_again() {
    let bytes = |tensors: &[Tensor]| -> Vec<u8> {
        let values = tensors.iter().flat_map(|tensor| Vec::<f32>::try_from(tensor).unwrap());
        values.flat_map(f32::to_le_bytes).collect()
    };
    let mut copy = HostCopy::new(4 * 7_000_001).unwrap();
    for seed in [1, 2] {
        tch::manual_seed(seed);
        let tensors = [7_000_000, 1].map(|length| Tensor::randn([length], (Kind::Float, GPU)));
        copy.begin(&tensors).unwrap();
        assert!(copy.wait().unwrap() == bytes(&tensors));
    }
    assert!(copy.begin(&[Tensor::zeros([3], (Kind::Float, GPU))]).is_err());
}
