//! Comparison of passes, losses and AdamW of one model with transformers, for the parity tests and
//! the exactness benchmark.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use rljob_collective::{AdamW, fused_adamw};
use rljob_crds::algorithm::grpo::GrpoSpec;
use rljob_learner::model::{
    Model, ModelConfig, PackedTokens, Parameters, SharedPrefix, WholeParameters, hugging_face,
};
use rljob_learner::objective::{grpo, sft};
use serde_json::json;
use tch::{Kind, Tensor};
use tempfile::TempDir;

#[path = "masks.rs"]
mod masks;
#[path = "pairs.rs"]
pub mod pairs;
#[path = "values.rs"]
mod values;

const TEMPERATURE: f64 = 0.7;
const CLIP: [f64; 2] = [0.2, 0.28];
const LENGTHS: [usize; 4] = [9, 3, 33, 12];
/// Tokens that the first two sequences share, and the last two.
const PROMPTS: [usize; 2] = [2, 6];
const ADVANTAGES: [f32; 4] = [1.2, -0.8, -0.4, 0.9];
const ADAMW: AdamW =
    AdamW { learning_rate: 0.01, beta1: 0.9, beta2: 0.95, weight_decay: 0.1, epsilon: 1e-8 };

/// Four sequences of different lengths, two of each prompt; the second half of each is trained.
struct Case {
    sequences: Vec<Vec<i64>>,
    masks: Vec<Vec<u8>>,
    /// Policy minus proximal log-probability of each trained token, some beyond each bound of the
    /// ratio.
    shift: Vec<f32>,
}

impl Case {
    fn new(vocab_size: i64) -> Self {
        let sequences: Vec<Vec<i64>> = LENGTHS
            .iter()
            .zip([0, 0, 1, 1])
            .map(|(&length, group): (&usize, usize)| {
                let seed = |place: usize| if place < PROMPTS[group] { group } else { length };
                let token =
                    |place| ((7 + place * place * 31 + seed(place) * 5) as i64) % vocab_size;
                (0..length).map(token).collect()
            })
            .collect();
        let masks: Vec<Vec<u8>> = LENGTHS
            .iter()
            .map(|&length| (0..length).map(|position| u8::from(position > length / 2)).collect())
            .collect();
        let trained: usize = masks.iter().flatten().map(|&mask| usize::from(mask)).sum();
        Self {
            sequences,
            masks,
            shift: (0..trained).map(|index| 0.4 * (index as f32).sin()).collect(),
        }
    }

    fn packed(&self, vocab_size: i64) -> PackedTokens {
        self.packed_with(&[], vocab_size)
    }

    /// The sequences with prompts that are computed once.
    fn sharing(&self, vocab_size: i64) -> PackedTokens {
        let prefix = |group: usize| SharedPrefix {
            sequences: 2 * group..2 * group + 2,
            tokens: PROMPTS[group],
        };
        self.packed_with(&[0, 1].map(prefix), vocab_size)
    }

    fn packed_with(&self, prefixes: &[SharedPrefix], vocab_size: i64) -> PackedTokens {
        let (tokens, masks) = (self.sequences.concat(), self.masks.concat());
        PackedTokens::with_prefixes(&tokens, &masks, &LENGTHS, prefixes, vocab_size).unwrap()
    }

    /// Values of transformers and torch, for the model or its adapter in a folder of PEFT, and for
    /// a reward model.
    fn reference(
        &self,
        python: &Path,
        [model, reward_model]: [&Path; 2],
        adapter: Option<&Path>,
        dropout: Option<(f64, &Model)>,
    ) -> HashMap<String, Tensor> {
        let folder = tempfile::tempdir().unwrap();
        let dropout =
            dropout.map(|dropout| masks::write(folder.path(), dropout, &self.packed(i64::MAX)));
        let case = json!({
            "model": model, "adapter": adapter, "dropout": dropout, "reward_model": reward_model,
            "sequences": self.sequences, "masks": self.masks,
            "advantages": ADVANTAGES, "shift": self.shift, "temperature": TEMPERATURE,
            "clip_low": CLIP[0], "clip_high": CLIP[1],
            "adamw": {"parameter": adamw_parameter(), "gradients": adamw_gradients()},
        });
        outputs(&mut Command::new(python), "parity.py", &case)
    }
}

/// Tensors that a script of this folder writes for a case.
pub fn outputs(
    python: &mut Command,
    script: &str,
    case: &serde_json::Value,
) -> HashMap<String, Tensor> {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["case.json", "out.safetensors"].map(|name| folder.path().join(name));
    std::fs::write(&input, case.to_string()).unwrap();
    let ran = python
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity").join(script))
        .args([&input, &output])
        .env("OMP_NUM_THREADS", "1")
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Tensor::read_safetensors(output).unwrap().into_iter().collect()
}

