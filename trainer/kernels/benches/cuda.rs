//! Times of the kernels at the shapes of Qwen2.5-1.5B and 7B with 16,384 tokens, beside the plain
//! versions on the same GPU; of advantages (GAE), beside a kernel with a thread for each sequence.
//! Prints one line of JSON per operation: name, milliseconds of the kernel and of the plain version
//! or the other kernel, and their ratio.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]
#![expect(clippy::print_stdout, reason = "prints results")]
#![expect(unsafe_code, reason = "calls the other kernel with pointers of live tensors")]
#![expect(clippy::unwrap_used, reason = "a failure ends the benchmark")]

use std::ffi::c_int;
use std::time::Instant;

use rljob_kernels::adamw::{self, AdamW, Operands};
use rljob_kernels::attention::{self, Heads, Prefix, Sequences};
use rljob_kernels::gae::{self, Discounts, Packed};
use rljob_kernels::head::{Distribution, TokenGradient};
use rljob_kernels::linear::{Write, weight_gradient};
use rljob_kernels::norm::{self, NormSaved};
use rljob_kernels::rotary::{Direction, Rotary, rotate_rows};
use rljob_kernels::swiglu;
use tch::{Cuda, Device, Kind, Tensor};

const GPU: Device = Device::Cuda(0);
const TOKENS: i64 = 16_384;

fn random(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, (Kind::BFloat16, GPU))
}

/// Milliseconds of a call, the mean of 20 after 3.
fn time(mut call: impl FnMut()) -> f64 {
    for _ in 0..3 {
        call();
    }
    Cuda::synchronize(0);
    let started = Instant::now();
    for _ in 0..20 {
        call();
    }
    Cuda::synchronize(0);
    started.elapsed().as_secs_f64() * 50.0
}

fn report(name: &str, kernel: f64, plain: Option<f64>) {
    let ratio = plain.map_or_else(|| "null".to_owned(), |plain| format!("{:.2}", plain / kernel));
    let plain = plain.map_or_else(|| "null".to_owned(), |plain| format!("{plain:.3}"));
    println!(
        "{{\"name\": \"{name}\", \"ms\": {kernel:.3}, \"plain_ms\": {plain}, \"ratio\": {ratio}}}"
    );
}

fn norms(width: i64) {
    let (x, dy, weight) = (random(&[TOKENS, width]), random(&[TOKENS, width]), random(&[width]));
    let kernel = time(|| drop(norm::rms_norm(&x, &weight, 1e-6).unwrap()));
    report(
        &format!("rms_norm {width}"),
        kernel,
        Some(time(|| drop(norm::plain(&x, &weight, 1e-6)))),
    );
    let (_, scale_T1) = norm::rms_norm(&x, &weight, 1e-6).unwrap();
    let saved = NormSaved { x_TH: x, scale_T1 };
    let kernel = time(|| drop(norm::rms_norm_backward(&dy, &saved, &weight, None).unwrap()));
    let plain = time(|| drop(norm::plain_backward(&dy, &saved, &weight)));
    report(&format!("rms_norm_backward {width}"), kernel, Some(plain));
}

fn swiglus(width: i64) {
    let (x, dy) = (random(&[TOKENS, 2 * width]), random(&[TOKENS, width]));
    let kernel = time(|| drop(swiglu::swiglu(&x).unwrap()));
    report(&format!("swiglu {width}"), kernel, Some(time(|| drop(swiglu::plain(&x)))));
    let kernel = time(|| drop(swiglu::swiglu_backward(&dy, &x).unwrap()));
    let plain = time(|| drop(swiglu::plain_backward(&dy, &x)));
    report(&format!("swiglu_backward {width}"), kernel, Some(plain));
}

