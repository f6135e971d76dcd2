//! Response validation: checks everything that an engine returns before it can reach training.

use hyper::StatusCode;
use rljob_protocol::answer::{Answer, FinishKind};
use rljob_protocol::sglang::{ErrorBody, GenerateRequest};
use rljob_protocol::version::Version;

use crate::engines::client::EngineError;
use crate::engines::weights::Weights;

const ROUTE: &str = "/generate";
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

/// Validates an event against its request: weights, token ids (below `vocabulary`), lengths and
/// log-probabilities.
pub fn part(
    request: &GenerateRequest,
    event: &[u8],
    weights: Weights,
    vocabulary: i64,
) -> Result<Part, EngineError> {
    match serde_json::from_slice(event) {
        Ok(answer) => checked(request, answer, weights, vocabulary),
        // SGLang sends errors in streams as events with the body of a 400 response.
        Err(error) => {
            Err(serde_json::from_slice(event).map_or_else(|_| invalid(error.to_string()), rejected))
        }
    }
}

fn rejected(body: ErrorBody) -> EngineError {
    EngineError::Rejected {
        route: ROUTE,
        status: StatusCode::BAD_REQUEST,
        message: body.error.message,
    }
}

fn invalid(message: String) -> EngineError {
    EngineError::InvalidResponse { route: ROUTE, message }
}

fn checked(
    request: &GenerateRequest,
    answer: Answer<'_>,
    weights: Weights,
    vocabulary: i64,
) -> Result<Part, EngineError> {
    let (tokens, meta) = (answer.output_ids, answer.meta_info);
    let end = match meta.finish_reason {
        Some(finish) => match finish.kind {
            FinishKind::Stop => End::Stop,
            FinishKind::Length => End::Length,
            FinishKind::Abort => End::Aborted(finish.message),
        },
        None => End::Open,
    };
    let version = meta.weight_version.parse().ok().filter(|version| weights.allow(*version));
    let Some(version) = version else {
        return Err(EngineError::WrongWeights {
            found: meta.weight_version.into_owned(),
            expected: weights.to_string(),
        });
    };
    let shortest = usize::from(matches!(end, End::Stop | End::Length));
    let longest = request.sampling_params.max_new_tokens as usize;
    if !(shortest..=longest).contains(&tokens.len()) {
        return Err(invalid(format!("{} tokens, expected {shortest} to {longest}", tokens.len())));
    }
    if let Some(id) = tokens.iter().find(|id| !(0..vocabulary).contains(*id)) {
        return Err(invalid(format!("token id {id} outside the vocabulary of {vocabulary}")));
    }
    let (mut logprobs, ids) = (meta.output_token_logprobs.logprobs, meta.output_token_logprobs.ids);
    if ids != tokens {
        return Err(invalid(format!(
            "log-probabilities of {} tokens do not match the {} tokens",
            ids.len(),
            tokens.len()
        )));
    }
    if let Some((logprob, id)) = logprobs
        .iter()
        .zip(&ids)
        .find(|(logprob, _)| !logprob.is_finite() || **logprob > MAX_LOGPROB)
    {
        return Err(invalid(format!("log-probability {logprob} of token {id}")));
    }
    for logprob in &mut logprobs {
        *logprob = logprob.min(0.0);
    }
    Ok(Part { tokens, logprobs, version, end })
}

#[cfg(test)]
mod tests {
    use rljob_protocol::sglang::{GenerateRequest, SamplingParams};
    use rljob_protocol::version::Version;
    use serde_json::{Value, json};

    use crate::engines::validate::{End, Part, part};
    use crate::engines::weights::Weights;

    const VERSION: Version = Version { step: 1, attempt: 0 };

    fn request() -> GenerateRequest {
        let sampling_params = SamplingParams {
            max_new_tokens: 2,
            min_new_tokens: 0,
            stop: vec![],
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            stop_token_ids: vec![2],
            ignore_eos: false,
            skip_special_tokens: true,
            sampling_seed: Some(1),
        };
        GenerateRequest {
            rid: "r.".to_owned(),
            input_ids: vec![1],
            sampling_params,
            return_logprob: true,
            stream: true,
        }
    }

