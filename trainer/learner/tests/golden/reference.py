"""Golden values: runs functions of other projects once on seeded inputs and prints JSON.

usage: reference.py AREAL VERL TRL TRL_0_24 > golden.json

The arguments are source folders (a checkout, or an unpacked wheel) of

  AReaL    github.com/areal-project/AReaL, commit cbff54d645d2cd8ee1f1c358a82f3f473588433d
  verl     version 0.9.1
  TRL      version 1.16.0, and 0.24.0, the last one with `DPOTrainer.dpo_loss`

Requires torch. Functions are taken from the files, so that the projects need not be installed, and
run in fp64 on fp32 inputs. `source` of a case names its function.
"""
import ast
import enum
import json
import math
import random
import sys
import types
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

AREAL, VERL, TRL, TRL_0_24 = map(Path, sys.argv[1:])
LENGTHS = [5, 3, 7, 1, 4, 6]  # tokens of six completions of three prompts
GROUPS = [0, 0, 1, 1, 2, 2]
REWARDS = [1.0, 0.5, 0.0, 0.0, 0.25, 2.0]
TOTAL = sum(LENGTHS)
generator = random.Random(17)


def load(path, *names, **namespace):
    """Functions and classes of a file, without their decorators. `Class.name` is a method."""
    namespace.update(torch=torch, np=np, F=F, nn=torch.nn, defaultdict=defaultdict)
    found = {}
    for node in ast.parse(path.read_text()).body:
        members = node.body if isinstance(node, ast.ClassDef) else []
        for name, part in [(node.name, node)] if hasattr(node, "name") else []:
            found[name] = part
        for part in members:
            if hasattr(part, "name"):
                found[f"{node.name}.{part.name}"] = part
    loaded = []
    for name in names:
        node = found[name]
        for part in ast.walk(node):
            if getattr(part, "decorator_list", None):
                part.decorator_list = [
                    one for one in part.decorator_list if ast.unparse(one) == "staticmethod"
                ]
        future = ast.parse("from __future__ import annotations").body
        exec(compile(ast.Module(future + [node], []), str(path), "exec"), namespace)
        loaded.append(namespace[name.split(".")[-1]])
    return loaded


def draw(low, high):
    return [round(generator.uniform(low, high), 3) for _ in range(TOTAL)]


def near(values, width):
    return [round(value + generator.uniform(-width, width), 3) for value in values]


def tensor(values):
    return torch.tensor(values, dtype=torch.float32).double()


def padded(values):
    """[6, 7] with zeros after each completion."""
    rows = torch.split(values, LENGTHS)
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def packed(rows):
    return torch.cat([row[:length] for row, length in zip(rows, LENGTHS)])


MASK = padded(torch.ones(TOTAL)) > 0
CU_SEQLENS = torch.tensor([0, *np.cumsum(LENGTHS)], dtype=torch.int32)
policy = draw(-4, -0.8)
inputs = {"lengths": LENGTHS, "groups": GROUPS, "rewards": REWARDS, "policy": policy}
inputs["proximal"] = near(policy, 0.4)
inputs["sampler"] = near(inputs["proximal"], 0.6)
inputs["reference"] = near(policy, 1.5)
inputs["advantages"] = draw(-2, 2)
inputs["values"] = draw(-1, 1)
inputs["turns"] = [0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 2]
inputs["endValue"] = 0.625  # of the third completion, which a limit ended
inputs["scores"] = [round(generator.uniform(-2, 2), 3) for _ in LENGTHS]
inputs["teacher"] = [draw(-3, 3)[:8] for _ in range(5)]  # logits
inputs["student"] = [draw(-3, 3)[:8] for _ in range(5)]
given = {name: tensor(values) for name, values in inputs.items()}
cases = {}


def case(name, source, **values):
    listed = lambda value: value.tolist() if torch.is_tensor(value) else value
    cases[name] = {"source": source} | {key: listed(value) for key, value in values.items()}


def differentiated(name, source, loss, variable="policy", **values):
    """A case with the loss and its derivative by an input."""
    leaf = given[variable].clone().requires_grad_()
    value = loss(leaf)
    case(name, source, loss=value.item(), gradient=torch.autograd.grad(value, leaf)[0], **values)


# ---- AReaL ---------------------------------------------------------------------------------------
config = types.SimpleNamespace
functional = AREAL / "areal/utils/functional/functional.py"
(KLEstimator,) = load(AREAL / "areal/utils/data.py", "KLEstimator")
for name in ["k1", "k2", "k3"]:
    far = torch.cat([given["policy"], tensor([-0.5, -14.0])])
    estimate = KLEstimator(name)(far, torch.cat([given["reference"], tensor([-13.0, -1.0])]))
    case(f"kl/{name}", "AReaL, KLEstimator", estimates=estimate)

