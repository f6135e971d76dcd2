//! Partial completion: the tokens that each engine sampled, with the versions of its weights.
//! Pure.
//!
//! ```text
//!  prompt          ─▶ engine A, step 3: t0 t1 t2, paused
//!  prompt t0 t1 t2 ─▶ engine B, step 4: t3 t4 stop
//!            versions: [step 3 × 3, step 4 × 3]
//! ```

use crate::engines::validate::{End, Part};
use crate::persistence::journal::VersionRun;

/// A completion, whole once it has a finish reason. `C` is its number of tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// `[C]` token ids, the stop token included.
    pub tokens: Vec<i64>,
    /// `[C]` the sampler's log-probabilities.
    pub logprobs: Vec<f32>,
    /// The weights of each token, as runs.
    pub versions: Vec<VersionRun>,
    /// `stop` or `length`.
    pub finish_reason: Option<&'static str>,
}

impl Completion {
    /// Appends a part. Cut off at a stop token or at `longest` tokens, a completion is whole though
    /// its engine could not say so.
    pub fn append(&mut self, part: Part, longest: u32, stop_token_ids: &[i64]) {
        let stopped = part.end == End::Stop
            || part.tokens.last().is_some_and(|last| stop_token_ids.contains(last));
        let tokens = part.tokens.len() as u32;
        match self.versions.last_mut() {
            Some(run) if run.version == part.version => {
                run.tokens = run.tokens.saturating_add(tokens);
            }
            _ if tokens == 0 => {}
            _ => self.versions.push(VersionRun { version: part.version, tokens }),
        }
        if self.tokens.is_empty() {
            (self.tokens, self.logprobs) = (part.tokens, part.logprobs);
        } else {
            self.tokens.extend(part.tokens);
            self.logprobs.extend(part.logprobs);
        }
        self.finish_reason = if stopped {
            Some("stop")
        } else if part.end == End::Length || self.tokens.len() >= longest as usize {
            Some("length")
        } else {
            None
        };
    }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::version::Version;

    use super::{Completion, End, Part, VersionRun};

    fn part(step: u32, tokens: &[i64], end: End) -> Part {
        Part {
            tokens: tokens.to_vec(),
            logprobs: tokens.iter().map(|token| -(*token as f32)).collect(),
            version: Version { step, attempt: 0 },
            end,
        }
    }

    fn completion(parts: Vec<Part>) -> Completion {
        let mut completion = Completion::default();
        for part in parts {
            completion.append(part, 6, &[2]);
        }
        completion
    }

    #[test]
    fn parts_make_one_completion_whose_tokens_carry_their_versions() {
        let parts = vec![
            part(3, &[5, 6], End::Open),
            part(3, &[7], End::Aborted(String::new())),
            part(4, &[], End::Open),
            part(4, &[8, 2], End::Stop),
        ];
        let run = |step, tokens| VersionRun { version: Version { step, attempt: 0 }, tokens };
        let expected = Completion {
            tokens: vec![5, 6, 7, 8, 2],
            logprobs: vec![-5.0, -6.0, -7.0, -8.0, -2.0],
            versions: vec![run(3, 3), run(4, 2)],
            finish_reason: Some("stop"),
        };
        assert_eq!(completion(parts), expected);
    }

    #[test]
    fn a_part_cut_off_at_its_last_token_needs_no_other() {
        assert_eq!(completion(vec![part(3, &[5, 2], End::Open)]).finish_reason, Some("stop"));
        assert_eq!(
            completion(vec![part(3, &[5, 5, 5], End::Open), part(3, &[5, 5, 5], End::Open)])
                .finish_reason,
            Some("length")
        );
        assert_eq!(
            completion(vec![part(3, &[5, 5], End::Aborted(String::new()))]).finish_reason,
            None
        );
    }
}
