#!/usr/bin/env python3
"""Writes the model folder and data of tools.yaml: two-digit additions with a tool.

    make_data.py FOLDER [TOOL]

    TOOL                   `add` (default), which adds two numbers, or `python`, which runs a
                           program, for code-agent.yaml
    FOLDER/model/          config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja: a
                           Llama of 0.4M parameters, without weights, with tool calls as Qwen's
    FOLDER/teacher.jsonl   {"messages": conversation, "tools": list}: a teacher that calls the tool
                           for one question in three, guesses otherwise, and repeats what the tool
                           said
    FOLDER/lessons.jsonl   the same with held-out sums
    FOLDER/train.jsonl     {"question": "27+58=", "answer": "085"}
    FOLDER/test.jsonl      held-out sums
    FOLDER/train-by-row.jsonl, FOLDER/test-by-row.jsonl
                           the same with "tools": ["add"] in one row of two, and [] in the others

The output is deterministic: the generator's seed is fixed. Only the standard library is used.
"""

import json
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path

SEED = 1
LESSONS = 48_000
HELD_OUT_LESSONS = 256
TEST_LINES = 512
CALLS = 1 / 3

SPECIAL = ["<pad>", "<eos>", "<system>", "<user>", "<assistant>", "<tool>"]
DIGITS = list("0123456789+=")


@dataclass(frozen=True)
class Tool:
    """A tool, and the tokens of its calls."""

    name: str
    description: str
    # Names of its arguments, which are texts.
    parameters: list[str]
    # Text of the arguments before, between and after the two numbers, each of which is a token with
    # the text of the call around it.
    before: str
    between: str
    after: str
    # Digits of results and answers.
    width: int

    def parts(self):
        head = f'<tool_call>\n{{"name": "{self.name}", "arguments": {{{self.before}'
        return [head, self.between, f"{self.after}}}}}\n</tool_call>"]

    def arguments(self, a, b):
        return json.loads(f"{{{self.before}{a:02}{self.between}{b:02}{self.after}}}")

    def schema(self):
        properties = {name: {"type": "string"} for name in self.parameters}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": properties,
                    "required": self.parameters,
                },
            },
        }

    def number(self, value):
        return f"{value:0{self.width}}"


ADD = Tool("add", "Adds two numbers.", ["a", "b"], '"a": "', '", "b": "', '"', 3)
# Floats may start with a zero, as some numbers of the questions do.
PYTHON = Tool(
    "python", "Runs a Python program.", ["code"], '"code": "print(round(', ".+", '.))"', 1
)
TOOLS = {tool.name: tool for tool in (ADD, PYTHON)}

# The tools are their names: the vocabulary has no other words.
TEMPLATE = """\
{%- if tools %}
    {{- '<system>' }}
    {%- for tool in tools %}{{ tool.function.name }}{% endfor %}
    {{- '<eos>' }}
{%- endif %}
{%- for message in messages %}
    {{- '<' + message.role + '>' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson }}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<eos>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<assistant>' }}
{%- endif %}
"""

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 24,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 96,
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
    "model_max_length": 96,
    "clean_up_tokenization_spaces": False,
    "pad_token": "<pad>",
    "eos_token": "<eos>",
}


def tokenizer(tool):
    """Parts of calls, digits, and all other text in runs, which are unknown tokens."""
    parts = [re.sub(r"([{}().+])", r"\\\1", part) for part in tool.parts()]
    pattern = "|".join([*parts, tool.name, "[0-9+=]", "[^0-9+=<]+", "<"])
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, tool.name, *tool.parts(), *DIGITS])}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": vocabulary[token], "content": token, "special": True, **flags}
            for token in SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<pad>"},
    }


def lesson(tool, a, b, generator):
    """A conversation with a call, its result and the answer, or with a guess."""
    question = {"role": "user", "content": f"{a:02}+{b:02}="}
    if generator.random() >= CALLS:
        guess = {"role": "assistant", "content": tool.number(generator.randrange(199))}
        return {"messages": [question, guess], "tools": [tool.schema()]}
    function = {"name": tool.name, "arguments": tool.arguments(a, b)}
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    result = tool.number(a + b)
    answer = [{"role": "tool", "content": result}, {"role": "assistant", "content": result}]
    return {"messages": [question, call, *answer], "tools": [tool.schema()]}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:3] not in ([], ["add"], ["python"]):
        sys.exit("usage: make_data.py FOLDER [add|python]")
    tool = TOOLS[sys.argv[2] if len(sys.argv) == 3 else "add"]
    folder = Path(sys.argv[1])
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    write_json(model / "config.json", CONFIG)
    write_json(model / "tokenizer.json", tokenizer(tool))
    write_json(model / "tokenizer_config.json", TOKENIZER_CONFIG)
    (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")

    generator = random.Random(SEED)
    pairs = [(a, b) for a in range(100) for b in range(100)]
    generator.shuffle(pairs)
    test, train = pairs[:TEST_LINES], pairs[TEST_LINES:]
    for name, sums, count in (
        ("teacher.jsonl", train, LESSONS),
        ("lessons.jsonl", test, HELD_OUT_LESSONS),
    ):
        rows = [lesson(tool, *generator.choice(sums), generator) for _ in range(count)]
        write_lines(folder / name, rows)
    for name, sums in (("train.jsonl", train), ("test.jsonl", test)):
        rows = [{"question": f"{a:02}+{b:02}=", "answer": tool.number(a + b)} for a, b in sums]
        write_lines(folder / name, rows)
        by_row = [{**row, "tools": [[], [tool.name]][index % 2]} for index, row in enumerate(rows)]
        write_lines(folder / name.replace(".", "-by-row."), by_row)


if __name__ == "__main__":
    main()
