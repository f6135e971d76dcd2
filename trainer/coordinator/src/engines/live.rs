//! Tokens of a completion while it is sampled, across the engines that sample it.
//!
//! ```text
//!  engine A: t0 t1, interrupted ─┐
//!  engine B:        t2 t3 …  ────┴─▶ Live ─▶ reader: t0 │ t1 t2 t3
//! ```
//!
//! Holds each token once, and no engine waits for the reader: a slow one gets more tokens at once.

use tokio::sync::watch;

use crate::engines::received::Received;
use crate::engines::validate;
use crate::engines::weights::Weights;

/// `C` tokens so far.
#[derive(Debug, Default)]
pub struct LiveTokens {
    /// `[C]` token ids.
    pub ids: Vec<i64>,
    /// `[C]` log-probabilities.
    pub logprobs: Vec<f32>,
}

/// Publishes the tokens of a completion.
#[derive(Clone, Debug)]
pub struct Live(watch::Sender<LiveTokens>);

/// Publishes the tokens of one request for a completion.
#[derive(Clone, Debug)]
pub struct LivePart {
    live: Live,
    /// Tokens of the completion before the request.
    kept: usize,
    weights: Weights,
    vocabulary: i64,
}

impl Live {
    /// Without tokens.
    pub fn new() -> (Self, watch::Receiver<LiveTokens>) {
        let (sender, receiver) = watch::channel(LiveTokens::default());
        (Self(sender), receiver)
    }

    /// A request for the tokens after the first `kept`, whose output has to be valid for `weights`
    /// and `vocabulary`.
    pub fn part(&self, kept: usize, weights: Weights, vocabulary: i64) -> LivePart {
        LivePart { live: self.clone(), kept, weights, vocabulary }
    }
}

impl LivePart {
    /// Publishes what is new in the output so far. Tokens that are sampled again, since their
    /// completion started again from its prompt, are not published twice.
    pub fn publish(&self, received: &Received) {
        let Live(sender) = &self.live;
        let from = sender.borrow().ids.len().saturating_sub(self.kept);
        let ids = received.tokens.get(from..).unwrap_or_default();
        let logprobs = received.logprobs.get(from..).unwrap_or_default();
        let valid = validate::version(&received.version, self.weights).is_ok()
            && validate::tokens(ids, logprobs, self.vocabulary).is_ok();
        if valid && !ids.is_empty() {
            sender.send_modify(|tokens| {
                tokens.ids.extend(ids);
                tokens.logprobs.extend(logprobs.iter().map(|logprob| logprob.min(0.0)));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::version::Version;

    use super::*;

    fn received(tokens: &[i64], version: &str) -> Received {
        let logprobs = tokens.iter().map(|token| -(*token as f32)).collect();
        Received { tokens: tokens.to_vec(), logprobs, version: version.to_owned(), finish: None }
    }

    #[test]
    fn tokens_are_published_once_whatever_engine_samples_them() {
        let (live, mut tokens) = Live::new();
        let weights = Weights::Exactly(Version { step: 1, attempt: 0 });
        let mut published = |kept: usize, ids: &[i64], version: &str| {
            live.part(kept, weights, 10).publish(&received(ids, version));
            let is_new = tokens.has_changed().unwrap();
            let tokens = tokens.borrow_and_update();
            let expected: Vec<f32> = tokens.ids.iter().map(|id| -(*id as f32)).collect();
            assert_eq!(tokens.logprobs, expected);
            (tokens.ids.clone(), is_new)
        };
        let of_step = "step-1.attempt-0";
        assert_eq!(published(0, &[5], of_step), (vec![5], true));
        assert_eq!(published(0, &[5, 6, 7], of_step), (vec![5, 6, 7], true));
        // Another engine continues, or starts again from the prompt.
        assert_eq!(published(3, &[8], of_step), (vec![5, 6, 7, 8], true));
        assert_eq!(published(0, &[5, 6], of_step), (vec![5, 6, 7, 8], false));
        assert_eq!(published(0, &[5, 6, 7, 8, 9], of_step), (vec![5, 6, 7, 8, 9], true));
        // What the validation rejects is not published.
        assert_eq!(published(5, &[4], "step-0.attempt-0"), (vec![5, 6, 7, 8, 9], false));
        assert_eq!(published(5, &[4, 10], of_step), (vec![5, 6, 7, 8, 9], false));
    }
}
