//! Tests of joined events, in the forms that SGLang 0.5.12 sends.
use serde_json::{Value, json};

use super::{Arc, EngineError, GenerateRequest, Output, parse};

/// A request for at most `longest` tokens.
pub(crate) fn request(longest: u32) -> GenerateRequest {
    serde_json::from_value(json!({
        "rid": "r.", "input_ids": [1], "return_logprob": true, "stream": true,
        "sampling_params": {
            "max_new_tokens": longest, "temperature": 1.0, "top_p": 1.0, "top_k": -1,
            "stop_token_ids": [2], "ignore_eos": false, "skip_special_tokens": true,
        },
    }))
    .unwrap()
}

/// An event with tokens, of `total` so far, whose log-probabilities are those of `logprobs`.
fn event(tokens: &[i64], total: usize, logprobs: &[i64], finish: &Value) -> Value {
    let rows: Vec<_> = logprobs.iter().map(|id| json!([-(*id as f64), id, null])).collect();
    json!({"text": "", "output_ids": tokens, "meta_info": {
        "id": "r.", "finish_reason": finish, "prompt_tokens": 1, "completion_tokens": total,
        "weight_version": "step-1.attempt-0", "output_token_logprobs": rows,
        "output_token_logprobs_length": total,
    }})
}

fn plain(tokens: &[i64], total: usize) -> Value {
    event(tokens, total, tokens, &Value::Null)
}

fn aborted(tokens: &[i64], total: usize, logprobs: &[i64]) -> Value {
    let finish = json!({"type": "abort", "message": "Abort in waiting queue"});
    event(tokens, total, logprobs, &finish)
}

/// Tokens and finish message; none before the first event.
type Read = Option<(Vec<i64>, Option<String>)>;

/// What the events up to the first one that fails say, and its error.
fn read(events: &[Value]) -> (Read, Result<(), String>) {
    let chunks = Arc::default();
    let output = Output::new(&request(4), Arc::clone(&chunks), None);
    let push = |event: &Value| output.push(parse(event.to_string().as_bytes())?);
    let result = events.iter().try_for_each(push).map_err(|error: EngineError| error.to_string());
    let received = output.take().map(|received| {
        let expected: Vec<_> = received.tokens.iter().map(|id| -(*id as f32)).collect();
        assert_eq!(received.logprobs, expected, "log-probabilities stay with their tokens");
        (received.tokens, received.finish.map(|finish| finish.message))
    });
    (received, result)
}

fn invalid(message: &str) -> Result<(), String> {
    Err(format!("the engine's response to /generate is invalid: {message}"))
}

#[test]
fn events_are_joined_in_order() {
    let stop = json!({"type": "stop", "matched": 2});
    let events = [plain(&[5], 1), plain(&[6, 7], 3), event(&[2], 4, &[2], &stop)];
    assert_eq!(read(&events), (Some((vec![5, 6, 7, 2], Some(String::new()))), Ok(())));
    assert_eq!(read(&events[..2]), (Some((vec![5, 6, 7], None)), Ok(())));
    assert_eq!(read(&[]), (None, Ok(())));
}

#[test]
fn the_newest_token_that_an_abort_repeats_is_left_out() {
    let message = Some("Abort in waiting queue".to_owned());
    let alone = [plain(&[5, 6], 2), aborted(&[6], 2, &[5, 6])];
    assert_eq!(read(&alone), (Some((vec![5, 6], message.clone())), Ok(())));
    // Joined with the event before by SGLang, if the client reads slowly.
    let joined = [plain(&[5], 1), aborted(&[6, 7, 7], 3, &[6, 7, 5, 6, 7])];
    assert_eq!(read(&joined), (Some((vec![5, 6, 7], message.clone())), Ok(())));
    assert_eq!(read(&[aborted(&[], 0, &[])]), (Some((vec![], message)), Ok(())));
}

#[test]
fn events_that_do_not_follow_are_errors_and_the_tokens_before_are_kept() {
    let hint = "start the engine with --incremental-streaming-output";
    let lost = format!("an event has 1 tokens, 3 with those before, which were 1; {hint}");
    let whole = format!("an event has 2 tokens, 2 with those before, which were 1; {hint}");
    let mismatch = "log-probabilities of 1 tokens do not match the 1 tokens";
    let cases = [
        (plain(&[6], 3), invalid(&lost)),
        (plain(&[5, 6], 2), invalid(&whole)),
        (plain(&[1; 4], 5), invalid("5 tokens, expected at most 4")),
        (event(&[6], 2, &[7], &Value::Null), invalid(mismatch)),
        (
            json!("so"),
            invalid("invalid type: string \"so\", expected struct Answer at line 1 column 4"),
        ),
        (
            json!({"error": {"message": "too long"}}),
            Err("the engine answered /generate with 400 Bad Request: too long".to_owned()),
        ),
    ];
    for (event, expected) in cases {
        assert_eq!(read(&[plain(&[5], 1), event]), (Some((vec![5], None)), expected));
    }
}

#[test]
fn a_completion_has_one_version_of_the_weights() {
    let mut second = plain(&[6], 2);
    second["meta_info"]["weight_version"] = json!("step-2.attempt-0");
    let expected = "the completion was sampled with weights `step-2.attempt-0`, expected \
                    step-1.attempt-0";
    assert_eq!(read(&[plain(&[5], 1), second]), (Some((vec![5], None)), Err(expected.to_owned())));
}