rejection = load(functional, "RejectionSamplingResult", dataclass=lambda one: one)[0]
rejection.__init__ = lambda self, **values: self.__dict__.update(values)
names = ["_check_bounds", "_compute_sequence_level_ratio_and_advantages",
         "apply_rejection_sampling", "ppo_actor_loss_fn", "sapo_loss_fn", "dpo_preference_loss"]
*_, ppo_actor_loss_fn, sapo_loss_fn, dpo_preference_loss = load(
    functional, *names, KLEstimator=KLEstimator, RejectionSamplingResult=rejection)


def areal_loss(policy, mask=torch.ones(TOTAL, dtype=torch.bool), old="sampler", **settings):
    return ppo_actor_loss_fn(
        logprobs=policy, proximal_logprobs=given["proximal"], old_logprobs=given[old],
        advantages=given["advantages"], eps_clip=0.2, loss_mask=mask, cu_seqlens=CU_SEQLENS,
        **settings)[0]


bounds = config(level="token", action="mask", metric="ratio", agg="mean", lower=0.75, upper=1.5)
differentiated("ppo", "AReaL, ppo_actor_loss_fn",
               lambda policy: areal_loss(policy, eps_clip_higher=0.28, c_clip=1.4))
differentiated("icepop", "AReaL, ppo_actor_loss_fn and apply_rejection_sampling",
               lambda policy: areal_loss(policy, rejection_sampling=bounds))
differentiated("gspo", "AReaL, ppo_actor_loss_fn",
               lambda policy: areal_loss(policy, importance_sampling_level="sequence"))
differentiated("sapo", "AReaL, sapo_loss_fn", lambda policy: sapo_loss_fn(
    policy, given["proximal"], given["advantages"], 1.0, 1.05,
    torch.ones(TOTAL, dtype=torch.bool))[0])
actor = AREAL / "areal/trainer/ppo/actor.py"
*_, m2po = load(actor, "_get_m2po_loss_mask", "_apply_m2po_masking")
kept = m2po(given["sampler"], given["proximal"], torch.ones(TOTAL, dtype=torch.bool), 0.04)
assert 0 < kept.sum() < TOTAL
differentiated("m2po", "AReaL, _apply_m2po_masking; its mean times kept ÷ all tokens",
               lambda policy: areal_loss(policy, kept) * kept.sum() / TOTAL, kept=kept)

# A prompt of one token before each completion.
gae = load(AREAL / "areal/trainer/ppo/gae.py", "_validate_turn_ids", "_compute_token_level_gae",
           "_compute_turn_level_gae", "_build_gae_lambda_context", GAELambdaContext=dict)
length, position = load(AREAL / "areal/trainer/ppo/lambda_fn.py", "vapo_length_adaptive_gae",
                        "relative_position_gae_lambda", math=math)
(advantages_of, lambdas_of) = load(
    actor, "PPOActor._compute_advantages", "PPOActor._compute_gae_lambda", math=math,
    **{one.__name__: one for one in gae})
before = lambda rows, value=0: F.pad(rows, (1, 0), value=value)


def gae_case(name, function=None, kwargs=None, value=0.9, unit="token"):
    """Advantages and returns with a constant λ, or with that of a function."""
    this = config(
        config=config(
            overlong_reward_penalty=False, use_decoupled_loss=False, recompute_logprob=False),
        reward_bias=0.0, reward_scaling=1.0, reward_clip=20.0, reward_norm=None, kl_ctl=0.1,
        kl_estimator=KLEstimator("k1"), mask_no_eos_with_zero=False, discount=0.97,
        gae_lambda=value, gae_lambda_fn=function, gae_lambda_kwargs=kwargs or {},
        _gae_lambda_is_custom=function is not None, gae_timestep_unit=unit, adv_norm=None)
    this._compute_gae_lambda = lambda *args: lambdas_of(this, *args)
    end = F.pad(padded(given["values"]), (0, 1))
    end[2, 7] = inputs["endValue"]
    turns = padded(torch.tensor(inputs["turns"])).masked_fill(~MASK, -1)
    data = advantages_of(this, {
        "input_ids": torch.zeros(6, 8), "attention_mask": before(MASK) | (torch.arange(8) == 0),
        "rewards": given["rewards"].float(), "loss_mask": before(MASK), "values": end,
        "turn_ids": before(turns, -1), "logprobs": before(padded(given["sampler"])),
        "ref_logp": F.pad(padded(given["reference"]), (0, 1))})
    source = "AReaL, PPOActor.compute_advantages"
    case(name, source + (f" with {function.__name__}" if function else ""),
         advantages=packed(data["advantages"]), returns=packed(data["returns"]))


