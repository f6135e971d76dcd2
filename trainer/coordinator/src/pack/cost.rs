//! Cost of training on a sequence, in floating-point operations.
//!
//! ```text
//!  6 · P        per token          products with the P weights of the layers
//!  6 · V · H    per trained token  the same for the head; tokens that are not trained skip it
//!  7 · L · A·D  per token²         attention with a causal mask, L layers, A heads of size D
//! ```
//! Kaplan et al. 2020, arXiv 2001.08361, section 2.1: 2 operations per weight and token forward,
//! twice as many backward. Dao 2023, arXiv 2307.08691, section 4.1: attention needs 4 · A·D
//! operations per token² forward and 2.5 times as many backward, where the scores are computed
//! again; a causal mask halves both.

use serde::Deserialize;

/// Sizes of a model, the keys of `config.json`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct ModelShape {
    vocab_size: u64,
    hidden_size: u64,
    intermediate_size: u64,
    num_hidden_layers: u64,
    num_attention_heads: u64,
    /// Default as many as query heads.
    num_key_value_heads: Option<u64>,
    /// Default hidden size ÷ heads.
    head_dim: Option<u64>,
}

/// Operations of a training step by what they depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// Per token.
    linear: u64,
    /// Per pair of tokens of a sequence.
    quadratic: u64,
    /// Per trained token.
    head: u64,
}

/// Tokens and cost of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub tokens: u64,
    /// Floating-point operations.
    pub cost: u64,
}

impl Load {
    /// Saturates.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let tokens = self.tokens.saturating_add(other.tokens);
        Self { tokens, cost: self.cost.saturating_add(other.cost) }
    }

    /// Saturates.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        let tokens = self.tokens.saturating_sub(other.tokens);
        Self { tokens, cost: self.cost.saturating_sub(other.cost) }
    }
}

impl CostModel {
    /// The cost model of a shape. Saturates.
    pub fn new(shape: &ModelShape) -> Self {
        let product =
            |factors: &[u64]| factors.iter().fold(1, |all: u64, of| all.saturating_mul(*of));
        let head_size = shape
            .head_dim
            .or(shape.hidden_size.checked_div(shape.num_attention_heads))
            .unwrap_or_default();
        let queries = product(&[shape.num_attention_heads, head_size]);
        let keys = shape.num_key_value_heads.unwrap_or(shape.num_attention_heads);
        let keys = product(&[keys, head_size]);
        // Rows and columns of q and o, of k and v, and of gate, up and down.
        let widths =
            [product(&[2, queries]), product(&[2, keys]), product(&[3, shape.intermediate_size])];
        let width = widths.into_iter().fold(0, u64::saturating_add);
        Self {
            linear: product(&[6, shape.num_hidden_layers, shape.hidden_size, width]),
            head: product(&[6, shape.vocab_size, shape.hidden_size]),
            quadratic: product(&[7, shape.num_hidden_layers, queries]),
        }
    }

    /// The load of a sequence of `tokens` tokens, of which `trained` are trained. Saturates.
    pub fn load(&self, tokens: u64, trained: u64) -> Load {
        let per_token = self.quadratic.saturating_mul(tokens).saturating_add(self.linear);
        let layers = per_token.saturating_mul(tokens);
        let head = self.head.saturating_mul(trained);
        Load { tokens, cost: layers.saturating_add(head) }
    }

    /// The loads of a prompt of `prompt` tokens that is not trained, and of the `rest` tokens after
    /// it, of which `trained` are trained. They add up to that of the sequence.
    pub fn shared(&self, prompt: u64, rest: u64, trained: u64) -> (Load, Load) {
        let of_prompt = self.load(prompt, 0);
        (of_prompt, self.load(prompt.saturating_add(rest), trained).minus(of_prompt))
    }
}

#[cfg(test)]
pub mod tests {
    use super::{CostModel, Load, ModelShape};

    /// The shape of Qwen2.5-1.5B.
    pub const QWEN_1_5B: ModelShape = ModelShape {
        vocab_size: 151_936,
        hidden_size: 1536,
        intermediate_size: 8960,
        num_hidden_layers: 28,
        num_attention_heads: 12,
        num_key_value_heads: Some(2),
        head_dim: None,
    };

    /// The shape of SmolLM2-135M, where attention has a larger share.
    pub const SMOL_135M: ModelShape = ModelShape {
        vocab_size: 49_152,
        hidden_size: 576,
        intermediate_size: 1536,
        num_hidden_layers: 30,
        num_attention_heads: 9,
        num_key_value_heads: Some(3),
        head_dim: None,
    };

    #[test]
    fn the_cost_is_six_operations_per_weight_and_token_and_seven_per_pair_of_tokens() {
        // 1.31 billion weights in products of the layers, 233 million in the head.
        let layers = 28 * (2 * 1536 * 1536 + 2 * 1536 * 256 + 3 * 1536 * 8960);
        let head = 151_936 * 1536;
        let expected = |tokens: u64, trained: u64| Load {
            tokens,
            cost: 6 * layers * tokens + 6 * head * trained + 7 * 28 * 1536 * tokens * tokens,
        };
        let model = CostModel::new(&QWEN_1_5B);
        for (tokens, trained) in [(1, 0), (64, 63), (4096, 2000)] {
            assert_eq!(model.load(tokens, trained), expected(tokens, trained));
        }
    }

    #[test]
    fn a_prompt_and_the_tokens_after_it_cost_as_much_as_the_sequence() {
        let model = CostModel::new(&QWEN_1_5B);
        let (prompt, rest) = model.shared(256, 100, 90);
        assert_eq!(prompt, model.load(256, 0));
        assert_eq!(rest.tokens, 100);
        assert_eq!(prompt.plus(rest), model.load(356, 90));
    }

    #[test]
    fn sizes_that_exceed_any_model_saturate() {
        let huge = ModelShape { hidden_size: u64::MAX, num_attention_heads: 0, ..QWEN_1_5B };
        assert_eq!(CostModel::new(&huge).load(u64::MAX, 1).cost, u64::MAX);
    }
}