    fn answer(tokens: &[i64], logprobs: &[(f64, i64)], finish_reason: &Value) -> Value {
        let logprobs: Vec<_> =
            logprobs.iter().map(|(logprob, id)| json!([logprob, id, null])).collect();
        json!({"text": "", "output_ids": tokens, "meta_info": {
            "id": "r.", "finish_reason": finish_reason,
            "prompt_tokens": 1, "completion_tokens": tokens.len(),
            "weight_version": VERSION.to_string(), "output_token_logprobs": logprobs,
        }})
    }

    fn stopped(tokens: &[i64], logprobs: &[(f64, i64)]) -> Value {
        answer(tokens, logprobs, &json!({"type": "stop", "matched": 2}))
    }

    fn check(event: &Value, weights: Weights) -> Result<Part, String> {
        part(&request(), event.to_string().as_bytes(), weights, 10)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_complete_response_is_accepted() {
        let expected = Part {
            tokens: vec![5, 2],
            logprobs: vec![-0.5, 0.0],
            version: VERSION,
            end: End::Stop,
        };
        assert_eq!(
            check(&stopped(&[5, 2], &[(-0.5, 5), (0.0, 2)]), Weights::Exactly(VERSION)),
            Ok(expected)
        );
    }

    #[test]
    fn an_interrupted_response_is_accepted_even_without_tokens() {
        let expected = |end| Ok(Part { tokens: vec![], logprobs: vec![], version: VERSION, end });
        assert_eq!(check(&answer(&[], &[], &Value::Null), Weights::Since(1)), expected(End::Open));
        let aborted = json!({"type": "abort", "message": "Aborted", "status_code": null});
        assert_eq!(
            check(&answer(&[], &[], &aborted), Weights::Since(0)),
            expected(End::Aborted("Aborted".to_owned()))
        );
    }

    #[test]
    fn invalid_responses_are_errors() {
        let invalid = |message: &str| {
            Err(format!("the engine's response to /generate is invalid: {message}"))
        };
        let cases = [
            (stopped(&[], &[]), invalid("0 tokens, expected 1 to 2")),
            (stopped(&[1, 1, 1], &[]), invalid("3 tokens, expected 1 to 2")),
            (stopped(&[10], &[(-1.0, 10)]), invalid("token id 10 outside the vocabulary of 10")),
            (stopped(&[-1], &[(-1.0, -1)]), invalid("token id -1 outside the vocabulary of 10")),
            (
                stopped(&[5], &[]),
                invalid("log-probabilities of 0 tokens do not match the 1 tokens"),
            ),
            (
                stopped(&[5], &[(-1.0, 6)]),
                invalid("log-probabilities of 1 tokens do not match the 1 tokens"),
            ),
            (stopped(&[5], &[(0.5, 5)]), invalid("log-probability 0.5 of token 5")),
            (
                json!("so"),
                invalid("invalid type: string \"so\", expected struct Answer at line 1 column 4"),
            ),
        ];
        for (event, expected) in cases {
            assert_eq!(check(&event, Weights::Exactly(VERSION)), expected);
        }
    }

    #[test]
    fn wrong_weights_and_rejections_have_their_own_errors() {
        let mut response = stopped(&[5], &[(-1.0, 5)]);
        assert_eq!(
            check(&response, Weights::Since(2)),
            Err("the completion was sampled with weights `step-1.attempt-0`, \
                 expected step 2 or later"
                .to_owned())
        );
        response["meta_info"]["weight_version"] = json!("default");
        let expected =
            "the completion was sampled with weights `default`, expected step-1.attempt-0";
        assert_eq!(check(&response, Weights::Exactly(VERSION)), Err(expected.to_owned()));
        let rejected = json!({"error": {"message": "too long"}});
        let expected = "the engine answered /generate with 400 Bad Request: too long";
        assert_eq!(check(&rejected, Weights::Exactly(VERSION)), Err(expected.to_owned()));
    }
}