gae_case("gae")
gae_case("gae/1", value=1.0)
gae_case("gae/length", length, {"alpha": 0.3})
gae_case("gae/position", position, {"q": 0.4})
gae_case("gae/turns", unit="turn")
gae_case("gae/turns/length", length, {"alpha": 0.8}, unit="turn")

# ---- verl ----------------------------------------------------------------------------------------
(verl_functional := types.SimpleNamespace()).__dict__.update(zip(
    ["masked_sum", "masked_mean", "masked_var", "masked_whiten"],
    load(VERL / "verl/utils/torch_functional.py",
         "masked_sum", "masked_mean", "masked_var", "masked_whiten")))
core = VERL / "verl/trainer/ppo/core_algos.py"
ActorConfig = type("ActorConfig", (types.SimpleNamespace,), {})
names = ["kl_penalty_forward", "kl_penalty", "agg_loss", "compute_policy_loss_gspo",
         "compute_policy_loss_cispo", "compute_policy_loss_gpg", "compute_policy_loss_vanilla",
         "compute_reinforce_plus_plus_outcome_advantage", "compute_gpg_outcome_advantage",
         "compute_reinforce_plus_plus_baseline_outcome_advantage"]
(_, kl_penalty, _, gspo, cispo, gpg, vanilla, plus_plus, gpg_advantages, baseline) = load(
    core, *names, verl_F=verl_functional, ActorConfig=ActorConfig, AlgoConfig=())


def verl_loss(loss, policy, low, high, mode="token-mean", old="proximal", advantages=None):
    settings = ActorConfig(
        clip_ratio=low, clip_ratio_low=low, clip_ratio_high=high, global_batch_info={},
        get=lambda name, default=None: default)
    advantages = given["advantages"] if advantages is None else advantages
    return loss(padded(given[old]), padded(policy), padded(advantages), MASK.double(), mode,
                settings)[0]


differentiated("gspoToken", "verl, compute_policy_loss_gspo", lambda policy: verl_loss(
    gspo, policy, 0.02, 0.03, "seq-mean-token-mean"))
differentiated("cispo", "verl, compute_policy_loss_cispo",
               lambda policy: verl_loss(cispo, policy, 0.1, 0.15))
at_ends = padded(torch.ones(TOTAL)) * 0
for row, (length, reward) in enumerate(zip(LENGTHS, REWARDS)):
    at_ends[row, length - 1] = reward
at_ends = at_ends.double()
of_gpg, _ = gpg_advantages(at_ends.clone(), MASK.double(), GROUPS)
differentiated("gpg", "verl, compute_gpg_outcome_advantage and compute_policy_loss_gpg",
               lambda policy: verl_loss(gpg, policy, 0, 0, advantages=packed(of_gpg)),
               advantages=packed(of_gpg))
kl = padded(kl_penalty(given["sampler"], given["reference"], "k1"))
found, _ = plus_plus(at_ends - 0.1 * kl, MASK.double(), config(gamma=1.0))
case("reinforcePlusPlus", "verl, compute_reinforce_plus_plus_outcome_advantage",
     advantages=packed(found))
found, _ = baseline(at_ends.clone(), MASK.double(), GROUPS)
case("reinforcePlusPlusBaseline",
     "verl, compute_reinforce_plus_plus_baseline_outcome_advantage", advantages=packed(found))
reverse = -kl_penalty(given["proximal"], given["reference"], "k1")
differentiated("distillation", "verl, distillation_loss with k1: kl_penalty and the policy loss",
               lambda policy: verl_loss(vanilla, policy, 0.2, 0.2, old="proximal",
                                        advantages=reverse), advantages=reverse)

# KL(policy ‖ teacher) beside the loss of rewards: the gradient is verl's, of k2. AReaL has the same
# loss and the gradient of k1, whose expectation is 0.
def joint(policy):
    return verl_loss(vanilla, policy, 0.2, 0.2) + 0.3 * kl_penalty(
        policy, given["reference"], "k1+").mean()


differentiated("joint", "verl, compute_policy_loss_vanilla and kl_penalty k1+", joint)
(methods,) = load(AREAL / "areal/utils/constants.py", "ProxLogpMethod", Enum=enum.Enum)
(grpo_loss,) = load(
    actor, "grpo_loss_fn", ppo_actor_loss_fn=ppo_actor_loss_fn, ProxLogpMethod=methods,
    PROX_LOGP_METHOD_RECOMPUTE="recompute", infer_token_denominator=lambda *_: None,
    _resolve_proximal_logp=lambda prox_logp_gt, **_: prox_logp_gt,
    _log_proximal_approximation_stats=lambda **_: 0,
    stats_tracker=config(denominator=lambda **_: 0, stat=lambda **_: 0, scalar=lambda **_: 0))
