"""Reference values of transformers and torch, computed with autograd.

usage: parity.py CASE.json OUT.safetensors
"""
import json
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

torch.set_num_threads(1)
case = json.load(open(sys.argv[1]))
model = AutoModelForCausalLM.from_pretrained(
    case["model"], dtype=torch.float32, attn_implementation="eager"
)
out = {}


def add_adapter(folder):
    """Adds the low-rank path of PEFT's adapter to its modules; returns its parameters by name."""
    config = json.load(open(f"{folder}/adapter_config.json"))
    scale = config["lora_alpha"] / config["r"]
    dropout = load_file(case["dropout"]) if case["dropout"] else {}
    values = load_file(f"{folder}/adapter_model.safetensors")
    parameters = {name: torch.nn.Parameter(value) for name, value in values.items()}
    for name in parameters:
        if name.endswith(".lora_A.weight"):
            a, b = parameters[name], parameters[name.replace("lora_A", "lora_B")]
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")

            def add(_, args, y, a=a, b=b, factors=dropout.get(module)):
                x = args[0] if factors is None else args[0] * factors[rows]
                return y + scale * (x @ a.T @ b.T)

            model.get_submodule(module).register_forward_hook(add)
    return parameters


if case["adapter"]:
    trained = add_adapter(case["adapter"])
else:
    trained = dict(model.named_parameters())


def sequences():
    """The sequences; sets their rows among those of all."""
    global rows
    end = 0
    for tokens in case["sequences"]:
        rows = slice(end, end + len(tokens))
        end = rows.stop
        yield torch.tensor(tokens)


def forward():
    """Logits of all sequences in order; log-probability and advantage of each trained token."""
    logits, logprobs, advantages = [], [], []
    for tokens, mask, advantage in zip(sequences(), case["masks"], case["advantages"]):
        logits.append(model(tokens[None]).logits[0])
        scores = torch.log_softmax(logits[-1][:-1] / case["temperature"], -1)
        trained = torch.tensor(mask[1:], dtype=torch.bool)
        logprobs.append(scores.gather(1, tokens[1:, None])[trained, 0])
        advantages.append(torch.full_like(logprobs[-1], advantage))
    return torch.cat(logits), torch.cat(logprobs), torch.cat(advantages)


def record(name, loss, parameters=trained):
    for value in parameters.values():
        value.grad = None
    loss.backward()
    out[f"{name}.loss"] = loss.detach()
    out.update({f"{name}.{key}": value.grad.clone() for key, value in parameters.items()})


logits, logprobs, advantages = forward()
out["logits"], out["logprobs"] = logits.detach(), logprobs.detach()
record("sft", -logprobs.sum() / logprobs.numel())
_, logprobs, _ = forward()
ratio = torch.exp(logprobs - (logprobs.detach() - torch.tensor(case["shift"])))
clipped = ratio.clamp(1 - case["clip_low"], 1 + case["clip_high"])
record("grpo", torch.maximum(-advantages * ratio, -advantages * clipped).sum() / logprobs.numel())

# PPO with a value head on the final norm: the loss above + 0.3 · the clipped loss of values.
score = torch.sin(torch.arange(model.config.hidden_size, dtype=torch.float32) * 0.61)
score.requires_grad_()
_, logprobs, advantages = forward()
values = torch.cat([
    model.model(tokens[None]).last_hidden_state[0, :-1][mask[1:] == 1] @ score
    for tokens, mask in zip(sequences(), map(torch.tensor, case["masks"]))
])
shift = torch.tensor(case["shift"])
ratio = torch.exp(logprobs - (logprobs.detach() - shift))
clipped = ratio.clamp(1 - case["clip_low"], 1 + case["clip_high"])
policy = torch.maximum(-advantages * ratio, -advantages * clipped)
old = values.detach() - shift
bounded = old + (values - old).clamp(-0.2, 0.2)
errors = torch.maximum((values - advantages).square(), (bounded - advantages).square()) / 2
record("ppo", (policy + 0.3 * errors).mean(), {**trained, "score.weight": score})


def pairs():
    """Sums of the log-ratios of each sequence to the reference, and numbers of tokens."""
    _, logprobs, _ = forward()
    ratios = logprobs - (logprobs.detach() - torch.tensor(case["shift"]))
    lengths = [sum(mask[1:]) for mask in case["masks"]]
    sums = torch.stack([part.double().sum() for part in ratios.split(lengths)])
    return sums, torch.tensor(lengths)


# TRL's DPOTrainer, losses `sigmoid` with label_smoothing and `ipo`.
sums, _ = pairs()
x = 0.7 * (sums[0::2] - sums[1::2])
logsigmoid = torch.nn.functional.logsigmoid
record("dpo", (-logsigmoid(x) * 0.8 - logsigmoid(-x) * 0.2).mean())
sums, lengths = pairs()
means = sums / lengths
record("ipo", (means[0::2] - means[1::2] - 1 / (2 * 0.7)).square().mean())

# TRL's ORPOTrainer, with the likelihood of completions alone.
_, logprobs, _ = forward()
means = torch.stack([part.double().mean() for part in logprobs.split(lengths.tolist())])
odds = means - torch.log1p(-means.exp())
record("orpo", (-means[0::2] - 0.7 * logsigmoid(odds[0::2] - odds[1::2])).mean())

classifier, loading = AutoModelForSequenceClassification.from_pretrained(
    case["reward_model"], dtype=torch.float32, attn_implementation="eager",
    output_loading_info=True,
)
assert classifier.num_labels == 1 and not any(loading.values()), loading
scores = torch.stack(
    [classifier(torch.tensor(tokens)[None]).logits[0, 0] for tokens in case["sequences"]]
)
out["scores"] = scores.detach()
record("reward", -logsigmoid(scores[0::2] - scores[1::2]).mean(), dict(classifier.named_parameters()))

parameter = torch.nn.Parameter(torch.tensor(case["adamw"]["parameter"]))
optimizer = torch.optim.AdamW([parameter], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
for gradient in case["adamw"]["gradients"]:
    parameter.grad = torch.tensor(gradient)
    optimizer.step()
out["adamw"] = parameter.detach()
save_file({key: value.contiguous() for key, value in out.items()}, sys.argv[2])
