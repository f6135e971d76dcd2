//! Response validation: checks everything that an engine returns before it can reach training.

use rljob_protocol::answer::FinishKind;
use rljob_protocol::sglang::GenerateRequest;
use rljob_protocol::version::Version;

use crate::engines::error::{EngineError, GENERATE};
use crate::engines::received::Received;
use crate::engines::weights::Weights;

/// Maximum positive log-probability that counts as a rounding error.
const MAX_LOGPROB: f32 = 1e-3;

/// A validated completion, or the part of one before an interruption. `C` is its number of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// `[C]` token ids, the stop token included.
    pub tokens: Vec<i64>,
    /// `[C]` log-probabilities under the sampler.
    pub logprobs: Vec<f32>,
    /// Weights of all tokens: engines abort requests before an update.
    pub version: Version,
    pub end: End,
}

/// How a part of a completion ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The last token is a stop token.
    Stop,
    /// Length limit.
    Length,
    /// The engine aborted the request, with this message.
    Aborted(String),
    /// The stream ended early.
    Open,
}

/// Validates output against its request: weights, token ids (below `vocabulary`), lengths and
/// log-probabilities.
pub fn part(
    request: &GenerateRequest,
    received: Received,
    weights: Weights,
    vocabulary: i64,
) -> Result<Part, EngineError> {
    let Received { tokens, mut logprobs, version, finish } = received;
    let end = match finish {
        Some(finish) => match finish.kind {
            FinishKind::Stop => End::Stop,
            FinishKind::Length => End::Length,
            FinishKind::Abort => End::Aborted(finish.message),
        },
        None => End::Open,
    };
    let version = self::version(&version, weights)?;
    let shortest = usize::from(matches!(end, End::Stop | End::Length));
    let longest = request.sampling_params.max_new_tokens as usize;
    if !(shortest..=longest).contains(&tokens.len()) {
        return Err(invalid(format!("{} tokens, expected {shortest} to {longest}", tokens.len())));
    }
    self::tokens(&tokens, &logprobs, vocabulary)?;
    for logprob in &mut logprobs {
        *logprob = logprob.min(0.0);
    }
    Ok(Part { tokens, logprobs, version, end })
}

/// The version of the weights of an output, which have to be allowed.
pub fn version(found: &str, weights: Weights) -> Result<Version, EngineError> {
    let allowed = found.parse().ok().filter(|version| weights.allow(*version));
    allowed.ok_or_else(|| EngineError::WrongWeights {
        found: found.to_owned(),
        expected: weights.to_string(),
    })
}

/// Validates tokens and their log-probabilities.
pub fn tokens(ids: &[i64], logprobs: &[f32], vocabulary: i64) -> Result<(), EngineError> {
    if let Some(id) = ids.iter().find(|id| !(0..vocabulary).contains(*id)) {
        return Err(invalid(format!("token id {id} outside the vocabulary of {vocabulary}")));
    }
    let is_invalid = |logprob: &f32| !logprob.is_finite() || *logprob > MAX_LOGPROB;
    match logprobs.iter().zip(ids).find(|(logprob, _)| is_invalid(logprob)) {
        Some((logprob, id)) => Err(invalid(format!("log-probability {logprob} of token {id}"))),
        None => Ok(()),
    }
}

fn invalid(message: String) -> EngineError {
    EngineError::InvalidResponse { route: GENERATE, message }
}

#[cfg(test)]
mod tests {
    use rljob_protocol::answer::{Finish, FinishKind};
    use rljob_protocol::version::Version;

    use crate::engines::output::tests::request;
    use crate::engines::received::Received;
    use crate::engines::validate::{End, Part, part};
    use crate::engines::weights::Weights;

    const VERSION: Version = Version { step: 1, attempt: 0 };

    fn received(rows: &[(i64, f32)], kind: Option<FinishKind>) -> Received {
        let (tokens, logprobs) = rows.iter().copied().unzip();
        let finish = kind.map(|kind| Finish { kind, message: "Aborted".to_owned() });
        Received { tokens, logprobs, version: VERSION.to_string(), finish }
    }

    fn stopped(rows: &[(i64, f32)]) -> Received {
        received(rows, Some(FinishKind::Stop))
    }

    fn check(received: Received, weights: Weights) -> Result<Part, String> {
        part(&request(2), received, weights, 10).map_err(|error| error.to_string())
    }

    #[test]
    fn complete_output_is_accepted_and_rounded_log_probabilities_are_corrected() {
        let expected = Part {
            tokens: vec![5, 2],
            logprobs: vec![-0.5, 0.0],
            version: VERSION,
            end: End::Stop,
        };
        assert_eq!(
            check(stopped(&[(5, -0.5), (2, 1e-4)]), Weights::Exactly(VERSION)),
            Ok(expected)
        );
    }

    #[test]
    fn interrupted_output_is_accepted_even_without_tokens() {
        let expected = |end| Ok(Part { tokens: vec![], logprobs: vec![], version: VERSION, end });
        assert_eq!(check(received(&[], None), Weights::Since(1)), expected(End::Open));
        assert_eq!(
            check(received(&[], Some(FinishKind::Abort)), Weights::Since(0)),
            expected(End::Aborted("Aborted".to_owned()))
        );
    }

    #[test]
    fn invalid_output_is_an_error() {
        let invalid = |message: &str| {
            Err(format!("the engine's response to /generate is invalid: {message}"))
        };
        let cases = [
            (&[][..], invalid("0 tokens, expected 1 to 2")),
            (&[(1, -1.0); 3], invalid("3 tokens, expected 1 to 2")),
            (&[(10, -1.0)], invalid("token id 10 outside the vocabulary of 10")),
            (&[(-1, -1.0)], invalid("token id -1 outside the vocabulary of 10")),
            (&[(5, 0.5)], invalid("log-probability 0.5 of token 5")),
            (&[(5, f32::NAN)], invalid("log-probability NaN of token 5")),
        ];
        for (rows, expected) in cases {
            assert_eq!(check(stopped(rows), Weights::Exactly(VERSION)), expected);
        }
    }

    #[test]
    fn wrong_weights_have_their_own_error() {
        let mut output = stopped(&[(5, -1.0)]);
        assert_eq!(
            check(output.clone(), Weights::Since(2)),
            Err("the completion was sampled with weights `step-1.attempt-0`, \
                 expected step 2 or later"
                .to_owned())
        );
        output.version = "default".to_owned();
        let expected =
            "the completion was sampled with weights `default`, expected step-1.attempt-0";
        assert_eq!(check(output, Weights::Exactly(VERSION)), Err(expected.to_owned()));
    }
}
