//! Log-probabilities in the two formats of the OpenAI API.

use serde_json::{Map, Value, json};

use crate::generation::{Generation, TokenLogprob};

/// Log-probabilities of the tokens from `start` on, and the most likely tokens of each.
fn from(generation: &Generation, start: usize) -> Option<(&[TokenLogprob], &[Vec<TokenLogprob>])> {
    let logprobs = generation.meta_info.logprobs.as_ref()?;
    let top = logprobs.top.as_ref().map_or(&[][..], |top| &top.output_top_logprobs);
    Some((logprobs.output_token_logprobs.get(start..)?, top.get(start..).unwrap_or(&[])))
}

fn text(token: &TokenLogprob) -> &str {
    token.2.as_deref().unwrap_or_default()
}

/// Format of `/v1/completions`: lists of texts, values and most likely tokens. Null without tokens.
pub fn lists(generation: &Generation, start: usize) -> Value {
    let Some((tokens, top)) = from(generation, start).filter(|(tokens, _)| !tokens.is_empty())
    else {
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

/// Format of `/v1/chat/completions`: one object per token. Null without tokens.
pub fn objects(generation: &Generation, start: usize) -> Value {
    let Some((tokens, top)) = from(generation, start).filter(|(tokens, _)| !tokens.is_empty())
    else {
        return Value::Null;
    };
    let object = |token: &TokenLogprob| {
        Map::from_iter([
            ("token".to_owned(), text(token).into()),
            ("bytes".to_owned(), text(token).as_bytes().into()),
            ("logprob".to_owned(), token.0.into()),
        ])
    };
    let content = tokens.iter().enumerate().map(|(index, token)| {
        let mut value = object(token);
        let likeliest = top.get(index).into_iter().flatten().map(object);
        value.insert("top_logprobs".to_owned(), likeliest.collect());
        value
    });
    json!({"content": content.collect::<Vec<_>>()})
}
