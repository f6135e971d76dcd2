//! Log-probabilities in OpenAI's two forms.

use serde_json::{Map, Value, json};

use crate::answer::{Answer, TokenLogprob};

/// The log-probabilities of an answer's tokens from `start` on, and the likeliest tokens of each.
fn from(answer: &Answer, start: usize) -> Option<(&[TokenLogprob], &[Vec<TokenLogprob>])> {
    let logprobs = answer.meta_info.logprobs.as_ref()?;
    let top = logprobs.top.as_ref().map_or(&[][..], |top| &top.output_top_logprobs);
    Some((logprobs.output_token_logprobs.get(start..)?, top.get(start..).unwrap_or(&[])))
}

fn text(token: &TokenLogprob) -> &str {
    token.2.as_deref().unwrap_or_default()
}

/// Those of `/v1/completions`: a list for each of text, number and likeliest tokens. Null if there
/// is no token.
pub fn lists(answer: &Answer, start: usize) -> Value {
    let Some((tokens, top)) = from(answer, start).filter(|(tokens, _)| !tokens.is_empty()) else {
        return Value::Null;
    };
    let likeliest = |top: &Vec<TokenLogprob>| -> Map<String, Value> {
        top.iter().map(|token| (text(token).to_owned(), json!(token.0))).collect()
    };
    json!({
        "text_offset": vec![-1; tokens.len()],
        "token_logprobs": tokens.iter().map(|token| token.0).collect::<Vec<_>>(),
        "tokens": tokens.iter().map(text).collect::<Vec<_>>(),
        "top_logprobs": top.iter().map(likeliest).collect::<Vec<_>>(),
    })
}

/// Those of `/v1/chat/completions`: an object for each token. Null if there is no token.
pub fn objects(answer: &Answer, start: usize) -> Value {
    let Some((tokens, top)) = from(answer, start).filter(|(tokens, _)| !tokens.is_empty()) else {
        return Value::Null;
    };
    let object = |token: &TokenLogprob| json!({"token": text(token), "bytes": text(token).as_bytes(), "logprob": token.0});
    let content = tokens.iter().enumerate().map(|(index, token)| {
        let mut value = object(token);
        value["top_logprobs"] = top.get(index).into_iter().flatten().map(object).collect();
        value
    });
    json!({"content": content.collect::<Vec<_>>()})
}
