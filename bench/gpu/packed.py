"""Training of packed sequences with PyTorch and transformers on one GPU, for comparison.

The fastest step that we could write with these libraries alone: sequences are packed into bins of a
fixed number of tokens (attention over cumulative lengths, no padding between sequences), each
decoder layer is compiled once for that shape, activations are kept, the loss and the gradient of
the logits are computed in chunks without an fp32 copy of all logits, gradients are summed in fp32,
and a fused AdamW updates fp32 masters.

Shape suffixes: T tokens of a bin, S sequences of a bin plus one, N trained tokens (padded to whole
chunks), V vocabulary, E hidden width.
"""

import inspect
from dataclasses import dataclass

import torch
from shapes import SHAPES
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, Qwen2Config, Qwen2ForCausalLM

# Options of `varlen_attn` have other names in other versions of PyTorch.
PARAMETERS = inspect.signature(varlen_attn).parameters
CAUSAL = {"window_size": (-1, 0)} if "window_size" in PARAMETERS else {"is_causal": True}
GROUPED = {"enable_gqa": True} if "enable_gqa" in PARAMETERS else {}
CLIP = 0.2


@dataclass
class Sample:
    prompt: list
    completion: list
    logprobs: list
    advantage: float

    def tokens(self):
        return len(self.prompt) + len(self.completion)


@dataclass
class Limits:
    """Tokens of a bin, rows of a chunk of logits, tokens of the longest and shortest sample."""

    bin: int
    chunk: int
    longest: int
    shortest: int

    def starts(self):
        return self.bin // self.shortest + self.bin // self.longest + 2


@dataclass
class Bin:
    """`rows_N` are the tokens whose successors are trained."""

    tokens_T: torch.Tensor
    positions_T: torch.Tensor
    starts_S: torch.Tensor
    rows_N: torch.Tensor
    targets_N: torch.Tensor
    logprobs_N: torch.Tensor
    advantages_N: torch.Tensor


def packed_attention(
    module, query, key, value, mask, scaling=None, dropout=0.0, starts_S=None, longest=0, **_
):
    query, key, value = (each.transpose(1, 2).squeeze(0) for each in (query, key, value))
    bounds = (starts_S, starts_S, longest, longest)
    out = varlen_attn(query, key, value, *bounds, scale=scaling, **CAUSAL, **GROUPED)
    return out.unsqueeze(0), None


AttentionInterface.register("packed", packed_attention)


def first_fit(samples, capacity):
    """Samples by bin: the longest first, each into the first bin with room."""
    bins = []
    for sample in sorted(samples, key=lambda sample: -sample.tokens()):
        if sample.tokens() > capacity:
            raise SystemExit(f"a sample has {sample.tokens()} tokens; a bin has {capacity}")
        for entry in bins:
            if entry[0] + sample.tokens() <= capacity:
                entry[0] += sample.tokens()
                entry[1].append(sample)
                break
        else:
            bins.append([sample.tokens(), [sample]])
    return [packed for _, packed in bins]


def to_bin(samples, limits, device):
    """Fills the end with sequences that are not trained, because compiled code has one shape."""
    tokens, positions, starts = [], [], [0]
    rows, targets, logprobs, advantages = [], [], [], []
    for sample in samples:
        first = len(tokens) + len(sample.prompt) - 1
        rows.extend(range(first, first + len(sample.completion)))
        targets.extend(sample.completion)
        logprobs.extend(sample.logprobs)
        advantages.extend([sample.advantage] * len(sample.completion))
        tokens += sample.prompt
        tokens += sample.completion
        positions.extend(range(sample.tokens()))
        starts.append(len(tokens))
    while len(tokens) < limits.bin:
        length = min(limits.longest, limits.bin - len(tokens))
        tokens.extend([0] * length)
        positions.extend(range(length))
        starts.append(len(tokens))
    starts.extend([limits.bin] * (limits.starts() - len(starts)))
    padding = -len(rows) % limits.chunk

    def tensor(values, kind, fill=None):
        values = values if fill is None else values + [fill] * padding
        host = torch.tensor(values, dtype=kind)
        return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host

    return Bin(
        tokens_T=tensor(tokens, torch.long),
        positions_T=tensor(positions, torch.long),
        starts_S=tensor(starts, torch.int32),
        rows_N=tensor(rows, torch.long, 0),
        targets_N=tensor(targets, torch.long, 0),
        logprobs_N=tensor(logprobs, torch.float32, 0.0),
        advantages_N=tensor(advantages, torch.float32, 0.0),
    )


