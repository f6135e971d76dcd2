"""Reward of GSM8K as a function: 0 for an answer of up to 800 characters, down to -1 for longer."""

FREE = 800
LONGEST = 3200


def brief(prompt, completion, answer):
    excess = min(max(len(completion) - FREE, 0), LONGEST - FREE)
    return {"reward": -excess / (LONGEST - FREE), "components": {"characters": len(completion)}}
