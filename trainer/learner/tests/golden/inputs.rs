//! Inputs of the golden values as streams, and comparisons with their outputs.

#![expect(non_snake_case, reason = "tensors carry capital shape suffixes")]

use rljob_learner::model::TokenLogprobs;
use rljob_learner::objective::{StepAdvantages, TokenLoss, TokenStreams};
use rljob_protocol::batch::SampleRow;
use serde_json::Value;
use tch::{Kind, Tensor};

/// The sample that a limit ended.
const TRUNCATED: usize = 2;

/// `golden.json`.
pub struct Golden {
    pub inputs: Value,
    pub cases: Value,
}

/// Values of a tensor in fp64.
pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(Kind::Double).flatten(0, -1)).unwrap()
}

/// Asserts equality to the rounding of fp32, relative to the value or, near 0, to 0.1; prints the
/// largest difference.
pub fn close(name: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let pairs = found.iter().zip(expected);
    let difference =
        |(found, expected): (&f64, &f64)| (found - expected).abs() / (0.1 + expected.abs());
    let largest = pairs.map(difference).fold(0.0, f64::max);
    println!("{name}: {largest:.1e}");
    assert!(largest <= 1e-6, "{name}: {found:?}, expected {expected:?}");
}

fn flat(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        number => vec![number.as_f64().unwrap()],
    }
}

impl Golden {
    pub fn read() -> Self {
        let mut all: Value = serde_json::from_str(include_str!("golden.json")).unwrap();
        Self { inputs: all["inputs"].take(), cases: all["cases"].take() }
    }

    /// Numbers of an input.
    pub fn input(&self, name: &str) -> Vec<f64> {
        flat(&self.inputs[name])
    }

    /// An input as an fp32 tensor.
    pub fn tensor(&self, name: &str) -> Tensor {
        Tensor::from_slice(&self.input(name)).to_kind(Kind::Float)
    }

    /// Numbers of a case.
    pub fn case(&self, name: &str, values: &str) -> Vec<f64> {
        flat(&self.cases[name][values])
    }

    /// Log-probabilities under the policy.
    pub fn policy(&self) -> TokenLogprobs {
        let policy_N = self.tensor("policy");
        TokenLogprobs::new(policy_N.shallow_clone(), policy_N.zeros_like())
    }

    /// Index of the sample of each token.
    pub fn sequences(&self) -> Tensor {
        let lengths = self.tensor("lengths").to_kind(Kind::Int64);
        Tensor::arange(lengths.numel() as i64, (Kind::Int64, tch::Device::Cpu))
            .repeat_interleave_self_tensor(&lengths, None, None)
    }

    /// First token of each turn.
    fn turn_starts(&self) -> Vec<i64> {
        let (sequences, turns) = (numbers(&self.sequences()), self.input("turns"));
        let of: Vec<(f64, f64)> = sequences.into_iter().zip(turns).collect();
        (0..of.len()).filter(|at| *at == 0 || of[*at] != of[at - 1]).map(|at| at as i64).collect()
    }

    /// The samples, one minibatch.
    pub fn rows(&self) -> Vec<SampleRow> {
        let [lengths, groups, rewards] =
            ["lengths", "groups", "rewards"].map(|name| self.input(name));
        let row = |sample: usize| SampleRow {
            group: groups[sample] as u32,
            reward: rewards[sample],
            trainable_tokens: lengths[sample] as u32,
            rank: 0,
            minibatch: 0,
            truncated: sample == TRUNCATED,
            ended_by_limit: sample == TRUNCATED,
            turn_rewards: Vec::new(),
        };
        (0..lengths.len()).map(row).collect()
    }

    /// Streams of the samples with these of `proximal`, `reference` and `values`.
    pub fn streams(&self, step: &StepAdvantages, streams: &[&str]) -> TokenStreams {
        let sequence_N = self.sequences();
        let of_tokens = |values: Vec<f64>| {
            let of_samples = Tensor::from_slice(&values).to_kind(Kind::Float);
            of_samples.index_select(0, &sequence_N)
        };
        let optional = |name: &str| streams.contains(&name).then(|| self.tensor(name));
        let samples = &step.samples;
        let truncated: Vec<bool> = samples.iter().map(|sample| sample.truncated).collect();
        let end = self.input("endValue")[0] as f32;
        TokenStreams {
            groups: samples.iter().map(|sample| sample.group).collect(),
            end_values_Q: Some(Tensor::from_slice(&vec![end; samples.len()])),
            truncated,
            sampler_logprobs_N: self.tensor("sampler"),
            advantages_N: of_tokens(samples.iter().map(|sample| sample.advantage).collect()),
            turn_rewards_N: None,
            turn_starts_M: Some(Tensor::from_slice(&self.turn_starts())),
            weights_N: of_tokens(samples.iter().map(|sample| sample.weight).collect()),
            reference_logprobs_N: optional("reference"),
            teacher: None,
            proximal_logprobs_N: optional("proximal"),
            values_N: optional("values"),
            returns_N: None,
            behavior: None,
            sequence_N: sequence_N.shallow_clone(),
        }
    }

    /// Compares values with those of a case.
    pub fn assert_values(&self, case: &str, name: &str, found: &Tensor) {
        close(case, &numbers(found), &self.case(case, name));
    }

    /// Compares a loss and its derivative with those of a case.
    pub fn assert_loss(&self, case: &str, found: &TokenLoss) {
        close(case, &[found.loss.value()], &self.case(case, "loss"));
        self.assert_values(case, "gradient", &found.gradient_N);
    }
}
