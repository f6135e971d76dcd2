"""Peer of the training benchmark: for each line on standard input, runs one training step with
transformers and PyTorch eager and prints its duration in seconds.

usage: training_peer.py MODEL_FOLDER SEQUENCES TOKENS
"""
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

folder, sequences, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(
    AutoConfig.from_pretrained(folder), dtype=torch.float32, attn_implementation="sdpa"
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.999), weight_decay=0.01)
ids = torch.arange(sequences * tokens).reshape(sequences, tokens) * 7919 % model.config.vocab_size


def step():
    start = time.perf_counter()
    optimizer.zero_grad()
    model(ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return time.perf_counter() - start


for _ in sys.stdin:
    print(step(), flush=True)
