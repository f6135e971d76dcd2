//! Faults between the operator and the API server. A fault is a closure that sees every request and
//! returns the effect on the requests that it selects; this module has constructors for common
//! ones.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::call::Call;

/// Effect of a fault on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The proxy responds with this HTTP code and does not forward the request.
    Respond(u16),
    /// The request takes effect, and the connection closes before the response.
    LoseResponse,
    /// The proxy does not forward the request and never responds, as on a half-open connection.
    Hang,
    /// The request takes effect; the proxy then responds to no request until
    /// [`super::Proxy::resume`]. Used to kill the client after a given write.
    Halt,
}

/// Returns the effect on a request, if any. The first fault that returns an effect applies.
pub type Fault = Box<dyn FnMut(&Call) -> Option<Effect> + Send>;

/// Affects the first `count` requests that `on` selects.
pub fn first(count: usize, on: impl Fn(&Call) -> bool + Send + 'static, effect: Effect) -> Fault {
    let mut left = count;
    Box::new(move |call| {
        let hit = left > 0 && on(call);
        left -= usize::from(hit);
        hit.then_some(effect)
    })
}

/// Affects the `number`-th request, from 1, that `on` selects.
pub fn nth(number: usize, on: impl Fn(&Call) -> bool + Send + 'static, effect: Effect) -> Fault {
    let mut seen = 0;
    Box::new(move |call| {
        let selected = on(call);
        seen += usize::from(selected);
        (selected && seen == number).then_some(effect)
    })
}

/// Affects a random share of the requests that `on` selects, with a random effect.
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
            .map(|name| fault(&call(name)) == Some(Effect::LoseResponse))
            .to_vec()
    }

    #[test]
    fn faults_affect_only_selected_requests() {
        let on = |call: &Call| call.name == "a";
        assert_eq!(
            decisions(first(2, on, Effect::LoseResponse)),
            [true, false, true, false, false, false]
        );
        assert_eq!(
            decisions(nth(2, on, Effect::LoseResponse)),
            [false, false, true, false, false, false]
        );
        assert_eq!(
            decisions(at_random(1, 1.0, on, &[Effect::LoseResponse])),
            [true, false, true, true, false, true]
        );
        assert_eq!(
            decisions(at_random(7, 0.5, on, &[Effect::LoseResponse])),
            decisions(at_random(7, 0.5, on, &[Effect::LoseResponse]))
        );
    }
}
