//! Estimates over prompts with standard errors. Pure.
//!
//! The unit is the prompt: a prompt's samples are correlated, so their number does not shrink the
//! error as independent samples would. With xᵢ the estimate of prompt i of n:
//!
//! ```text
//!  x̄  = Σ xᵢ ÷ n        s² = Σ (xᵢ − x̄)² ÷ (n − 1)        standard error = s ÷ √n
//! ```
//!
//! This is the standard error clustered by prompt, for clusters of equal weight (Miller, "Adding
//! Error Bars to Evals", arXiv 2411.00640, sections 2.2 and 3). It contains the variance between
//! prompts and, divided by the number of samples, that within them. The prompts count as a sample
//! of all prompts of their kind: there is no correction for a finite set.

use std::collections::BTreeMap;

use rljob_protocol::evaluation::CategoryMetrics;
use rljob_protocol::metrics::{EvaluationMetrics, GREEDY_FIRST_TURN, SAMPLED_FIRST_TURN, Scalars};

use crate::evaluation::estimate::sizes;
use crate::evaluation::judged::Judged;

/// A mean over prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Estimate {
    mean: f64,
    /// None for fewer than two prompts.
    standard_error: Option<f64>,
}

impl Estimate {
    /// `None` without values. The order of the values decides the bits.
    fn of(values: &[f64]) -> Option<Self> {
        let n = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let standard_error = (values.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt());
        Some(Self { mean, standard_error })
    }
}

/// Estimates over prompts in the data's order, so that the same rewards give the same bits. None if
/// no sampled or no greedy completion has a reward.
pub fn summary(
    step: u32,
    samples: u32,
    judged: &[Judged],
    seconds: f64,
) -> Option<EvaluationMetrics> {
    let over = |value: &dyn Fn(&Judged) -> Option<f64>| {
        Estimate::of(&judged.iter().filter_map(value).collect::<Vec<f64>>())
    };
    let by_size = |value: &dyn Fn(&Judged, u32) -> Option<f64>| {
        let at = |k| Some((k, over(&|judged| value(judged, k))?));
        sizes(samples).into_iter().filter_map(at).collect::<BTreeMap<u32, Estimate>>()
    };
    let sampled = over(&Judged::mean)?;
    let greedy = over(&|judged| judged.greedy)?;
    let pass = by_size(&|judged, k| judged.pass_at.get(&k).copied());
    let majority =
        by_size(&|judged, k| judged.majority_at.get(&k).map(|right| f64::from(u8::from(*right))));
    let (tokens, newer) = judged.iter().fold((0, 0), |(tokens, newer), judged| {
        (judged.tokens.saturating_add(tokens), judged.newer_tokens.saturating_add(newer))
    });
    Some(EvaluationMetrics {
        step,
        prompts: judged.len() as u32,
        samples,
        sampled: Some(sampled.mean),
        greedy: Some(greedy.mean),
        sampled_standard_error: sampled.standard_error,
        greedy_standard_error: greedy.standard_error,
        pass_at: means(&pass),
        pass_at_standard_error: standard_errors(&pass),
        majority_at: means(&majority),
        majority_at_standard_error: standard_errors(&majority),
        categories: categories(judged),
        rejected: Some(judged.iter().map(|judged| judged.rejected).sum()),
        newer_tokens: (tokens > 0).then(|| newer as f64 / tokens as f64),
        loss: None,
        loss_tokens: None,
        suites: BTreeMap::new(),
        seconds,
        scalars: Scalars::default(),
    })
}

/// The numbers of an evaluation from those of its suites: of the only one if it has no name. None
/// without any.
pub fn combined(
    step: u32,
    found: Vec<(Option<&str>, EvaluationMetrics)>,
) -> Option<EvaluationMetrics> {
    let mut all = EvaluationMetrics { step, ..EvaluationMetrics::default() };
    for (name, own) in found {
        let Some(name) = name else { return Some(own) };
        all.prompts = all.prompts.saturating_add(own.prompts);
        all.seconds = all.seconds.max(own.seconds);
        let rejected = own.rejected.unwrap_or_default();
        all.rejected = Some(all.rejected.unwrap_or_default().saturating_add(rejected));
        all.suites.insert(name.to_owned(), own);
    }
    Some(all).filter(|all| !all.suites.is_empty())
}

