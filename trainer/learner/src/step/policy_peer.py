"""Steps of GSPO, CISPO, REINFORCE++ and PPO with transformers, autograd and torch.optim.AdamW,
written from the papers.

usage: policy_peer.py CASE.json OUT.safetensors

{"model": folder, "algorithm": name, "temperature": …, "clip": [low, high], "klCoefficient": …,
 "discount": …, "lambda": …, "valueClip": …, "learningRate": …, "weightDecay": …,
 "gradientClipping": …, "epochs": …, "steps": [[{"tokens": […], "mask": […], "group": …,
 "reward": …, "minibatch": …, "bootstraps": …}, …], …]}
"""

import copy
import json
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
case = json.load(open(sys.argv[1]))
algorithm, (low, high) = case["algorithm"], case["clip"]
policy = AutoModelForCausalLM.from_pretrained(
    case["model"], dtype=torch.float32, attn_implementation="eager"
)
reference, critic = copy.deepcopy(policy), copy.deepcopy(policy).model
score = torch.nn.Parameter(torch.sin(torch.arange(policy.config.hidden_size).float() * 0.61))
trained = {"policy": dict(policy.named_parameters())}
if algorithm == "PPO":
    trained["critic"] = {f"model.{name}": value for name, value in critic.named_parameters()}
    trained["critic"]["score.weight"] = score
initial = {
    (role, name): value.detach().clone()
    for role, parameters in trained.items()
    for name, value in parameters.items()
}
optimizers = {
    role: torch.optim.AdamW(
        parameters.values(), lr=case["learningRate"], weight_decay=case["weightDecay"]
    )
    for role, parameters in trained.items()
}


def is_trained(sample):
    return torch.tensor(sample["mask"][1:], dtype=torch.bool)


def logprobs(model, sample):
    tokens = torch.tensor(sample["tokens"])
    scores = torch.log_softmax(model(tokens[None]).logits[0, :-1] / case["temperature"], -1)
    return scores.gather(1, tokens[1:, None])[is_trained(sample), 0]


def values(sample):
    """The value before each trained token, and the one after the last token."""
    outputs = critic(torch.tensor(sample["tokens"])[None]).last_hidden_state[0] @ score
    return outputs[:-1][is_trained(sample)], outputs[-1]


def by_group(samples):
    """(reward − mean) ÷ standard deviation of the prompt group: GRPO, arXiv 2402.03300."""
    for sample in samples:
        rewards = torch.tensor([s["reward"] for s in samples if s["group"] == sample["group"]])
        yield (sample["reward"] - rewards.mean()) / (rewards.std() + 1e-5)


def over_batch(advantages):
    whole = torch.cat(advantages)
    return [(one - whole.mean()) / (whole.std() + 1e-5) for one in advantages]


def rewards_of_tokens(sample, old, base):
    """The reward at the last token, and the KL divergence (k1) of each token."""
    rewards = -case["klCoefficient"] * (old - base)
    rewards[-1] += sample["reward"]
    return rewards


def estimates(rewards, old, end):
    """Generalized Advantage Estimation, arXiv 1506.02438, equations 11 and 16."""
    following = torch.cat([old[1:], end[None]])
    errors = rewards + case["discount"] * following - old
    decay = case["discount"] * case["lambda"]
    powers = [decay ** torch.arange(len(errors) - t) for t in range(len(errors))]
    return torch.stack([(errors[t:] * powers[t]).sum() for t in range(len(errors))])


@torch.no_grad()
def prepare(samples):
    """What is constant in a step: log-probabilities before it, advantages and returns."""
    old = [logprobs(policy, sample) for sample in samples]
    if algorithm in ("GSPO", "CISPO"):
        return old, [a.expand_as(b) for a, b in zip(by_group(samples), old)], None, None
    base = [logprobs(reference, sample) for sample in samples]
    rewards = [rewards_of_tokens(*one) for one in zip(samples, old, base)]
    if algorithm == "REINFORCE++":
        return old, over_batch([one.flip(0).cumsum(0).flip(0) for one in rewards]), None, None
    before = [values(sample) for sample in samples]
    advantages = [
        estimates(reward, value, end if sample["bootstraps"] else torch.tensor(0.0))
        for sample, reward, (value, end) in zip(samples, rewards, before)
    ]
    returns = [advantage + value for advantage, (value, _) in zip(advantages, before)]
    return old, over_batch(advantages), [value for value, _ in before], returns


def clip(ratio):
    clips = (ratio.detach() > 1 + high) | (ratio.detach() < 1 - low)
    clipped["policy"] += clips.sum().item()
    return ratio.clamp(1 - low, 1 + high)


def policy_loss(sample, old, advantages):
    """The loss of each trained token; for GSPO, the loss of the completion."""
    new = logprobs(policy, sample)
    if algorithm == "GSPO":
        ratio = torch.exp((new - old).mean())
        return -torch.minimum(ratio * advantages[:1], clip(ratio) * advantages[:1])
    ratio = torch.exp(new - old)
    if algorithm == "CISPO":
        return -clip(ratio).detach() * advantages * new
    return -torch.minimum(ratio * advantages, clip(ratio) * advantages)


def value_loss(sample, old, returns):
    new, _ = values(sample)
    bounded = old + (new - old).clamp(-case["valueClip"], case["valueClip"])
    free, bound = (new - returns).square() / 2, (bounded - returns).square() / 2
    clipped["values"] += (bound > free).sum().item()
    return torch.maximum(free, bound)


def update(role, loss):
    optimizers[role].zero_grad()
    loss.backward()
    parameters = trained[role].values()
    norm = torch.nn.utils.clip_grad_norm_(parameters, case["gradientClipping"])
    optimizers[role].step()
    return norm.item()


clipped = {"policy": 0, "values": 0}
losses, value_losses, norms = [], [], []
for samples in case["steps"]:
    old, advantages, old_values, returns = prepare(samples)
    tokens = [is_trained(sample).sum().item() for sample in samples]
    loss_of_step, values_of_step, norms_of_step = 0.0, 0.0, []
    for minibatch in [0, 1] * case["epochs"]:
        mine = [i for i, sample in enumerate(samples) if sample["minibatch"] == minibatch]
        share = sum(tokens[i] for i in mine) / sum(tokens) / case["epochs"]
        loss = torch.cat([policy_loss(samples[i], old[i], advantages[i]) for i in mine]).mean()
        norms_of_step = [update("policy", loss)]
        loss_of_step += loss.item() * share
        if algorithm == "PPO":
            errors = [value_loss(samples[i], old_values[i], returns[i]) for i in mine]
            loss = torch.cat(errors).mean()
            norms_of_step.append(update("critic", loss))
            values_of_step += loss.item() * share
    losses.append(loss_of_step)
    value_losses.append(values_of_step)
    norms.append(norms_of_step)

out = {"losses": losses, "value_losses": value_losses, "norms": norms}
out = {name: torch.tensor(values, dtype=torch.float64) for name, values in out.items()}
out["clipped"] = torch.tensor([clipped["policy"], clipped["values"]])
for role, parameters in trained.items():
    for name, value in parameters.items():
        state = optimizers[role].state[value]
        out[f"{role}.moment.{name}"] = state["exp_avg"].contiguous()
        out[f"{role}.change.{name}"] = (value.detach() - initial[role, name]).contiguous()
save_file(out, sys.argv[2])
