//! Parser of requests to `/v1/completions`: a text or token ids. Pure.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ProxyError;
use super::request::{
    Api, Asked, CompletionRequest, Details, Rules, Stop, StreamOptions, check_max_tokens,
    check_other, check_temperature, choices, parse, stop,
};

/// Largest `logprobs`: those of the sampled tokens, without alternatives.
const MAX_LOGPROBS: u32 = 1;

#[derive(Deserialize)]
struct Body {
    model: String,
    prompt: Prompt,
    n: Option<u32>,
    best_of: Option<u32>,
    max_tokens: Option<u32>,
    temperature: Option<f64>,
    stop: Option<Stop>,
    echo: Option<bool>,
    logprobs: Option<u32>,
    /// As in vLLM.
    return_token_ids: Option<bool>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Tokens(Vec<i64>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<i64>>),
}

/// Parses a request for completions of a text.
pub fn prompt(body: &[u8], rules: &Rules) -> Result<CompletionRequest, ProxyError> {
    let body: Body = parse(body)?;
    check_other(&body.other)?;
    check_temperature(body.temperature, rules)?;
    check_max_tokens("max_tokens", body.max_tokens)?;
    let n = choices(body.n)?;
    if body.best_of.is_some_and(|best_of| best_of != n) {
        return Err(ProxyError::parameter("best_of", "must be n"));
    }
    if body.echo == Some(true) {
        return Err(ProxyError::parameter("echo", "is not supported: leave it out"));
    }
    if body.logprobs.is_some_and(|logprobs| logprobs > MAX_LOGPROBS) {
        let message = "must be 0 or 1: the response has the sampled tokens only";
        return Err(ProxyError::parameter("logprobs", message));
    }
    Ok(CompletionRequest {
        n,
        max_tokens: body.max_tokens,
        stop: stop(body.stop)?,
        details: Details {
            logprobs: body.logprobs.is_some(),
            token_ids: body.return_token_ids.unwrap_or(false),
        },
        stream: body.stream.unwrap_or(false),
        stream_usage: body.stream_options.is_some_and(|options| options.include_usage),
        ..CompletionRequest::new(Api::Completions, body.model, asked(body.prompt)?)
    })
}

fn asked(prompt: Prompt) -> Result<Asked, ProxyError> {
    let one = || ProxyError::parameter("prompt", "must be one prompt: send several requests");
    let asked = match prompt {
        Prompt::Text(text) => Asked::Text(text),
        Prompt::Tokens(tokens) => Asked::Tokens(tokens),
        Prompt::Texts(texts) => {
            let [text] = <[String; 1]>::try_from(texts).map_err(|_| one())?;
            Asked::Text(text)
        }
        Prompt::TokenLists(lists) => {
            let [tokens] = <[Vec<i64>; 1]>::try_from(lists).map_err(|_| one())?;
            Asked::Tokens(tokens)
        }
    };
    match &asked {
        Asked::Text(text) if text.is_empty() => {}
        Asked::Tokens(tokens) if tokens.is_empty() => {}
        _ => return Ok(asked),
    }
    Err(ProxyError::parameter("prompt", "must not be empty"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(more: &Value) -> Result<CompletionRequest, ProxyError> {
        let mut body = json!({"model": "m", "prompt": "1+1="});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        prompt(body.to_string().as_bytes(), &Rules { temperature: 0.8 })
    }

    #[test]
    fn a_prompt_is_a_text_or_token_ids() {
        let text = Asked::Text("1+1=".to_owned());
        let request = CompletionRequest::new(Api::Completions, "m".to_owned(), text.clone());
        assert_eq!(parsed(&json!({})), Ok(request));
        let tokens = || Asked::Tokens(vec![5, 6]);
        for (prompt, expected) in
            [(json!(["1+1="]), text), (json!([5, 6]), tokens()), (json!([[5, 6]]), tokens())]
        {
            assert_eq!(parsed(&json!({ "prompt": prompt })).unwrap().asked, expected);
        }
        let more = json!({"n": 2, "best_of": 2, "logprobs": 0, "return_token_ids": true});
        let request = parsed(&more).unwrap();
        let details = Details { logprobs: true, token_ids: true };
        assert_eq!((request.n, request.details), (2, details));
    }

    #[test]
    fn parameters_that_the_route_cannot_answer_are_rejected_by_name() {
        for (more, param) in [
            (json!({"prompt": ""}), "prompt"),
            (json!({"prompt": []}), "prompt"),
            (json!({"prompt": ["a", "b"]}), "prompt"),
            (json!({"prompt": [[1], [2]]}), "prompt"),
            (json!({"best_of": 3}), "best_of"),
            (json!({"echo": true}), "echo"),
            (json!({"suffix": "a"}), "suffix"),
            (json!({"logprobs": 2}), "logprobs"),
            (json!({"temperature": 1}), "temperature"),
            (json!({"max_tokens": 0}), "max_tokens"),
        ] {
            let error = parsed(&more).unwrap_err();
            let ProxyError::Parameter { param: found, .. } = &error else { panic!("{error}") };
            assert_eq!(found, param, "{more}");
        }
    }
}
