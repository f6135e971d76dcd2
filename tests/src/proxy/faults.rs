//! What can go wrong between the operator and the API server. A fault sees every request and says
//! what becomes of those that it means; faults are put together from the few functions here, or
//! written as a closure.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::call::Call;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is answered with this HTTP code and takes no effect.
    Answer(u16),
    /// It takes effect, and the connection ends before the answer.
    LoseAnswer,
    /// It takes effect, and neither it nor any other request is answered from then on, until
    /// [`super::Proxy::resume`]: the moment at which the client dies.
    Halt,
}

/// Decides about requests, in the order in which they come. The first fault that answers holds.
pub type Fault = Box<dyn FnMut(&Call) -> Option<Effect> + Send>;

/// The first `count` requests that `on` means.
pub fn first(count: usize, on: impl Fn(&Call) -> bool + Send + 'static, effect: Effect) -> Fault {
    let mut left = count;
    Box::new(move |call| {
        let hit = left > 0 && on(call);
        left -= usize::from(hit);
        hit.then_some(effect)
    })
}

/// The `number`-th request, from 1, that `on` means.
pub fn nth(number: usize, on: impl Fn(&Call) -> bool + Send + 'static, effect: Effect) -> Fault {
    let mut seen = 0;
    Box::new(move |call| {
        let meant = on(call);
        seen += usize::from(meant);
        (meant && seen == number).then_some(effect)
    })
}

/// This share of the requests that `on` means, each with one of the effects.
pub fn at_random(
    seed: u64,
    share: f64,
    on: impl Fn(&Call) -> bool + Send + 'static,
    effects: &'static [Effect],
) -> Fault {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    Box::new(move |call| {
        (on(call) && random.random_bool(share))
            .then(|| effects[random.random_range(0..effects.len())])
    })
}

#[cfg(test)]
mod tests {
    use axum::http::Method;

    use super::{Call, Effect, Fault, at_random, first, nth};

    fn decisions(mut fault: Fault) -> Vec<bool> {
        let call = |name: &str| {
            Call::parse(
                &Method::PUT,
                &format!("/api/v1/namespaces/lab/pods/{name}").parse().unwrap(),
            )
        };
        ["a", "b", "a", "a", "b", "a"]
            .map(|name| fault(&call(name)) == Some(Effect::LoseAnswer))
            .to_vec()
    }

    #[test]
    fn faults_hit_what_they_mean_and_no_more() {
        let on = |call: &Call| call.name == "a";
        assert_eq!(
            decisions(first(2, on, Effect::LoseAnswer)),
            [true, false, true, false, false, false]
        );
        assert_eq!(
            decisions(nth(2, on, Effect::LoseAnswer)),
            [false, false, true, false, false, false]
        );
        assert_eq!(
            decisions(at_random(1, 1.0, on, &[Effect::LoseAnswer])),
            [true, false, true, true, false, true]
        );
        assert_eq!(
            decisions(at_random(7, 0.5, on, &[Effect::LoseAnswer])),
            decisions(at_random(7, 0.5, on, &[Effect::LoseAnswer]))
        );
    }
}
