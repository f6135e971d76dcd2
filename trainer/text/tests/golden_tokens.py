"""Tokens of texts and chats for every tokenizer of fixtures/tokenizers.json, by transformers 4.57.

transformers 5 drops the flags add_bos_token and add_eos_token of tokenizer_config.json, which
SGLang restores; version 4 has them. Prints the results as JSON.

usage: pip install transformers==4.57.1 jinja2
       golden_tokens.py > fixtures/tokens.json
"""

import json
import pathlib
import tempfile

from transformers import AutoTokenizer

TOKENS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
TEXTS = ["What is 12 + 30?", " a  number\n— bitte 漢字", "", "<|im_end|> x"]
CHATS = [
    {"system": None, "arguments": {}},
    {"system": "Be brief.", "arguments": {}},
    {"system": "Be brief.", "arguments": {"enable_thinking": False}},
    {"system": None, "arguments": {"enable_thinking": True}},
]

fixtures = pathlib.Path(__file__).parent / "fixtures"


def open_tokenizer(case, folder):
    file = json.loads((fixtures / "tiny-chat/tokenizer.json").read_text())
    if "post_processor" in case:
        pieces, special = [], {}
        ids = {token["content"]: token["id"] for token in file["added_tokens"]}
        for piece in case["post_processor"]:
            name, kind = piece.rsplit(":", 1)
            if name == "$A":
                pieces.append({"Sequence": {"id": "A", "type_id": 0}})
            else:
                pieces.append({"SpecialToken": {"id": name, "type_id": int(kind)}})
                special[name] = {"id": name, "ids": [ids[name]], "tokens": [name]}
        pair = file["post_processor"]["pair"]
        file["post_processor"] = {
            "type": "TemplateProcessing", "single": pieces, "pair": pair, "special_tokens": special
        }
    (folder / "tokenizer.json").write_text(json.dumps(file))
    (folder / "tokenizer_config.json").write_text(json.dumps({**TOKENS, **case["config"]}))
    template = (fixtures / "templates/thinking.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template)
    return AutoTokenizer.from_pretrained(folder)


def chat(tokenizer, style):
    system = [{"role": "system", "content": style["system"]}] if style["system"] else []
    messages = [*system, {"role": "user", "content": TEXTS[0]}]
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, **style["arguments"]
    )


results = []
for case in json.loads((fixtures / "tokenizers.json").read_text()):
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = open_tokenizer(case, pathlib.Path(folder))
        results.append({
            **case,
            "file": json.loads((pathlib.Path(folder) / "tokenizer.json").read_text())[
                "post_processor"
            ],
            "texts": [{"text": text, "ids": tokenizer(text).input_ids} for text in TEXTS],
            "chats": [{**style, "ids": chat(tokenizer, style)} for style in CHATS],
        })
print("[" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in results) + "]")
