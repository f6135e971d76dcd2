//! Sampling parameters of a request.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

/// Maximum number of stop strings.
const STOP_STRINGS: usize = 64;

/// Sampling parameters. Values are unchecked until [`Limits::check`](super::Limits::check).
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Maximum number of completion tokens; `None` uses the remaining context.
    pub max_new_tokens: Option<i64>,
    /// Minimum number of tokens before a stop token.
    pub min_new_tokens: i64,
    /// Below 1e-6, sampling is greedy.
    pub temperature: f64,
    /// Nucleus sampling: probability mass of the most likely tokens.
    pub top_p: f64,
    /// Number of most likely tokens to sample from; −1 for all.
    pub top_k: i64,
    /// Minimum probability relative to the most likely token.
    pub min_p: f64,
    /// Subtracted from the logit of a token once per occurrence in the completion.
    pub frequency_penalty: f64,
    /// Subtracted from the logit of a token that occurs in the completion.
    pub presence_penalty: f64,
    /// Stop strings, excluded from the text.
    pub stop: Vec<String>,
    /// Stop tokens, included in the tokens and excluded from the text.
    pub stop_token_ids: Vec<i64>,
    /// Ignores end-of-sequence and stop tokens.
    pub ignore_eos: bool,
    /// Removes special tokens from the text.
    pub skip_special_tokens: bool,
    /// Keeps the stop string or token in the text.
    pub no_stop_trim: bool,
    /// Seed of the sample; default: a seed derived from the engine's.
    pub seed: Option<u64>,
    /// Tokens between two partial responses; default: that of the engine.
    pub stream_interval: Option<i64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_new_tokens: None,
            min_new_tokens: 0,
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            skip_special_tokens: true,
            no_stop_trim: false,
            seed: None,
            stream_interval: None,
        }
    }
}

impl Sampling {
    /// Checks the values; messages are SGLang's where SGLang has one.
    pub(super) fn check(&self, vocabulary: i64) -> Result<(), String> {
        let penalty = |name: &str, value: f64| {
            if (-2.0..=2.0).contains(&value) {
                Ok(())
            } else {
                Err(format!("{name} must be in [-2, 2], got {value:?}."))
            }
        };
        let ensure = |valid: bool, message: String| if valid { Ok(()) } else { Err(message) };
        let Self { temperature, top_p, top_k, min_p, min_new_tokens, .. } = *self;
        ensure(
            temperature >= 0.0 && temperature.is_finite(),
            format!("temperature must be non-negative, got {temperature:?}."),
        )?;
        ensure(top_p > 0.0 && top_p <= 1.0, format!("top_p must be in (0, 1], got {top_p:?}."))?;
        ensure((0.0..=1.0).contains(&min_p), format!("min_p must be in [0, 1], got {min_p:?}."))?;
        ensure(
            top_k == -1 || top_k >= 1 || self.is_greedy(),
            format!("top_k must be -1 (disable) or at least 1, got {top_k}."),
        )?;
        penalty("frequency_penalty", self.frequency_penalty)?;
        penalty("presence_penalty", self.presence_penalty)?;
        ensure(
            min_new_tokens >= 0,
            format!("min_new_tokens must be in [0, max_new_tokens], got {min_new_tokens}."),
        )?;
        if let Some(max) = self.max_new_tokens {
            ensure(max >= 0, format!("max_new_tokens must be at least 0, got {max}."))?;
            ensure(
                min_new_tokens <= max,
                format!(
                    "min_new_tokens must be in [0, max_new_tokens({max})], got {min_new_tokens}."
                ),
            )?;
        }
        let interval = self.stream_interval.unwrap_or(1);
        ensure(interval >= 1, format!("stream_interval must be at least 1, got {interval}."))?;
        ensure(
            self.stop.len() <= STOP_STRINGS,
            format!("stop must have at most {STOP_STRINGS} strings, got {}.", self.stop.len()),
        )?;
        ensure(
            self.stop.iter().all(|stop| !stop.is_empty()),
            "stop must not have an empty string.".to_owned(),
        )?;
        let outside = self.stop_token_ids.iter().find(|id| !(0..vocabulary).contains(*id));
        outside.map_or(Ok(()), |id| {
            Err(format!(
                "stop_token_ids contain {id}, which is outside the vocabulary (0 to {}).",
                vocabulary.saturating_sub(1)
            ))
        })
    }

    /// Whether sampling is greedy.
    pub fn is_greedy(&self) -> bool {
        self.temperature < crate::sampling::GREEDY_BELOW
    }
}
