//! Adaptive KL coefficient (Ziegler et al., arXiv 1909.08593).
//!
//! ```text
//!  e = KL ÷ target − 1, within ± 0.2        β ← β · (1 + e · samples ÷ horizon)
//! ```
//! `samples ÷ horizon` is at most 1, so that the coefficient stays positive.

use rljob_crds::algorithm::ppo::AdaptiveKl;

/// Bound of the relative error of the divergence.
const MAX_ERROR: f64 = 0.2;
/// Largest coefficient, that of the setting.
const MAX_COEFFICIENT: f64 = 1000.0;

/// The coefficient after a step of this many samples with a mean divergence, in nats per token.
pub fn adapted(spec: &AdaptiveKl, coefficient: f64, kl: f64, samples: usize) -> f64 {
    let error = (kl / spec.target - 1.0).clamp(-MAX_ERROR, MAX_ERROR);
    let share = (samples as f64 / f64::from(spec.horizon)).min(1.0);
    (coefficient * (1.0 + error * share)).clamp(f64::MIN_POSITIVE, MAX_COEFFICIENT)
}

#[cfg(test)]
mod tests {
    use rljob_crds::algorithm::ppo::AdaptiveKl;

    use super::adapted;

    const SPEC: AdaptiveKl = AdaptiveKl { target: 6.0, horizon: 10_000 };

    #[test]
    fn the_coefficient_follows_the_published_formula() {
        // With β = 0.2 and 256 samples: factors 1.00512 (clipped), 1.00256 and 0.99488 (clipped).
        let updates = [(12.0, 0.201_024), (6.6, 0.201_538_621_44), (0.0, 0.200_506_743_698_227_2)];
        let mut coefficient = 0.2;
        for (kl, expected) in updates {
            coefficient = adapted(&SPEC, coefficient, kl, 256);
            assert!((coefficient - expected).abs() < 1e-15, "{coefficient}, {expected}");
        }
        assert_eq!(adapted(&SPEC, 0.2, 6.0, 256).to_bits(), 0.2_f64.to_bits(), "the target");
    }

    #[test]
    fn a_step_changes_the_coefficient_by_at_most_a_fifth_and_keeps_it_in_range() {
        let step = |coefficient, kl| adapted(&SPEC, coefficient, kl, 1_000_000);
        let least = f64::MIN_POSITIVE;
        let found = [step(1.0, f64::MAX), step(1.0, -10.0), step(999.0, 100.0), step(least, 0.0)];
        assert_eq!(found.map(f64::to_bits), [1.2, 0.8, 1000.0, least].map(f64::to_bits));
    }
}
