//! A sampled completion as a choice of a response. Pure.

use crate::proxy::answer::Choice;
use crate::rollout::sampler::Sampled;
use crate::text::{ParsedCompletion, TextError, TextTokenizer, ToolCall, ToolCallFormat};

/// A completion as text and, with a format, calls. A stop string is not part of it. A completion
/// without a valid call is text. Also returns the whole completion as text.
pub fn choice(
    tokenizer: &TextTokenizer,
    sampled: &Sampled,
    stop: &[String],
    format: Option<ToolCallFormat>,
) -> Result<(Choice, String), TextError> {
    let completion = &sampled.completion;
    let sampled_text = tokenizer.decode(&completion.tokens)?;
    let mut text = sampled_text.clone();
    let mut finish_reason = completion.finish_reason.unwrap_or("length");
    let end = stop.iter().filter_map(|stop| text.find(stop.as_str())).min();
    if let Some(end) = end.filter(|_| finish_reason == "stop") {
        text.truncate(end);
    }
    let parsed = format.map(|format| match end {
        None => tokenizer.parse_tool_calls(format, &completion.tokens),
        Some(_) => Ok(format.parse(&text)),
    });
    let ParsedCompletion { content, calls } = parsed.transpose()?.unwrap_or_default();
    let tool_calls: Vec<ToolCall> = calls.into_iter().flatten().collect();
    if !tool_calls.is_empty() {
        text = content;
        finish_reason = if finish_reason == "stop" { "tool_calls" } else { finish_reason };
    }
    let tokens = completion.tokens.len();
    let finish_reason = Some(finish_reason);
    let choice =
        Choice { text, tool_calls, finish_reason, tokens, logprobs: None, token_ids: None };
    Ok((choice, sampled_text))
}

/// Text and log-probability of each token.
pub fn token_logprobs(
    tokenizer: &TextTokenizer,
    ids: &[i64],
    logprobs: &[f32],
) -> Result<Vec<(String, f32)>, TextError> {
    let token = |(id, logprob): (&i64, &f32)| {
        Ok((tokenizer.decode_as(std::slice::from_ref(id), false)?, *logprob))
    };
    ids.iter().zip(logprobs).map(token).collect()
}