/// Estimates by category, over the prompts that have one.
fn categories(judged: &[Judged]) -> BTreeMap<String, CategoryMetrics> {
    let mut prompts = BTreeMap::<&String, Vec<&Judged>>::new();
    for judged in judged {
        if let Some(category) = &judged.category {
            prompts.entry(category).or_default().push(judged);
        }
    }
    let metrics = |prompts: Vec<&Judged>| {
        let over = |value: &dyn Fn(&Judged) -> Option<f64>| {
            Estimate::of(&prompts.iter().filter_map(|own| value(own)).collect::<Vec<f64>>())
        };
        let (sampled, greedy) = (over(&Judged::mean), over(&|judged| judged.greedy));
        CategoryMetrics {
            prompts: prompts.len() as u32,
            sampled: sampled.map(|estimate| estimate.mean),
            greedy: greedy.map(|estimate| estimate.mean),
            sampled_standard_error: sampled.and_then(|estimate| estimate.standard_error),
            greedy_standard_error: greedy.and_then(|estimate| estimate.standard_error),
        }
    };
    prompts.into_iter().map(|(category, prompts)| (category.clone(), metrics(prompts))).collect()
}

/// Mean rewards of the first turns, by the names of scalars of [`EvaluationMetrics`].
pub fn first_turns(judged: &[Judged]) -> impl Iterator<Item = (&'static str, f64)> {
    let over = |value: &dyn Fn(&Judged) -> Option<f64>| {
        Some(Estimate::of(&judged.iter().filter_map(value).collect::<Vec<f64>>())?.mean)
    };
    let sampled = over(&|judged| Some(Estimate::of(&judged.first_turns.0)?.mean));
    let greedy = over(&|judged| judged.first_turns.1);
    let scalars = [(SAMPLED_FIRST_TURN, sampled), (GREEDY_FIRST_TURN, greedy)];
    scalars.into_iter().filter_map(|(name, mean)| Some((name, mean?)))
}

fn means(estimates: &BTreeMap<u32, Estimate>) -> BTreeMap<u32, f64> {
    estimates.iter().map(|(k, estimate)| (*k, estimate.mean)).collect()
}