fn adamw_parameter() -> Vec<f32> {
    vec![1.0, -2.0, 0.5, 0.0]
}

fn adamw_gradients() -> Vec<Vec<f32>> {
    vec![vec![0.1, -0.2, 3.0, 0.0], vec![-0.3, 0.2, 1.0, 1e-5], vec![0.0, 0.7, -2.0, -1e-5]]
}

/// Norm of the difference relative to the norm of the expected value.
fn relative(actual: &Tensor, expected: &Tensor) -> f64 {
    let norm = |tensor: &Tensor| tensor.to_kind(Kind::Double).norm().double_value(&[]);
    norm(&(actual - expected)) / norm(expected).max(1e-12)
}

/// Parameters whose gradients are compared.
pub trait Compared: Parameters {
    fn zero_gradients(&mut self);

    /// Gradients by the names of the reference.
    fn named_gradients(&self, model: &Model) -> Vec<(String, Tensor)>;
}

impl Compared for WholeParameters {
    fn zero_gradients(&mut self) {
        self.zero_gradients();
    }

    fn named_gradients(&self, model: &Model) -> Vec<(String, Tensor)> {
        hugging_face::named_tensors(model.layout(), self.gradients())
    }
}

/// Passes over one model, with the reference values.
struct Comparison<P> {
    model: Model,
    parameters: P,
    packed: PackedTokens,
    reference: HashMap<String, Tensor>,
    /// Probability of dropout of the adapters' inputs.
    dropout: Option<f64>,
    /// The model with a scalar head.
    reward_model: TempDir,
    /// Relative and maximum absolute difference of each tensor.
    differences: Vec<(f64, f64, String)>,
}

impl<P: Compared> Comparison<P> {
    /// Of the model in `folder`, or of its adapter, with dropout of its inputs. `parameters` gets
    /// the model and its weights.
    fn new(
        python: &Path,
        folder: &Path,
        (adapter, dropout): (Option<&Path>, Option<f64>),
        parameters: impl FnOnce(&Model, Vec<Tensor>) -> P,
    ) -> (Self, Case) {
        let model = Model::new(ModelConfig::from_folder(folder).unwrap());
        let case = Case::new(model.config().vocab_size);
        let blocks = hugging_face::read_tensors(folder, model.layout(), Kind::Float).unwrap();
        let copies = blocks.iter().map(Tensor::copy).collect();
        let reward_model = pairs::with_scalar_head(&model, folder, copies);
        let parameters = parameters(&model, blocks);
        let packed = masks::with_dropout(case.packed(model.config().vocab_size), dropout);
        let masks = dropout.map(|probability| (probability, &model));
        (
            Self {
                reference: case.reference(python, [folder, reward_model.path()], adapter, masks),
                dropout,
                reward_model,
                model,
                parameters,
                packed,
                differences: Vec::new(),
            },
            case,
        )
    }

    fn compare(&mut self, name: &str, actual: &Tensor) {
        let expected = &self.reference[name];
        let largest = (actual - expected).abs().max().double_value(&[]);
        self.differences.push((relative(actual, expected), largest, name.to_owned()));
    }

    /// Compares loss and gradients of a pass whose loss is `loss`: (derivative, loss of the chunk).
    fn pass(
        &mut self,
        name: &str,
        loss: &mut dyn FnMut(&rljob_learner::model::Chunk) -> (Tensor, f64),
    ) {
        self.parameters.zero_gradients();
        let mut total = 0.0;
        let mut closure = |chunk: &rljob_learner::model::Chunk| {
            let (gradient, value) = loss(chunk);
            total += value;
            gradient.into()
        };
        self.model
            .forward_backward(&mut self.parameters, None, &self.packed, TEMPERATURE, &mut closure)
            .unwrap();
        self.compare(&format!("{name}.loss"), &Tensor::from(total));
        for (tensor, gradient) in self.parameters.named_gradients(&self.model) {
            self.compare(&format!("{name}.{tensor}"), &gradient);
        }
    }
}

