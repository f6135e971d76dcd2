//! Floating-point operations of a forward and backward pass, without those that compute activations
//! again (Chowdhery et al. 2022, arXiv 2204.02311, appendix B).
//!
//! ```text
//!  6 · P        per row            products with the P weights of the layers
//!  6 · V · H    per trained token  the same for the head, of V outputs
//!  6 · L · A·D  per row²           attention with a causal mask: half of 12 · L · A·D
//! ```
//! A row of a span attends to the rows of its prefix, all of them, too.

use super::{Head, Model, PackedTokens};

impl Model {
    /// Operations of a pass over the micro-batch.
    pub fn operations(&self, packed: &PackedTokens) -> f64 {
        let config = self.config();
        let [layers, hidden, inner, vocabulary] = [
            config.num_hidden_layers as i64,
            config.hidden_size,
            config.intermediate_size,
            config.vocab_size,
        ]
        .map(|size| size as f64);
        let queries = (config.num_attention_heads * config.head_dim) as f64;
        let keys = (config.num_key_value_heads * config.head_dim) as f64;
        let outputs = if self.head() == Head::LanguageModel { vocabulary } else { 1.0 };
        let layers = if self.head() == Head::Value { 0.0 } else { layers };
        let weights = hidden * (2.0 * queries + 2.0 * keys + 3.0 * inner);
        let (rows, trained) = (packed.num_tokens() as f64, packed.num_trained() as f64);
        6.0 * layers * weights * rows
            + 6.0 * outputs * hidden * trained
            + 6.0 * layers * queries * packed.attended()
    }
}

#[cfg(test)]
mod tests {
    use super::{Model, PackedTokens};
    use crate::model::{ModelConfig, SharedPrefix};

    #[test]
    fn a_shared_prefix_is_counted_once_and_attended_to_by_its_followers() {
        let folder = tempfile::tempdir().unwrap();
        let config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "vocab_size": 16, "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "max_position_embeddings": 2048, "rope_theta": 10000.0, "eos_token_id": 2,
        });
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let model = Model::new(ModelConfig::from_folder(folder.path()).unwrap());
        let tokens = [5, 6, 7, 5, 6, 8, 9];
        let mask = [0, 0, 1, 0, 0, 1, 1];
        let shared = [SharedPrefix { sequences: 0..2, tokens: 2 }];
        let operations = |prefixes: &[SharedPrefix]| {
            let packed = PackedTokens::with_prefixes(&tokens, &mask, &[3, 4], prefixes, 16);
            model.operations(&packed.unwrap())
        };
        let row = 6.0 * 2.0 * 64.0 * (2.0 * 64.0 + 2.0 * 32.0 + 3.0 * 128.0);
        let (head, pair) = (6.0 * 16.0 * 64.0 * 3.0, 6.0 * 2.0 * 64.0);
        // Spans of 3 and 4 rows; or of 2, 1 and 2, of which three rows attend to the prefix of two.
        let expected = [
            7.0 * row + head + pair * (9.0 + 16.0),
            5.0 * row + head + pair * (4.0 + 1.0 + 4.0 + 2.0 * 6.0),
        ];
        for (found, expected) in [operations(&[]), operations(&shared)].into_iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }
}
