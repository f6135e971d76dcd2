"""Shapes of models of the benchmarks, with random weights."""


def shape(hidden, intermediate, layers, heads, keys, vocabulary, tied):
    return dict(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=32_768,
        rope_parameters=dict(rope_type="default", rope_theta=1_000_000.0),
    )


SHAPES = {
    "1.5b": shape(1536, 8960, 28, 12, 2, 151_936, True),
    "7b": shape(3584, 18_944, 28, 28, 4, 152_064, False),
}