/// Compares log-probabilities, and loss and gradients of SFT and GRPO.
fn compare_passes<P: Compared>(comparison: &mut Comparison<P>, case: &Case) {
    let before = comparison
        .model
        .logprobs(&mut comparison.parameters, &comparison.packed, TEMPERATURE)
        .unwrap();
    comparison.compare("logprobs", &before.logprobs_N);

    let weights_N = before.logprobs_N.full_like(1.0 / comparison.packed.num_trained() as f64);
    comparison.pass("sft", &mut |chunk| {
        let (gradient_N, value) = sft::loss(&chunk.tokens.logprobs_N, &chunk.of(&weights_N));
        (gradient_N, value.value())
    });

    let proximal_N = &before.logprobs_N - Tensor::from_slice(&case.shift);
    let sequence_N = comparison.packed.sequence_N().shallow_clone();
    let advantages_N = Tensor::from_slice(&ADVANTAGES).index_select(0, &sequence_N);
    let clip = GrpoSpec { clip_low: CLIP[0], clip_high: CLIP[1], ..GrpoSpec::default() };
    comparison.pass("grpo", &mut |chunk| {
        let input = grpo::LossInput {
            policy_logprobs_N: &chunk.tokens.logprobs_N,
            proximal_logprobs_N: Some(&chunk.of(&proximal_N)),
            sampler_logprobs_N: &chunk.of(&before.logprobs_N),
            reference_logprobs_N: None,
            advantages_N: &chunk.of(&advantages_N),
            weights_N: &chunk.of(&weights_N),
            sequence_N: &chunk.of(&sequence_N),
            behavior: None,
        };
        let (gradient, sums) = grpo::loss(&clip, &input);
        assert!(
            sums.clipped_upper.value() > 0.0
                && sums.clipped_lower.value() > 0.0
                && sums.mismatch_max.value() < 1e-5,
            "{sums:?}"
        );
        (gradient, sums.loss.value())
    });
}

/// Compares loss and gradients of DPO, ORPO and a reward model, where the first two sequences are a
/// pair, and the last two.
fn compare_pairs<P: Compared>(comparison: &mut Comparison<P>, case: &Case) {
    let before = comparison
        .model
        .logprobs(&mut comparison.parameters, &comparison.packed, TEMPERATURE)
        .unwrap();
    let reference_N = &before.logprobs_N - Tensor::from_slice(&case.shift);
    let streams = pairs::streams(&comparison.packed, Some(reference_N));
    for (name, objective) in pairs::preferences() {
        let whole = objective.loss(&before, &streams);
        let mut value = Some(whole.loss.value());
        comparison.pass(name, &mut |chunk| {
            (chunk.of(&whole.gradient_N), value.take().unwrap_or_default())
        });
    }
    let folder = comparison.reward_model.path();
    for (name, value) in pairs::reward_model(folder, &comparison.model, &comparison.packed) {
        comparison.compare(&name, &value);
    }
}

/// Compares logits, log-probabilities, and loss and gradients of SFT, GRPO, PPO, DPO and ORPO for
/// the model in `folder`, with prompts computed for each sequence and once. Returns the largest
/// difference of a logit, and the largest difference of a loss or gradient, relative in norm and
/// absolute in value.
pub fn compare_model(python: &Path, folder: &Path) -> [f64; 3] {
    compare(python, folder, (None, None), |model, blocks| {
        WholeParameters::new(model.layout(), blocks, Kind::Float)
    })
}

/// As [`compare_model`], of `parameters` of the model and its weights, which are those of the
/// adapter in a folder of PEFT, if there is one, with this probability of dropout of its inputs.
pub fn compare<P: Compared>(
    python: &Path,
    folder: &Path,
    adapter: (Option<&Path>, Option<f64>),
    parameters: impl FnOnce(&Model, Vec<Tensor>) -> P,
) -> [f64; 3] {
    let (mut comparison, case) = Comparison::new(python, folder, adapter, parameters);
    let logits_TV =
        comparison.model.logits(&mut comparison.parameters, &comparison.packed).unwrap();
    let largest = (&logits_TV - &comparison.reference["logits"]).abs().max().double_value(&[]);
    compare_passes(&mut comparison, &case);
    compare_pairs(&mut comparison, &case);
    values::compare_values(&mut comparison, &case);
    let sharing = case.sharing(comparison.model.config().vocab_size);
    comparison.packed = masks::with_dropout(sharing, comparison.dropout);
    assert_eq!(comparison.packed.num_tokens(), 57 - 2 - 6);
    compare_passes(&mut comparison, &case);
    compare_pairs(&mut comparison, &case);
    values::compare_values(&mut comparison, &case);

    let parameter = Tensor::from_slice(&adamw_parameter());
    let (exp_avg, exp_avg_sq) = (parameter.zeros_like(), parameter.zeros_like());
    for (step, gradient) in (1..).zip(adamw_gradients()) {
        fused_adamw(
            &parameter,
            &Tensor::from_slice(&gradient),
            &exp_avg,
            &exp_avg_sq,
            step,
            &ADAMW,
        )
        .unwrap();
    }
    comparison.compare("adamw", &parameter);

    let differences = &comparison.differences;
    let (worst, _, name) = differences.iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    let (_, absolute, where_) = differences.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    println!(
        "{}: maximum difference of logits {largest:.1e}; of {} losses and gradients \
         {absolute:.1e} in value at {where_}, {worst:.1e} in norm at {name}",
        folder.display(),
        differences.len()
    );
    [largest, *worst, *absolute]
}
