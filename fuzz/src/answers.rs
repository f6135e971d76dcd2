//! Responses of engines and coordinators.

use rljob_coordinator::engines::output::{self, Output};
use rljob_coordinator::engines::stream::Events;
use rljob_coordinator::engines::validate;
use rljob_coordinator::engines::weights::Weights;
use rljob_protocol::peer::PROTOCOL_VERSION;
use rljob_protocol::sglang::{GenerateRequest, ModelInfo};
use rljob_protocol::status::CoordinatorStatus;

/// Vocabulary of the model.
const VOCABULARY: i64 = 1000;
/// Maximum length of a completion in tokens.
const MAX_NEW_TOKENS: u32 = 16;

/// A stream of server-sent events, in chunks of the size that the first byte names.
pub fn engine_stream(data: &[u8]) {
    let Some((size, stream)) = data.split_first() else { return };
    let output = Output::new(&request(), std::sync::Arc::default(), None);
    let mut events = Events::new(output.max_bytes());
    for chunk in stream.chunks(usize::from(*size).max(1)) {
        if events.push(chunk, |event| output.push(output::parse(event)?)).is_err() {
            break;
        }
    }
    let _ = serde_json::from_slice::<ModelInfo>(stream);
    let Some(received) = output.take() else { return };
    let Ok(part) = validate::part(&request(), received, Weights::Since(0), VOCABULARY) else {
        return;
    };
    assert_eq!(part.tokens.len(), part.logprobs.len(), "a log-probability per token");
    assert!(part.tokens.len() <= MAX_NEW_TOKENS as usize, "at most the requested tokens");
    assert!(part.tokens.iter().all(|id| (0..VOCABULARY).contains(id)), "ids of the vocabulary");
    assert!(part.logprobs.iter().all(|logprob| *logprob <= 0.0), "finite log-probabilities");
}

fn request() -> GenerateRequest {
    let request = serde_json::json!({
        "rid": "r", "input_ids": [1], "return_logprob": true, "stream": true,
        "sampling_params": {
            "max_new_tokens": MAX_NEW_TOKENS, "temperature": 1.0, "top_p": 1.0, "top_k": -1,
            "stop_token_ids": [2], "ignore_eos": false, "skip_special_tokens": true,
        },
    });
    serde_json::from_value(request)
        .unwrap_or_else(|error| panic!("the request is outdated: {error}"))
}

/// `GET /v1/status` of a coordinator, as the operator reads it.
pub fn coordinator_status(data: &[u8]) {
    let Ok(status) = serde_json::from_slice::<CoordinatorStatus>(data) else { return };
    if status.check().is_err() {
        return;
    }
    for protocol in 1..=PROTOCOL_VERSION {
        let text = serde_json::to_vec(&status.clone().for_peer(protocol))
            .unwrap_or_else(|error| panic!("a status that was read cannot be written: {error}"));
        let read = serde_json::from_slice::<CoordinatorStatus>(&text)
            .unwrap_or_else(|error| panic!("a status that was written cannot be read: {error}"));
        if protocol == PROTOCOL_VERSION {
            assert_eq!(read, status, "a status survives its bytes");
        }
    }
}
