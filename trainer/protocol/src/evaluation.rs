//! Results of an evaluation by category and by prompt, and the estimate of pass@k.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Means over the prompts of one category, with standard errors as in `EvaluationMetrics`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CategoryMetrics {
    /// Prompts of the category.
    pub prompts: u32,
    /// Mean over prompts of the mean reward of a prompt's sampled completions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<f64>,
    /// Mean reward of the greedy completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy: Option<f64>,
    /// Standard error of `sampled`; absent for fewer than two prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled_standard_error: Option<f64>,
    /// Standard error of `greedy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy_standard_error: Option<f64>,
}

/// Results of one prompt in one evaluation: a line of `evaluation-prompts.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PromptResult {
    /// Steps done when it was evaluated.
    pub step: u32,
    /// Suite; absent without `dataset.evaluation.suites`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    /// Row of the dataset, from 0.
    pub row: u64,
    /// Identity of the prompt in other runs and files: the first 16 hexadecimal digits of the
    /// SHA-256 of its text and its reference answer.
    pub prompt: String,
    /// Digest of all fields of the row ([`row_digest`]); absent in runs of earlier releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row_digest: Option<String>,
    /// Category; absent without `dataset.evaluation.category`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// Reward of the greedy completion; absent if its verifier failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub greedy: Option<f64>,
    /// Mean reward of the sampled completions; absent without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<f64>,
    /// Sampled completions with a reward.
    pub samples: u32,
    /// How many of them are correct: their reward is at least `correctReward`.
    pub correct: u32,
    /// By k: whether the most frequent answer of the first k samples is correct.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub majority_at: BTreeMap<u32, bool>,
}

/// Digest of a row: the first 16 hexadecimal digits of the SHA-256 of its JSON with sorted keys,
/// whatever their order and the white space in its file.
pub fn row_digest(fields: &Map<String, Value>) -> String {
    // Maps of JSON are sorted by key, and values have no other keys than texts.
    let json = serde_json::to_vec(fields).unwrap_or_default();
    format!("{:x}", Sha256::digest(json)).chars().take(16).collect()
}

/// Probability that at least one of `k` samples drawn without replacement from `n`, of which `c`
/// are correct, is correct: 1 − C(n − c, k) ÷ C(n, k), as the product of Chen et al., arXiv
/// 2107.03374, figure 3. None if `k` is more than `n`.
pub fn pass_at(n: u32, c: u32, k: u32) -> Option<f64> {
    let wrong = n.checked_sub(c)?;
    if k > n {
        return None;
    }
    if wrong < k {
        return Some(1.0);
    }
    Some(
        1.0 - (wrong.saturating_add(1)..=n)
            .map(|i| 1.0 - f64::from(k) / f64::from(i))
            .product::<f64>(),
    )
}

#[cfg(test)]
mod tests {
    use super::{pass_at, row_digest};

    #[test]
    fn the_digest_of_a_row_depends_on_its_values_only() {
        let digest = |text: &str| row_digest(&serde_json::from_str(text).unwrap());
        let first = digest("{\"a\": 1, \"b\": {\"d\": [2.0], \"c\": null}}");
        assert_eq!(first.len(), 16);
        assert_eq!(digest("{ \"b\":{\"c\":null,\"d\":[2.0]},\"a\":1 }"), first);
        for other in ["{\"a\": 1}", "{\"a\": 2, \"b\": {\"d\": [2.0], \"c\": null}}"] {
            assert_ne!(digest(other), first);
        }
    }

    #[test]
    fn pass_at_k_is_the_share_of_the_subsets_that_hold_a_correct_sample() {
        for n in 1_u32..8 {
            for c in 0..=n {
                for k in 1..=n {
                    let subsets = (0_u32..1 << n).filter(|subset| subset.count_ones() == k);
                    let (all, passed) = subsets.fold((0, 0), |(all, passed), subset| {
                        (all + 1, passed + u32::from(subset & ((1 << c) - 1) != 0))
                    });
                    let expected = f64::from(passed) / f64::from(all);
                    assert!(
                        (pass_at(n, c, k).unwrap() - expected).abs() < 1e-12,
                        "n {n}, c {c}, k {k}"
                    );
                }
            }
        }
        assert_eq!(pass_at(2, 1, 3), None);
    }
}
