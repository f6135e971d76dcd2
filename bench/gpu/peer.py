"""Training step of PyTorch for comparison: transformers' Qwen2 with FSDP2, random weights.

Started with torchrun, one process per GPU. A step trains every rank on its sequences in
micro-batches with the clipped surrogate of GRPO: bfloat16 passes, float32 sums and masters,
clipping of the global norm, fused AdamW. With --logprobs, a pass without gradients instead. With
--lengths, sequences of these lengths, padded to the longest one of their micro-batch, or of all if
layers are compiled, because compiled code has one shape. Prints one line of JSON: tokens per second
and GPU without padding (median step), peak memory.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from shapes import SHAPES
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import Qwen2Config, Qwen2ForCausalLM


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument(
        "--lengths", type=Path, help="JSON list of [prompt tokens, completion tokens]"
    )
    parser.add_argument("--micro", type=int, default=4, help="sequences of a micro-batch")
    parser.add_argument("--compile", action="store_true", help="compile layers and loss")
    parser.add_argument("--keep", action="store_true", help="keep activations: no recomputation")
    parser.add_argument("--logprobs", action="store_true", help="passes without gradients")
    parser.add_argument("--layers", type=int, help="layers of the model; default those of the shape")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1.5b")
    return parser.parse_args()


def sharded_model(settings):
    torch.manual_seed(0)
    with torch.device("cuda"):
        shape = dict(SHAPES[settings.shape], use_cache=False, attn_implementation="sdpa")
        shape["num_hidden_layers"] = settings.layers or shape["num_hidden_layers"]
        model = Qwen2ForCausalLM(Qwen2Config(**shape)).float()
    if not settings.keep:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        if settings.compile:
            layer.compile()
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return model.train()


def token_logprobs(logits, tokens):
    logprobs = torch.log_softmax(logits[:, :-1].float(), dim=-1)
    return logprobs.gather(-1, tokens[:, 1:, None]).squeeze(-1)


@torch.no_grad()
def logprobs_pass(model, logprobs_of, settings, generator):
    shape = (settings.sequences, settings.length)
    vocabulary = SHAPES[settings.shape]["vocab_size"]
    tokens = torch.randint(0, vocabulary, shape, device="cuda", generator=generator)
    torch.cuda.synchronize()
    started = time.perf_counter()
    for part in tokens.split(settings.micro):
        logprobs_of(model(input_ids=part).logits, part)
    torch.cuda.synchronize()
    return time.perf_counter() - started


def micro_batches(settings, generator):
    """Pairs of tokens [sequences, length] and weights [sequences, length - 1]: the advantage of
    each trained token, 0 of others."""
    lengths = settings.lengths_of_batch
    options = dict(device="cuda", generator=generator)
    advantages = torch.randn(len(lengths), 1, **options)
    for first in range(0, len(lengths), settings.micro):
        of_micro = lengths[first : first + settings.micro]
        longest = max(map(sum, lengths if settings.compile else of_micro))
        shape = (len(of_micro), longest)
        tokens = torch.randint(0, SHAPES[settings.shape]["vocab_size"], shape, **options)
        weights = torch.zeros(len(of_micro), longest - 1, device="cuda")
        for row, (prompt, completion) in enumerate(of_micro):
            weights[row, prompt - 1 : prompt + completion - 1] = advantages[first + row]
        yield tokens, weights


def step(model, optimizer, logprobs_of, settings, generator):
    parts = list(micro_batches(settings, generator))
    trained = sum(completion for _, completion in settings.lengths_of_batch)
    torch.cuda.synchronize()
    dist.barrier()
    started = time.perf_counter()
    for index, (part, weights) in enumerate(parts):
        model.set_requires_gradient_sync(index + 1 == len(parts))
        logprobs = logprobs_of(model(input_ids=part).logits, part)
        ratio = (logprobs - logprobs.detach()).exp()
        surrogate = torch.minimum(ratio * weights, ratio.clamp(0.8, 1.2) * weights)
        (-surrogate.sum() / trained).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    return time.perf_counter() - started


def main():
    settings = arguments()
    settings.lengths_of_batch = [[1, settings.length - 1]] * settings.sequences
    if settings.lengths:
        settings.lengths_of_batch = json.loads(settings.lengths.read_text())
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = sharded_model(settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    logprobs_of = torch.compile(token_logprobs) if settings.compile else token_logprobs
    generator = torch.Generator(device="cuda").manual_seed(dist.get_rank())
    measured = lambda: (
        logprobs_pass(model, logprobs_of, settings, generator)
        if settings.logprobs
        else step(model, optimizer, logprobs_of, settings, generator)
    )
    seconds = [measured() for _ in range(settings.steps)]
    median = statistics.median(seconds[2:])
    if dist.get_rank() == 0:
        figures = dict(
            torch=torch.__version__,
            compiled=settings.compile,
            recompute=not settings.keep,
            step_s=round(median, 4),
            tok_per_s_per_gpu=round(sum(map(sum, settings.lengths_of_batch)) / median),
            peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1),
        )
        print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


main()
