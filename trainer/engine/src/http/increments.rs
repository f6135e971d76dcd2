//! Increments of a stream (`--incremental-streaming-output`): each event has the text, tokens and
//! log-probabilities since the last one of its request. As in SGLang, counts remain those of the
//! whole output.

use std::collections::BTreeMap;

use crate::generation::Generation;

/// What the events so far had, by index of the request.
#[derive(Debug, Default)]
pub struct Increments {
    sent: BTreeMap<usize, Sent>,
}

/// Lengths in bytes and tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    text: usize,
    tokens: usize,
}

impl Increments {
    /// The increment of a partial or final response; `None` without new tokens. A retracted
    /// request restarts in deterministic mode, and repeats its tokens first.
    pub fn next(&mut self, index: usize, mut generation: Generation) -> Option<Generation> {
        let sent = self.sent.entry(index).or_default();
        let tokens = generation.output_ids.len();
        if tokens <= sent.tokens && generation.meta_info.finish_reason.is_none() {
            return None;
        }
        let text = generation.text.len();
        generation.text = generation.text.get(sent.text..).unwrap_or_default().to_owned();
        remove_first(&mut generation.output_ids, sent.tokens);
        let meta = &mut generation.meta_info;
        meta.completion_tokens = meta.completion_tokens.max(sent.tokens);
        if let Some(logprobs) = &mut meta.logprobs {
            remove_first(&mut logprobs.output_token_logprobs, sent.tokens);
            if let Some(top) = &mut logprobs.top {
                remove_first(&mut top.output_top_logprobs, sent.tokens);
            }
        }
        *sent = Sent { text: text.max(sent.text), tokens: tokens.max(sent.tokens) };
        Some(generation)
    }
}

fn remove_first<T>(list: &mut Vec<T>, count: usize) {
    list.drain(..count.min(list.len()));
}

#[cfg(test)]
mod tests {
    use super::Increments;
    use crate::generation::{FinishReason, Generation, GenerationLogprobs, GenerationMeta};

    fn generation(tokens: &[i64], text: &str, finish_reason: Option<FinishReason>) -> Generation {
        let rows = tokens.iter().map(|token| (Some(-1.0), *token, None)).collect();
        Generation {
            text: text.to_owned(),
            output_ids: tokens.to_vec(),
            meta_info: GenerationMeta {
                id: "r".to_owned(),
                finish_reason,
                prompt_tokens: 1,
                weight_version: "default".to_owned(),
                num_retractions: 0,
                logprobs: Some(GenerationLogprobs {
                    output_token_logprobs: rows,
                    output_token_logprobs_length: tokens.len(),
                    ..GenerationLogprobs::default()
                }),
                completion_tokens: tokens.len(),
                cached_tokens: 0,
                e2e_latency: None,
            },
            index: None,
        }
    }

    /// Tokens, tokens of the log-probabilities, text, and number of tokens so far.
    fn parts(generation: &Generation) -> (Vec<i64>, Vec<i64>, &str, usize) {
        let meta = &generation.meta_info;
        let rows = &meta.logprobs.as_ref().unwrap().output_token_logprobs;
        let ids = rows.iter().map(|(_, id, _)| *id).collect();
        (generation.output_ids.clone(), ids, &generation.text, meta.completion_tokens)
    }

    #[test]
    fn each_event_has_what_the_ones_before_had_not() {
        let mut increments = Increments::default();
        let first = increments.next(0, generation(&[5], "a", None)).unwrap();
        assert_eq!(parts(&first), (vec![5], vec![5], "a", 1));
        let other = increments.next(1, generation(&[8], "x", None)).unwrap();
        assert_eq!(parts(&other), (vec![8], vec![8], "x", 1));
        let second = increments.next(0, generation(&[5, 6, 7], "ab", None)).unwrap();
        assert_eq!(parts(&second), (vec![6, 7], vec![6, 7], "b", 3));
        let end = Some(FinishReason::Length(4));
        let last = increments.next(0, generation(&[5, 6, 7, 9], "abc", end)).unwrap();
        assert_eq!(parts(&last), (vec![9], vec![9], "c", 4));
    }

    #[test]
    fn a_restarted_request_continues_after_the_tokens_that_were_sent() {
        let mut increments = Increments::default();
        increments.next(0, generation(&[5, 6], "ab", None)).unwrap();
        assert_eq!(increments.next(0, generation(&[5], "a", None)), None);
        assert_eq!(increments.next(0, generation(&[5, 6], "ab", None)), None);
        let next = increments.next(0, generation(&[5, 6, 7], "abc", None)).unwrap();
        assert_eq!(parts(&next), (vec![7], vec![7], "c", 3));
        let aborted = generation(&[5], "a", Some(FinishReason::Aborted));
        assert_eq!(parts(&increments.next(0, aborted).unwrap()), (vec![], vec![], "", 3));
    }
}
