//! Restart backoff with jitter: no delay after a restart that made progress, then exponential.
//! Pure: the random draw is a parameter.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rljob_protocol::desired::RestartPolicy;

use super::Now;

/// Random number from 0 to 1 for a restart of a process.
pub fn draw(incarnation: u64, attempt: u32) -> f64 {
    let mut random = ChaCha8Rng::seed_from_u64(incarnation);
    random.set_stream(attempt.into());
    random.random()
}

/// Delay before a restart that follows `fruitless` restarts without progress: between half of the
/// policy's delay and all of it.
pub fn wait(policy: &RestartPolicy, fruitless: u32, draw: f64) -> Now {
    let Some(doublings) = fruitless.checked_sub(1) else { return Now::ZERO };
    let doubled = u64::from(policy.backoff_initial_seconds) << doublings.min(31);
    let longest = doubled.min(policy.backoff_max_seconds.into()) as f64;
    Now::from_secs_f64(longest * (0.5 + 0.5 * draw))
}

#[cfg(test)]
mod tests {
    use super::super::tests::desired;
    use super::{draw, wait};

    #[test]
    fn the_first_restart_is_immediate_and_later_delays_double_up_to_the_maximum() {
        let policy = desired().restart;
        let seconds = |draw: f64| {
            [0, 1, 2, 3, 7, 8, 40].map(|fruitless| wait(&policy, fruitless, draw).as_secs())
        };
        assert_eq!(seconds(0.0), [0, 2, 4, 8, 128, 150, 150]);
        assert_eq!(seconds(1.0), [0, 4, 8, 16, 256, 300, 300]);
    }

    #[test]
    fn draws_differ_between_restarts_and_between_processes_and_are_the_same_again() {
        let draws = [draw(7, 1), draw(7, 2), draw(8, 1)];
        assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)), "{draws:?}");
        assert!(
            draws[0].to_bits() != draws[1].to_bits() && draws[0].to_bits() != draws[2].to_bits(),
            "{draws:?}"
        );
        assert_eq!(draws[0].to_bits(), draw(7, 1).to_bits());
    }
}
