"""Supervised fine-tuning with transformers and torch.optim.AdamW: reads a JSON object from standard
input and prints the loss of each step.

{"model": folder, "learningRate": …, "weightDecay": …, "clip": …,
 "steps": [[{"tokens": […], "mask": […]}, …], …]}
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM

job = json.load(sys.stdin)
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
optimizer = torch.optim.AdamW(
    model.parameters(), lr=job["learningRate"], weight_decay=job["weightDecay"]
)
losses = []
for samples in job["steps"]:
    optimizer.zero_grad()
    total, trained = 0.0, sum(sum(sample["mask"]) for sample in samples)
    for sample in samples:
        tokens = torch.tensor([sample["tokens"]])
        mask = torch.tensor(sample["mask"][1:], dtype=torch.float32)
        scores = torch.log_softmax(model(tokens).logits[0, :-1], -1)
        logprobs = scores.gather(1, tokens[0, 1:, None])[:, 0]
        loss = -(logprobs * mask).sum() / trained
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), job["clip"])
    optimizer.step()
    losses.append(total)
json.dump(losses, sys.stdout)