fn standard_errors(estimates: &BTreeMap<u32, Estimate>) -> BTreeMap<u32, f64> {
    estimates.iter().filter_map(|(k, estimate)| Some((*k, estimate.standard_error?))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rljob_protocol::evaluation::CategoryMetrics;
    use rljob_protocol::metrics::{EvaluationMetrics, Scalars};

    use super::{Estimate, Judged, combined, first_turns, summary};

    fn judged(sampled: &[f64], greedy: Option<f64>, pass: f64, majority: bool) -> Judged {
        Judged {
            sampled: sampled.to_vec(),
            correct: sampled.iter().filter(|reward| **reward >= 1.0).count() as u32,
            greedy,
            pass_at: BTreeMap::from([(1, pass), (2, 1.0)]),
            majority_at: BTreeMap::from([(1, majority)]),
            rejected: u32::from(greedy.is_none()),
            tokens: 10,
            newer_tokens: 2,
            first_turns: (vec![0.0; sampled.len()], greedy.map(|_| 0.5)),
            ..Judged::default()
        }
    }

    #[test]
    fn the_summary_has_means_over_prompts_with_errors_and_rejections() {
        let prompts = [judged(&[1.0, 0.0], Some(1.0), 0.5, true), judged(&[1.0], None, 1.0, false)];
        let expected = EvaluationMetrics {
            step: 3,
            prompts: 2,
            samples: 2,
            sampled: Some(0.75),
            greedy: Some(1.0),
            sampled_standard_error: Some(0.25),
            greedy_standard_error: None,
            pass_at: BTreeMap::from([(1, 0.75), (2, 1.0)]),
            pass_at_standard_error: BTreeMap::from([(1, 0.25), (2, 0.0)]),
            majority_at: BTreeMap::from([(1, 0.5)]),
            majority_at_standard_error: BTreeMap::from([(1, 0.5)]),
            categories: BTreeMap::new(),
            rejected: Some(1),
            newer_tokens: Some(0.2),
            loss: None,
            loss_tokens: None,
            suites: BTreeMap::new(),
            seconds: 1.5,
            scalars: Scalars::default(),
        };
        assert_eq!(summary(3, 2, &prompts, 1.5), Some(expected));
        assert_eq!(summary(3, 2, &[Judged::default()], 1.5), None);
        let scalars: Vec<_> = first_turns(&prompts).collect();
        assert_eq!(scalars, [("sampledFirstTurn", 0.0), ("greedyFirstTurn", 0.5)]);
        assert_eq!(first_turns(&[Judged::default()]).count(), 0);
    }

    #[test]
    fn an_evaluation_of_suites_has_their_numbers_by_name() {
        let of = |seconds| summary(3, 2, &[judged(&[1.0], Some(1.0), 1.0, true)], seconds).unwrap();
        assert_eq!(combined(3, vec![(None, of(1.0))]), Some(of(1.0)));
        let both = combined(3, vec![(Some("a"), of(2.0)), (Some("b"), of(1.0))]).unwrap();
        let expected = EvaluationMetrics {
            step: 3,
            prompts: 2,
            rejected: Some(0),
            suites: [("a".to_owned(), of(2.0)), ("b".to_owned(), of(1.0))].into(),
            seconds: 2.0,
            ..EvaluationMetrics::default()
        };
        assert_eq!((both, combined(3, Vec::new())), (expected, None));
    }

    #[test]
    fn categories_have_means_over_their_prompts() {
        let of = |category: &str, greedy: f64| Judged {
            category: Some(category.to_owned()),
            ..judged(&[greedy, 0.0], Some(greedy), 0.5, true)
        };
        let prompts = [of("algebra", 1.0), of("geometry", 0.0), of("algebra", 0.0)];
        let categories = summary(0, 2, &prompts, 0.0).unwrap().categories;
        let category = |prompts, sampled, greedy, errors: Option<(f64, f64)>| CategoryMetrics {
            prompts,
            sampled: Some(sampled),
            greedy: Some(greedy),
            sampled_standard_error: errors.map(|errors| errors.0),
            greedy_standard_error: errors.map(|errors| errors.1),
        };
        let expected = BTreeMap::from([
            ("algebra".to_owned(), category(2, 0.25, 0.5, Some((0.25, 0.5)))),
            ("geometry".to_owned(), category(1, 0.0, 0.0, None)),
        ]);
        assert_eq!(categories, expected);
    }

    /// Rewards of 4 samples of 6 prompts, and their standard error by two other ways in Python:
    /// `statistics.stdev(means) / math.sqrt(6)`, and the cluster-robust error of an intercept,
    /// √(G ÷ (G − 1) · Σ_c (Σ_i (s_ic − s̄))²) ÷ N.
    #[test]
    fn the_standard_error_is_clustered_by_prompt() {
        let rewards: [[f64; 4]; 6] = [
            [1.0, 1.0, 1.0, 0.0],
            [0.0, 0.0, 0.0, 0.0],
            [1.0, 1.0, 1.0, 1.0],
            [0.0, 1.0, 0.0, 0.0],
            [1.0, 0.5, 1.0, 0.0],
            [0.0, 0.0, 1.0, 0.0],
        ];
        let prompts = rewards.map(|sampled| judged(&sampled, Some(sampled[0]), 0.5, true));
        let metrics = summary(0, 4, &prompts, 0.0).unwrap();
        let close = |found: Option<f64>, expected: f64| {
            assert!((found.unwrap() - expected).abs() < 1e-12, "{found:?} and {expected}");
        };
        close(metrics.sampled, 0.479_166_666_666_666_7);
        close(metrics.sampled_standard_error, 0.152_809_340_174_102_08);
        close(metrics.greedy_standard_error, 0.223_606_797_749_978_96);
        // Samples taken as independent: an error that is too small.
        let independent = Estimate::of(&rewards.concat()).unwrap().standard_error.unwrap();
        assert!(independent < 0.7 * metrics.sampled_standard_error.unwrap(), "{independent}");
    }
}
