"""Renders every conversation of fixtures/ with every template in transformers.

Prints the results as JSON.

usage: golden.py > fixtures/golden.json
"""

import json
import pathlib
from datetime import datetime

from transformers.utils import chat_template_utils

TOKENS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


class Day(datetime):
    """The day that strftime_now tells there."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def render(template, conversation):
    variables = {**conversation.get("variables", {}), **TOKENS}
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[conversation["messages"]],
            chat_template=template,
            tools=conversation.get("tools"),
            add_generation_prompt=True,
            **variables,
        )
        return rendered[0]
    except Exception:  # raise_exception, or what Jinja itself refuses
        return None


chat_template_utils.datetime = Day
fixtures = pathlib.Path(__file__).parent / "fixtures"
conversations = json.loads((fixtures / "conversations.json").read_text())
golden = {
    path.stem: {
        conversation["name"]: render(path.read_text(), conversation)
        for conversation in conversations
    }
    for path in sorted((fixtures / "templates").glob("*.jinja"))
}
print(json.dumps(golden, indent=1, ensure_ascii=False))
