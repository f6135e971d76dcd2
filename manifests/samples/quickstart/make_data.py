#!/usr/bin/env python3
"""Writes the quick start's model folder and data: two-digit additions, one token per character.

    make_data.py FOLDER

    FOLDER/model/          config.json, tokenizer.json and tokenizer_config.json: a Llama of 0.4M
                           parameters, without weights
    FOLDER/teacher.jsonl   {"question": "27+58=", "completion": "075"}: a teacher that usually
                           drops carries
    FOLDER/train.jsonl     {"question": "27+58=", "answer": "085"}: the correct answers, used by the
                           reward only
    FOLDER/test.jsonl      held-out sums
    FOLDER/pairs.jsonl     {"question": "27+58=", "answer": "085", "wrong": "095"}: the correct
                           answers beside wrong ones, for algorithms that learn from pairs
    FOLDER/test-pairs.jsonl  the held-out sums, with wrong answers

The output is deterministic: the generator's seed is fixed. Only the standard library is used.
"""

import json
import random
import sys
from pathlib import Path

SEED = 1
TEACHER_LINES = 128_000
# Shares of the teacher's answers; in the others, one digit is wrong.
TEACHER_RIGHT, TEACHER_DROPS_CARRIES = 0.3, 0.5
PAIRS = 32_000
TEST_LINES = 512

SPECIAL = ["<pad>", "<eos>"]
CHARACTERS = list("0123456789+= ")

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 16,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.06,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "torch_dtype": "float32",
    "use_cache": True,
}

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 64,
    "clean_up_tokenization_spaces": False,
    "pad_token": "<pad>",
    "eos_token": "<eos>",
}


def tokenizer():
    """A `tokenizers` file: the text is split into characters, each of which is a token."""
    vocabulary = {token: index for index, token in enumerate(SPECIAL + CHARACTERS)}
    added = [
        {
            "id": vocabulary[token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in SPECIAL
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "."},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<pad>"},
    }


def question(a, b):
    return f"{a:02}+{b:02}="


def answer(value):
    """The value with three digits, so that all completions have the same length."""
    return f"{value:03}"


def without_carries(a, b):
    """The sum of each place alone: 75 for 27 + 58."""
    return 10 * ((a // 10 + b // 10) % 10) + (a + b) % 10


def teacher_answer(a, b, generator):
    """The sum, the sum without its carries, or the sum with one random wrong digit. The second is
    the most frequent one, so that a model that imitates the teacher prefers it."""
    draw = generator.random()
    if draw < TEACHER_RIGHT:
        return answer(a + b)
    if draw < TEACHER_RIGHT + TEACHER_DROPS_CARRIES:
        return answer(without_carries(a, b))
    return wrong_answer(answer(a + b), generator)


def wrong_answer(right, generator):
    """The answer with one random wrong digit."""
    place = generator.randrange(len(right))
    wrong = generator.choice([digit for digit in "0123456789" if digit != right[place]])
    return right[:place] + wrong + right[place + 1 :]


def pair(a, b, generator):
    right = answer(a + b)
    return {"question": question(a, b), "answer": right, "wrong": wrong_answer(right, generator)}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_data.py FOLDER")
    folder = Path(sys.argv[1])
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    write_json(model / "config.json", CONFIG)
    write_json(model / "tokenizer.json", tokenizer())
    write_json(model / "tokenizer_config.json", TOKENIZER_CONFIG)

    generator = random.Random(SEED)
    pairs = [(a, b) for a in range(100) for b in range(100)]
    generator.shuffle(pairs)
    test, train = pairs[:TEST_LINES], pairs[TEST_LINES:]
    lessons = [generator.choice(train) for _ in range(TEACHER_LINES)]
    write_lines(
        folder / "teacher.jsonl",
        [
            {
                "question": question(a, b),
                "completion": teacher_answer(a, b, generator),
            }
            for a, b in lessons
        ],
    )
    for name, rows in (("train.jsonl", train), ("test.jsonl", test)):
        write_lines(
            folder / name,
            [{"question": question(a, b), "answer": answer(a + b)} for a, b in rows],
        )
    # A separate generator, so that the other files do not depend on the number of pairs.
    generator = random.Random(SEED + 1)
    compared = [generator.choice(train) for _ in range(PAIRS)]
    for name, rows in (("pairs.jsonl", compared), ("test-pairs.jsonl", test)):
        write_lines(folder / name, [pair(a, b, generator) for a, b in rows])


if __name__ == "__main__":
    main()
