//! Ends of completions: stop tokens, and stop strings across the parts of an interrupted
//! completion. An engine sees only its own part, so that it misses a string that begins in an
//! earlier one.

use rljob_crds::algorithm::RolloutSpec;

use crate::engines::validate::{End, Part};
use crate::input::Input;
use crate::text::TextTokenizer;

/// Tokens without text, such as special tokens, that may stand within a stop string.
const SPARE: usize = 8;

/// What ends a completion before its maximum length.
pub struct Stops {
    /// End-of-sequence tokens of the model and those of the spec.
    pub token_ids: Vec<i64>,
    pub strings: Vec<String>,
    /// Decodes tokens for the strings.
    pub tokenizer: Option<TextTokenizer>,
    /// Minimum length of a completion before a stop token.
    pub min_new_tokens: u32,
}

impl Stops {
    /// The ends of a run's completions.
    pub fn of(rollout: &RolloutSpec, input: &Input) -> Self {
        let mut token_ids = input.tokenizer.stop_token_ids().to_vec();
        for id in rollout.stop_token_ids.iter().map(|id| i64::from(*id)) {
            if !token_ids.contains(&id) {
                token_ids.push(id);
            }
        }
        Self {
            token_ids,
            strings: rollout.stop.clone(),
            tokenizer: Some(input.tokenizer.clone()),
            min_new_tokens: rollout.min_new_tokens,
        }
    }

    /// The part up to the token that completes a stop string whose start is in `kept`, the tokens
    /// of earlier parts.
    pub fn cut(&self, strings: &[String], kept: &[i64], mut part: Part) -> Part {
        let longest = strings.iter().map(String::len).max();
        let (Some(tokenizer), Some(longest)) = (&self.tokenizer, longest) else { return part };
        // Every token except special ones has at least one byte of text.
        let span = longest.saturating_add(SPARE);
        let tail = kept.get(kept.len().saturating_sub(span)..).unwrap_or_default();
        if tail.is_empty() {
            return part;
        }
        let is_stopped = |tokens: &[i64]| {
            let text = tokenizer.decode_as(&[tail, tokens].concat(), false);
            text.is_ok_and(|text| strings.iter().any(|stop| text.contains(stop.as_str())))
        };
        let end = (1..=part.tokens.len().min(span))
            .find(|&end| part.tokens.get(..end).is_some_and(is_stopped));
        if let Some(end) = end {
            part.tokens.truncate(end);
            part.logprobs.truncate(end);
            part.end = End::Stop;
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rljob_protocol::version::Version;

    use super::{End, Part, Stops};
    use crate::text::TextTokenizer;

    #[test]
    fn a_stop_string_that_begins_in_an_earlier_part_ends_the_completion() {
        let tokenizer = TextTokenizer::open(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures/tiny-chat"),
        )
        .unwrap();
        let tokens = tokenizer.encode("x = 4 </answer> and more").unwrap();
        let part = |tokens: &[i64]| Part {
            tokens: tokens.to_vec(),
            logprobs: tokens.iter().map(|_| -1.0).collect(),
            version: Version { step: 1, attempt: 0 },
            end: End::Length,
        };
        let stops = Stops {
            token_ids: vec![2],
            strings: Vec::new(),
            tokenizer: Some(tokenizer.clone()),
            min_new_tokens: 0,
        };
        let cut = |strings: &[&str], kept: &[i64], part: Part| {
            let strings: Vec<String> = strings.iter().map(|&text| text.to_owned()).collect();
            stops.cut(&strings, kept, part)
        };
        let found = |end: usize| {
            let text = tokenizer.decode_as(&tokens[..end], false).unwrap();
            text.contains("</answer>")
        };
        let complete = (1..=tokens.len()).find(|&end| found(end)).unwrap();
        for split in complete - 3..complete {
            let cut = cut(&["</answer>", "never"], &tokens[..split], part(&tokens[split..]));
            let expected = Part { end: End::Stop, ..part(&tokens[split..complete]) };
            assert_eq!(cut, expected, "split at {split}");
        }
        let whole = part(&tokens[3..]);
        assert_eq!(cut(&["never"], &tokens[..3], whole.clone()), whole);
        assert_eq!(cut(&[], &tokens[..3], whole.clone()), whole);
        assert_eq!(cut(&["</answer>"], &[], whole.clone()), whole);
    }
}