@torch.compile(dynamic=False)
def surrogate(logits_NV, targets_N, old_N, advantages_N, scale):
    """The clipped loss of a chunk and its gradient by the logits."""
    kind, logits_NV = logits_NV.dtype, logits_NV.float()
    total_N = torch.logsumexp(logits_NV, -1)
    ratio_N = (logits_NV.gather(-1, targets_N[:, None]).squeeze(-1) - total_N - old_N).exp()
    plain_N = ratio_N * advantages_N
    clipped_N = ratio_N.clamp(1.0 - CLIP, 1.0 + CLIP) * advantages_N
    weight_N = torch.where(plain_N <= clipped_N, -plain_N, torch.zeros_like(plain_N)) * scale
    vocabulary = torch.arange(logits_NV.shape[-1], device=logits_NV.device)
    hot_NV = (vocabulary[None, :] == targets_N[:, None]).float()
    gradient_NV = weight_N[:, None] * (hot_NV - (logits_NV - total_N[:, None]).exp())
    loss = -torch.minimum(plain_N, clipped_N).sum() * scale
    return loss, gradient_NV.to(kind)


class ChunkedLoss(torch.autograd.Function):
    """Keeps the gradients of hidden states and head instead of the logits."""

    @staticmethod
    def forward(context, hidden_NE, head_VE, packed, scale, chunk):
        hidden_gradient = torch.empty_like(hidden_NE)
        head_gradient = torch.zeros_like(head_VE, dtype=torch.float32)
        total = torch.zeros((), device=hidden_NE.device)
        for start in range(0, hidden_NE.shape[0], chunk):
            part = slice(start, start + chunk)
            logits_NV = hidden_NE[part] @ head_VE.t()
            of_part = (packed.targets_N[part], packed.logprobs_N[part], packed.advantages_N[part])
            loss, gradient_NV = surrogate(logits_NV, *of_part, scale)
            total += loss
            torch.mm(gradient_NV, head_VE, out=hidden_gradient[part])
            head_gradient += gradient_NV.t() @ hidden_NE[part]
        context.save_for_backward(hidden_gradient, head_gradient)
        return total

    @staticmethod
    def backward(context, _):
        hidden_gradient, head_gradient = context.saved_tensors
        return hidden_gradient, head_gradient.to(hidden_gradient.dtype), None, None, None


def random_model(shape, device):
    config = Qwen2Config(**shape, use_cache=False)
    config._attn_implementation = "packed"
    torch.manual_seed(0)
    with device:
        return Qwen2ForCausalLM(config).to(torch.bfloat16).train()


class Trainer:
    def __init__(self, model, limits, device):
        self.model, self.limits, self.device = model, limits, device
        for layer in model.model.layers:
            layer.compile(dynamic=False)
        self.weights = list(model.parameters())
        self.masters = [weight.detach().float() for weight in self.weights]
        for weight, master in zip(self.weights, self.masters):
            master.grad = torch.zeros_like(master)
            weight.register_post_accumulate_grad_hook(
                lambda weight, master=master: self.accumulate(weight, master)
            )
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-6, fused=True)

    @staticmethod
    def accumulate(weight, master):
        master.grad.add_(weight.grad)
        weight.grad = None

    def step(self, samples):
        """Trains on one minibatch. Returns the loss and the share of the bins that is filled."""
        bins = first_fit(samples, self.limits.bin)
        # A tensor: compiled code is rebuilt for every number.
        trained = sum(len(sample.completion) for sample in samples)
        scale = torch.full((), 1.0 / trained, device=self.device)
        loss = torch.zeros((), device=self.device)
        for packed in bins:
            loss += self.accumulated_loss(to_bin(packed, self.limits, self.device), scale)
        gradients = [master.grad for master in self.masters]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, torch.clamp(1.0 / (norm + 1e-6), max=1.0))
        self.optimizer.step()
        torch._foreach_copy_([weight.data for weight in self.weights], self.masters)
        torch._foreach_zero_(gradients)
        tokens = sum(sample.tokens() for sample in samples)
        return loss.item(), tokens / (len(bins) * self.limits.bin)

    def accumulated_loss(self, packed, scale):
        hidden = self.model.model(
            input_ids=packed.tokens_T[None],
            position_ids=packed.positions_T[None],
            starts_S=packed.starts_S,
            longest=self.limits.longest,
        ).last_hidden_state[0]
        hidden_NE = hidden.index_select(0, packed.rows_N)
        head_VE = self.model.lm_head.weight
        loss = ChunkedLoss.apply(hidden_NE, head_VE, packed, scale, self.limits.chunk)
        loss.backward()
        return loss.detach()
