//! A Llama of two layers for tests of passes.

use rljob_learner::model::{Model, ModelConfig};

/// Vocabulary size.
pub const VOCABULARY: i64 = 50;
/// Hidden size.
pub const HIDDEN: i64 = 16;

/// The model, with tied embeddings or without.
pub fn model(tied: bool) -> Model {
    Model::new(ModelConfig {
        vocab_size: VOCABULARY,
        hidden_size: HIDDEN,
        intermediate_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 4,
        qkv_bias: false,
        qk_norm: false,
        rope_theta: 10000.0,
        rope_scaling: None,
        rms_norm_eps: 1e-6,
        tie_word_embeddings: tied,
        max_position_embeddings: 64,
        eos_token_ids: vec![2],
        bos_token_id: None,
        initializer_range: 0.2,
    })
}
