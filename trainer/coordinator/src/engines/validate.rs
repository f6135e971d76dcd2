//! What an engine answers is input from outside: it is checked before anything is trained on it.

use rljob_protocol::sglang::{FinishReason, GenerateRequest, GenerateResponse};
use rljob_protocol::version::Version;

use super::EngineError;

const ROUTE: &str = "/generate";

/// A checked completion. `C` is its number of tokens, at least 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// `[C]` token ids, the stop token included.
    pub tokens: Vec<i64>,
    /// `[C]` the sampler's log-probabilities.
    pub logprobs: Vec<f32>,
    /// `stop` or `length`.
    pub finish_reason: &'static str,
}

/// Checks an answer against its request: the weights, the ids (below `vocabulary`), the lengths and the numbers.
pub fn completion(request: &GenerateRequest, response: GenerateResponse, version: Version, vocabulary: i64) -> Result<Completion, EngineError> {
    let garbage = |message: String| EngineError::Garbage { route: ROUTE, message };
    let finish_reason = match response.meta_info.finish_reason {
        Some(FinishReason::Stop { .. }) => "stop",
        Some(FinishReason::Length { .. }) => "length",
        Some(FinishReason::Abort { message }) => return Err(EngineError::Aborted(message)),
        None => return Err(garbage("no finish reason".to_owned())),
    };
    if response.meta_info.weight_version != version.to_string() {
        return Err(EngineError::OtherWeights { found: response.meta_info.weight_version, expected: version.to_string() });
    }
    let (tokens, logprobs) = (response.output_ids, response.meta_info.output_token_logprobs);
    let longest = request.sampling_params.max_new_tokens as usize;
    if tokens.is_empty() || tokens.len() > longest {
        return Err(garbage(format!("{} tokens, expected 1 to {longest}", tokens.len())));
    }
    if let Some(id) = tokens.iter().find(|id| !(0..vocabulary).contains(*id)) {
        return Err(garbage(format!("token id {id} outside the vocabulary of {vocabulary}")));
    }
    if logprobs.len() != tokens.len() || logprobs.iter().zip(&tokens).any(|((_, id, _), token)| id != token) {
        return Err(garbage(format!("log-probabilities of {} tokens do not belong to the {} tokens", logprobs.len(), tokens.len())));
    }
    if let Some((logprob, id, _)) = logprobs.iter().find(|(logprob, ..)| !logprob.is_finite() || *logprob > 1e-3) {
        return Err(garbage(format!("log-probability {logprob} of token {id}")));
    }
    let logprobs = logprobs.into_iter().map(|(logprob, ..)| logprob.min(0.0) as f32).collect();
    Ok(Completion { tokens, logprobs, finish_reason })
}

#[cfg(test)]
mod tests {
    use rljob_protocol::sglang::{FinishReason, GenerateRequest, GenerateResponse, MetaInfo, SamplingParams};
    use rljob_protocol::version::Version;

    use super::{Completion, completion};

    const VERSION: Version = Version { step: 1, attempt: 0 };

    fn request() -> GenerateRequest {
        let sampling_params = SamplingParams {
            max_new_tokens: 2,
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            stop_token_ids: vec![2],
            ignore_eos: false,
            skip_special_tokens: true,
            sampling_seed: Some(1),
        };
        GenerateRequest { rid: "r.".to_owned(), input_ids: vec![1], sampling_params, return_logprob: true, stream: false }
    }

    fn response(tokens: &[i64], logprobs: &[(f64, i64)]) -> GenerateResponse {
        let meta_info = MetaInfo {
            id: "r.".to_owned(),
            finish_reason: Some(FinishReason::Stop { matched: 2.into() }),
            prompt_tokens: 1,
            completion_tokens: tokens.len() as u32,
            cached_tokens: 0,
            weight_version: VERSION.to_string(),
            output_token_logprobs: logprobs.iter().map(|&(logprob, id)| (logprob, id, None)).collect(),
            e2e_latency: 0.0,
        };
        GenerateResponse { text: String::new(), output_ids: tokens.to_vec(), meta_info }
    }

    fn check(response: GenerateResponse) -> Result<Completion, String> {
        completion(&request(), response, VERSION, 10).map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_answer_is_taken() {
        let expected = Completion { tokens: vec![5, 2], logprobs: vec![-0.5, 0.0], finish_reason: "stop" };
        assert_eq!(check(response(&[5, 2], &[(-0.5, 5), (0.0, 2)])), Ok(expected));
    }

    #[test]
    fn garbage_is_refused() {
        let unusable = |message: &str| Err(format!("the engine's answer to /generate is unusable: {message}"));
        let cases = [
            (response(&[], &[]), unusable("0 tokens, expected 1 to 2")),
            (response(&[1, 1, 1], &[]), unusable("3 tokens, expected 1 to 2")),
            (response(&[10], &[(-1.0, 10)]), unusable("token id 10 outside the vocabulary of 10")),
            (response(&[-1], &[(-1.0, -1)]), unusable("token id -1 outside the vocabulary of 10")),
            (response(&[5], &[]), unusable("log-probabilities of 0 tokens do not belong to the 1 tokens")),
            (response(&[5], &[(-1.0, 6)]), unusable("log-probabilities of 1 tokens do not belong to the 1 tokens")),
            (response(&[5], &[(f64::NAN, 5)]), unusable("log-probability NaN of token 5")),
            (response(&[5], &[(0.5, 5)]), unusable("log-probability 0.5 of token 5")),
        ];
        for (response, expected) in cases {
            assert_eq!(check(response), expected);
        }
    }

    #[test]
    fn other_weights_and_aborted_requests_are_told_apart_from_garbage() {
        let mut other = response(&[5], &[(-1.0, 5)]);
        other.meta_info.weight_version = "default".to_owned();
        assert_eq!(check(other), Err("the completion is of weights `default`, expected step-1.attempt-0".to_owned()));
        let mut aborted = response(&[5], &[(-1.0, 5)]);
        aborted.meta_info.finish_reason = Some(FinishReason::Abort { message: "Aborted".to_owned() });
        assert_eq!(check(aborted), Err("the engine gave up the request: Aborted".to_owned()));
    }
}