fn rotation(heads: Heads) {
    let positions = Tensor::arange(TOKENS, (Kind::Int64, GPU));
    let frequencies: Vec<f32> = (0..64).map(|pair| 10_000_f32.powf(-pair as f32 / 64.0)).collect();
    let rotary = Rotary::new(&positions, &frequencies, Kind::BFloat16);
    let (tables, rotated) = (rotary.tables(), heads.queries + heads.keys);
    let x = random(&[TOKENS, heads.width()]);
    let x_TAD = x.narrow(1, 0, rotated * heads.size).unflatten(1, [rotated, heads.size]);
    let kernel = time(|| rotate_rows(&x, &tables, rotated, Direction::Forward).unwrap());
    let plain = time(|| drop(rotary.apply(&x_TAD)));
    report(&format!("rotary {rotated} heads"), kernel, Some(plain));
}

fn attentions(name: &str, heads: Heads, lengths: &[i64], prefixes: &[Prefix]) {
    let tokens: i64 = lengths.iter().sum();
    let qkv = random(&[tokens, heads.width()]);
    let dout = random(&[tokens, heads.queries * heads.size]);
    for deterministic in [false, true] {
        let sequences = Sequences::new(lengths, prefixes, heads, GPU, deterministic);
        let kind = if deterministic { " deterministic" } else { "" };
        let name = format!("{name} {}/{} heads{kind}", heads.queries, heads.keys);
        let saved = attention::attention(&qkv, &sequences).unwrap();
        if !deterministic {
            let kernel = time(|| drop(attention::attention(&qkv, &sequences).unwrap()));
            report(&format!("attention {name}"), kernel, None);
        }
        let kernel =
            time(|| drop(attention::attention_backward(&dout, &saved, &sequences).unwrap()));
        report(&format!("attention_backward {name}"), kernel, None);
    }
}

fn linear(outputs: i64, inputs: i64) {
    let (dy, x) = (random(&[TOKENS, outputs]), random(&[TOKENS, inputs]));
    let mut out = Tensor::zeros([outputs, inputs], (Kind::Float, GPU));
    let kernel = time(|| weight_gradient(Write::Add, &mut out, &dy, &x).unwrap());
    let plain = time(|| drop(out.g_add_(&dy.tr().mm(&x))));
    report(&format!("weight_gradient {outputs}x{inputs}"), kernel, Some(plain));
}

fn heads(rows: i64, vocabulary: i64) {
    let logits = random(&[rows, vocabulary]);
    let targets = Tensor::randint(vocabulary, [rows], (Kind::Int64, GPU));
    let gradient = TokenGradient::from(Tensor::randn([rows], (Kind::Float, GPU)));
    let both = |distribution: Distribution| {
        drop(distribution.logits_gradient(&targets, &gradient, 1.0).unwrap());
    };
    let kernel = time(|| both(Distribution::new(&logits, &targets, 1.0).unwrap()));
    let plain = time(|| both(Distribution::plain(&logits, &targets, 1.0)));
    report(&format!("head {rows}x{vocabulary}"), kernel, Some(plain));
}

fn optimizer(length: i64) {
    let all: Vec<Tensor> = (0..4).map(|_| Tensor::ones([length], (Kind::Float, GPU))).collect();
    let copy = Tensor::zeros([length], (Kind::BFloat16, GPU));
    let operands = Operands {
        weights: &all[0],
        gradient: &all[1],
        first_moment: &all[2],
        second_moment: &all[3],
        copy: Some(&copy),
        scale: None,
    };
    let settings = AdamW {
        learning_rate: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        weight_decay: 0.01,
        epsilon: 1e-8,
        step: 5,
        scale: 1.0,
    };
    let kernel = time(|| adamw::update(&operands, &settings).unwrap());
    let plain = time(|| adamw::plain(&operands, &settings).unwrap());
    report(&format!("adamw {length}"), kernel, Some(plain));
}

unsafe extern "C" {
    /// Advantages and returns of `gae_peer.cu`.
    fn rljob_gae_peer(
        rewards: *const f32,
        values: *const f32,
        cu_seqlens: *const i32,
        bootstrap: *const bool,
        out: *mut f32,
        returns: *mut f32,
        sequences: c_int,
        discount: f32,
        lambda: f32,
    ) -> c_int;
}

