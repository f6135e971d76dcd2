//! Parser of SGLang's `/generate` response for clients: reads the fields of a sample, numbers into
//! columns, without copies of names.
//!
//! [`GenerateResponse`](crate::sglang::GenerateResponse) is the complete response, for engines.

use std::borrow::Cow;
use std::fmt;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Initial capacity of columns, in tokens.
const TOKENS: usize = 128;

/// A completion of `C` tokens, or an event of a stream with `C` of them.
#[derive(Debug, Deserialize)]
pub struct Answer<'a> {
    /// Which of several requested samples.
    #[serde(default)]
    pub index: Option<usize>,
    /// `[C]` sampled token ids, including the stop token.
    pub output_ids: Vec<i64>,
    /// Finish reason, weights and log-probabilities.
    #[serde(borrow)]
    pub meta_info: AnswerMeta<'a>,
}

/// Metadata of a completion.
#[derive(Debug, Deserialize)]
pub struct AnswerMeta<'a> {
    /// Finish reason; absent while streaming.
    pub finish_reason: Option<Finish>,
    /// Version of the engine's weights at the end of the request.
    #[serde(borrow)]
    pub weight_version: Cow<'a, str>,
    /// Number of sampled tokens, with those of earlier events of a stream.
    pub completion_tokens: usize,
    /// Log-probabilities of the tokens.
    #[serde(default)]
    pub output_token_logprobs: Logprobs,
}

/// Finish reason with its message.
#[derive(Clone, Debug, Deserialize)]
pub struct Finish {
    /// Type of the finish reason.
    #[serde(rename = "type")]
    pub kind: FinishKind,
    /// Message of an abort.
    #[serde(default)]
    pub message: String,
}

/// Type of a finish reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishKind {
    /// A stop token or string.
    Stop,
    /// `max_new_tokens` reached.
    Length,
    /// Aborted; the response has the tokens sampled so far.
    Abort,
}

/// Columns of the list of `[log-probability, token id, text]`.
#[derive(Debug, Default, PartialEq)]
pub struct Logprobs {
    /// `[C]` log-probabilities.
    pub logprobs: Vec<f32>,
    /// `[C]` token ids.
    pub ids: Vec<i64>,
}

impl<'de> Deserialize<'de> for Logprobs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Columns)
    }
}

struct Columns;

impl<'de> Visitor<'de> for Columns {
    type Value = Logprobs;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of [log-probability, token id, text]")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut rows: S) -> Result<Logprobs, S::Error> {
        let mut columns =
            Logprobs { logprobs: Vec::with_capacity(TOKENS), ids: Vec::with_capacity(TOKENS) };
        while let Some((logprob, id, _)) = rows.next_element::<(f64, i64, IgnoredAny)>()? {
            columns.logprobs.push(logprob as f32);
            columns.ids.push(id);
        }
        Ok(columns)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Answer, FinishKind, Logprobs};
    use crate::sglang::{FinishReason, GenerateResponse, MetaInfo};

    #[test]
    fn what_an_engine_writes_is_read_back() {
        let finish_reason = Some(FinishReason::Stop { matched: json!(2) });
        let rows = vec![(-0.1, 5, None), (-17.234_567_642_211_914, 2, Some("</s>".to_owned()))];
        let meta_info = MetaInfo {
            id: "r.".to_owned(),
            finish_reason,
            prompt_tokens: 3,
            completion_tokens: 2,
            cached_tokens: 1,
            weight_version: "step-1.attempt-0 \"é\"".to_owned(),
            output_token_logprobs: rows,
            e2e_latency: 0.5,
        };
        let written = serde_json::to_string(&GenerateResponse {
            text: "a\n".to_owned(),
            output_ids: vec![5, 2],
            meta_info,
        })
        .unwrap();
        let read: Answer<'_> = serde_json::from_str(&written).unwrap();
        assert_eq!((read.output_ids, read.meta_info.completion_tokens), (vec![5, 2], 2));
        assert_eq!(read.meta_info.weight_version, "step-1.attempt-0 \"é\"");
        assert_eq!(read.meta_info.finish_reason.map(|finish| finish.kind), Some(FinishKind::Stop));
        assert_eq!(
            read.meta_info.output_token_logprobs,
            Logprobs { logprobs: vec![-0.1, -17.234_568], ids: vec![5, 2] }
        );
    }

    #[test]
    fn an_abort_says_what_happened() {
        let written = json!({"output_ids": [], "meta_info": {"weight_version": "default",
            "completion_tokens": 0,
            "finish_reason": {"type": "abort", "message": "Aborted", "status_code": null}}});
        let written = written.to_string();
        let read: Answer<'_> = serde_json::from_str(&written).unwrap();
        let finish = read.meta_info.finish_reason.unwrap();
        assert_eq!((finish.kind, finish.message.as_str()), (FinishKind::Abort, "Aborted"));
        assert_eq!(read.meta_info.output_token_logprobs, Logprobs::default());
    }
}
