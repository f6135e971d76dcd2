//! Comparison of evaluated runs: paired differences over the prompts that two runs have in common.
//! Pure.
//!
//! ```text
//!  results of run A ─┐ by prompt                    ┌─ sampled, greedy
//!                    ├──────────▶ values of both ──▶┤                  ─▶ mean, 95 % interval
//!  results of run B ─┘            on each prompt    └─ pass@1, pass@k, maj@k
//! ```

use std::collections::BTreeMap;

use rljob_protocol::evaluation::{PromptResult, pass_at};
use serde::Serialize;

use super::bootstrap::{self, Interval};

/// Difference of two runs by one metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// `sampled`, `greedy`, `pass@K` or `maj@K`.
    pub metric: String,
    #[serde(flatten)]
    pub interval: Interval,
}

/// Results by prompt. Of several rows with one prompt, the first ones of both runs are pairs, then
/// the second ones, and so on.
type ByPrompt<'a> = BTreeMap<(&'a str, usize), &'a PromptResult>;

fn by_prompt(results: &[PromptResult]) -> ByPrompt<'_> {
    let mut rows = BTreeMap::<&str, Vec<&PromptResult>>::new();
    for result in results {
        rows.entry(&result.prompt).or_default().push(result);
    }
    let mut keyed = ByPrompt::new();
    for (prompt, mut rows) in rows {
        rows.sort_by_key(|result| result.row);
        keyed.extend(rows.into_iter().enumerate().map(|(index, row)| ((prompt, index), row)));
    }
    keyed
}

/// Differences `other` − `base` over their common prompts. Empty if fewer than two are common.
pub fn differences(base: &[PromptResult], other: &[PromptResult], seed: u64) -> Vec<Difference> {
    let (base, other) = (by_prompt(base), by_prompt(other));
    let pairs: Vec<(&PromptResult, &PromptResult)> =
        base.iter().filter_map(|(key, result)| Some((*result, *other.get(key)?))).collect();
    let metrics = metrics(&pairs);
    let difference = |(metric, value): (String, Value)| {
        let differences: Vec<f64> =
            pairs.iter().filter_map(|(base, other)| Some(value(other)? - value(base)?)).collect();
        Some(Difference { metric, interval: bootstrap::interval(&differences, seed)? })
    };
    metrics.into_iter().filter_map(difference).collect()
}

/// Value of a prompt; none if the run has none.
type Value = Box<dyn Fn(&PromptResult) -> Option<f64>>;

/// The metrics that both runs have: k is 1 and the most samples that every prompt has in both.
fn metrics(pairs: &[(&PromptResult, &PromptResult)]) -> Vec<(String, Value)> {
    let results = || pairs.iter().flat_map(|(base, other)| [*base, *other]);
    let mut found: Vec<(String, Value)> = vec![
        ("sampled".to_owned(), Box::new(|result| result.sampled)),
        ("greedy".to_owned(), Box::new(|result| result.greedy)),
    ];
    let most = results().map(|result| result.samples).filter(|samples| *samples > 0).min();
    let mut sizes = vec![1, most.unwrap_or_default()];
    sizes.dedup();
    for k in sizes.into_iter().filter(|k| *k > 0) {
        let value = move |result: &PromptResult| pass_at(result.samples, result.correct, k);
        found.push((format!("pass@{k}"), Box::new(value)));
    }
    let has = |k: &u32| {
        pairs.iter().any(|(base, other)| {
            base.majority_at.contains_key(k) && other.majority_at.contains_key(k)
        })
    };
    let largest = results().flat_map(|result| result.majority_at.keys()).filter(|k| has(k)).max();
    if let Some(&k) = largest {
        let value = move |result: &PromptResult| {
            result.majority_at.get(&k).map(|right| f64::from(u8::from(*right)))
        };
        found.push((format!("maj@{k}"), Box::new(value)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(prompt: &str, row: u64, greedy: f64, correct: u32) -> PromptResult {
        PromptResult {
            step: 3,
            row,
            prompt: prompt.to_owned(),
            greedy: Some(greedy),
            sampled: Some(f64::from(correct) / 4.0),
            samples: 4,
            correct,
            majority_at: BTreeMap::from([(1, correct > 0), (4, correct > 2)]),
            ..PromptResult::default()
        }
    }

    #[test]
    fn prompts_are_paired_by_identity_and_values_by_metric() {
        // `b` has two rows; `only` has no pair.
        let base = [result("a", 0, 0.0, 1), result("b", 1, 1.0, 4), result("b", 9, 0.0, 0)];
        let other = [
            result("b", 3, 1.0, 4),
            result("only", 2, 0.0, 0),
            result("a", 7, 1.0, 3),
            result("b", 5, 0.0, 2),
        ];
        let found = differences(&base, &other, 0);
        let means: Vec<(&str, f64, u64)> = found
            .iter()
            .map(|own| (own.metric.as_str(), own.interval.mean, own.interval.prompts))
            .collect();
        let third = 1.0 / 3.0;
        let expected = [
            ("sampled", third, 3),
            ("greedy", third, 3),
            ("pass@1", third, 3),
            ("pass@4", third, 3),
            ("maj@4", third, 3),
        ];
        for (found, expected) in means.iter().zip(expected) {
            assert_eq!((found.0, found.2), (expected.0, expected.2));
            assert!((found.1 - expected.1).abs() < 1e-12, "{found:?}");
        }
        assert_eq!(means.len(), expected.len());
        assert_eq!(differences(&base, &other, 0), found);
    }

    #[test]
    fn a_metric_is_compared_at_the_samples_that_both_runs_have() {
        let fewer = |prompt: &str| PromptResult {
            samples: 2,
            correct: 1,
            majority_at: BTreeMap::from([(1, true), (2, true)]),
            ..result(prompt, 0, 1.0, 2)
        };
        let base = [fewer("a"), fewer("b")];
        let other = [result("a", 0, 1.0, 1), result("b", 0, 1.0, 1)];
        let found: Vec<String> =
            differences(&base, &other, 0).into_iter().map(|own| own.metric).collect();
        assert_eq!(found, ["sampled", "greedy", "pass@1", "pass@2", "maj@1"]);
    }

    #[test]
    fn runs_of_other_prompts_have_no_difference() {
        let base = [result("a", 0, 0.0, 1), result("b", 1, 1.0, 4)];
        let other = [result("a", 0, 1.0, 3), result("c", 1, 1.0, 4)];
        assert_eq!(differences(&base, &other, 0), []);
    }
}