/// Advantages and returns of finished sequences of 64 to 4,096 tokens.
fn advantages(sequences: i64) {
    let lengths: Vec<i64> = (0..sequences).map(|sequence| 64 + sequence * 2741 % 4033).collect();
    let ends_Q = Tensor::from_slice(&lengths).cumsum(0, Kind::Int64).to_device(GPU);
    let tokens: i64 = lengths.iter().sum();
    let [rewards_N, values_N] = [0, 1].map(|_| Tensor::randn([tokens], (Kind::Float, GPU)));
    let end_values_Q = Tensor::zeros([sequences], (Kind::Float, GPU));
    let (discount, lambda) = (0.99, 0.95);
    let lambda_Q = Tensor::full([sequences], lambda, (Kind::Double, GPU));
    let discounts = Discounts { discount, lambda_Q: &lambda_Q };
    let packed = Packed { ends_Q: &ends_Q, values_N: &values_N, end_values_Q: &end_values_Q };
    let kernel = || {
        let advantages_N = gae::advantages(&packed, &rewards_N, discounts).unwrap();
        let returns_N = &advantages_N + &values_N;
        [advantages_N, returns_N]
    };

    // The value after the last token of each sequence follows those of its tokens.
    let values: Vec<Tensor> = values_N
        .split_with_sizes(lengths.as_slice(), 0)
        .iter()
        .map(|values| values.constant_pad_nd([0, 1]))
        .collect();
    let values = Tensor::cat(&values, 0);
    let cu_seqlens = ends_Q.constant_pad_nd([1, 0]).to_kind(Kind::Int);
    let bootstrap = Tensor::zeros([sequences], (Kind::Bool, GPU));
    let [out_N, returns_N] = [rewards_N.empty_like(), rewards_N.empty_like()];
    let peer = || {
        // SAFETY: the tensors are alive, contiguous and of these kinds and sizes.
        let code = unsafe {
            rljob_gae_peer(
                rewards_N.data_ptr().cast(),
                values.data_ptr().cast(),
                cu_seqlens.data_ptr().cast(),
                bootstrap.data_ptr().cast(),
                out_N.data_ptr().cast(),
                returns_N.data_ptr().cast(),
                sequences as c_int,
                discount as f32,
                lambda as f32,
            )
        };
        assert_eq!(code, 0, "the other kernel failed");
    };
    let (ours, theirs) = (time(|| drop(kernel())), time(peer));
    for (found, expected) in kernel().iter().zip([&out_N, &returns_N]) {
        assert!(found.allclose(expected, 1e-4, 1e-4, false), "results differ");
    }
    report(&format!("gae {sequences} sequences, {tokens} tokens"), ours, Some(theirs));
}

fn main() {
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let _no_gradient = tch::no_grad_guard();
    let mixed = [64, 4096, 700, 1300, 2048, 3500, 400, 128, 1900, 2248];
    for heads in
        [Heads { queries: 12, keys: 2, size: 128 }, Heads { queries: 28, keys: 4, size: 128 }]
    {
        attentions("8x2048", heads, &[2048; 8], &[]);
        attentions("mixed", heads, &mixed, &[]);
        attentions("16x1024", heads, &[1024; 16], &[]);
        attentions("64x256", heads, &[256; 64], &[]);
        // Groups of a prompt and eight completions, and the same with repeated prompts.
        let prefix = |first| Prefix { first, rows: 256, followers: 8 * 224 };
        let group = [vec![256], vec![224; 8]].concat();
        let prefixes: Vec<Prefix> = (0..8).map(|group| prefix(group * 2048)).collect();
        attentions("8x(256+8x224)", heads, &group.repeat(8), &prefixes);
        attentions("64x480", heads, &[480; 64], &[]);
        rotation(heads);
    }
    for width in [1536, 3584] {
        norms(width);
    }
    for width in [8960, 18_944] {
        swiglus(width);
    }
    linear(1536, 8960);
    heads(4096, 151_936);
    optimizer(1 << 28);
    advantages(1024);
}