data = {"logprobs": given["sampler"], "advantages": given["advantages"],
        "loss_mask": torch.ones(TOTAL), "prox_logp": given["proximal"],
        "teacher_logp": given["reference"], "distill_loss_weight": 0.3}
found = grpo_loss(given["policy"], given["policy"], data, 0.2, None, None)
assert abs(found.item() - cases["joint"]["loss"]) < 1e-12, (found, cases["joint"]["loss"])

# ---- TRL and torch -------------------------------------------------------------------------------
sides = lambda values: torch.stack([part.sum() for part in torch.split(values, LENGTHS)]).view(3, 2)
(dpo_loss,) = load(TRL_0_24 / "trl/trainer/dpo_trainer.py", "DPOTrainer.dpo_loss",
                   FDivergenceType=config(ALPHA_DIVERGENCE=1, JS_DIVERGENCE=2))
for smoothing in [0.0, 0.1]:
    this = config(accelerator=config(device="cpu"), reference_free=False, f_divergence_type=0,
                  beta=0.3, label_smoothing=smoothing)
    other = sides(given["reference"])
    differentiated(f"dpo/{smoothing}", "TRL 0.24, DPOTrainer.dpo_loss", lambda policy: dpo_loss(
        this, *sides(policy).T, *other.T)[0].mean())
means = lambda policy: sides(policy - given["reference"]) / tensor(LENGTHS).view(3, 2)
differentiated("ipo", "AReaL, dpo_preference_loss", lambda policy: dpo_preference_loss(
    means(policy)[:, 0] - means(policy)[:, 1], beta=0.3, loss_type="ipo").mean())
(odds_ratio_loss,) = load(TRL_0_24 / "trl/trainer/orpo_trainer.py", "ORPOTrainer.odds_ratio_loss")
this = config(accelerator=config(device="cpu"), beta=0.3)
logps = lambda policy: sides(policy) / tensor(LENGTHS).view(3, 2)
differentiated("orpo", "TRL 0.24, ORPOTrainer.odds_ratio_loss, without the prompt", lambda policy: (
    -logps(policy)[:, 0] - odds_ratio_loss(this, *logps(policy).T)[0]).mean())
(reward_loss,) = load(TRL / "trl/trainer/reward_trainer.py", "RewardTrainer.compute_loss")
this = config(
    model=config(training=False), args=config(center_rewards_coefficient=None),
    _total_train_tokens=0,
    accelerator=config(gather=lambda one: one, gather_for_metrics=lambda one: one),
    _metrics={"eval": defaultdict(list)})
differentiated("rewardModel", "TRL, RewardTrainer.compute_loss", lambda scores: reward_loss(
    this, lambda **_: config(logits=torch.cat([scores[::2], scores[1::2]]).unsqueeze(1)), {}),
    "scores")
server = TRL / "trl/experimental/server_distillation/server_distillation_trainer.py"
divergence, tail = load(server, "_jsd_divergence", "_add_tail_bucket")
for count, temperature in [(3, 1.0), (3, 2.0), (8, 1.0)]:
    def top(student):
        teacher = (given["teacher"] / temperature).log_softmax(-1)
        student = (student / temperature).log_softmax(-1)
        chosen = teacher.topk(count).indices
        mask = torch.ones_like(chosen, dtype=torch.bool)
        both = [student.gather(-1, chosen), teacher.gather(-1, chosen)]
        if count < 8:
            (both[0], mask), (both[1], _) = tail(both[0], mask), tail(both[1], mask)
        return divergence(*both, 0, mask).sum() / 5 * temperature**2
    differentiated(f"offPolicy/{count}/{temperature}",
                   "TRL, _add_tail_bucket and _jsd_divergence, times T * T", top, "student")
bernoulli = lambda name: torch.distributions.Bernoulli(given[name].exp())
both = [bernoulli("proximal"), bernoulli("sampler")]
larger = torch.maximum(*(torch.distributions.kl_divergence(*pair) for pair in [both, both[::-1]]))
case("kpop", "torch, kl_divergence of Bernoulli, the larger one of both directions",
     divergences=larger)


def lines(value, indent):
    """JSON with a line for each list."""
    if not isinstance(value, dict):
        return json.dumps(value)
    pad = " " * indent
    members = [f'{pad} {json.dumps(key)}: {lines(one, indent + 1)}' for key, one in value.items()]
    return "{\n" + ",\n".join(members) + f"\n{pad}}}"


print(lines({"inputs": inputs, "cases": cases}, 0))
