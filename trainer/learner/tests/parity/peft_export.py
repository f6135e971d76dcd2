"""Logits of an adapter that PEFT loads, beside those of the merged model; of a classifier the
scores, and loss and gradients of pairs.

usage: peft_export.py CASE.json OUT.safetensors

{"base": folder, "adapter": folder, "merged": folder, "sequences": [[token, …], …],
 "isClassifier": bool}
"""
import json
import sys
import warnings

import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

warnings.simplefilter("error", UserWarning)  # of missing and unexpected keys
torch.set_num_threads(1)
case = json.load(open(sys.argv[1]))


is_classifier = case["isClassifier"]
automatic = AutoModelForSequenceClassification if is_classifier else AutoModelForCausalLM
options = {"num_labels": 1} if is_classifier else {}


def load(folder):
    return automatic.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **options
    )


def logits(model):
    return torch.cat([model(torch.tensor([tokens])).logits[0] for tokens in case["sequences"]])


model = PeftModel.from_pretrained(load(case["base"]), case["adapter"], is_trainable=is_classifier)
config = model.peft_config["default"]
assert config.task_type == ("SEQ_CLS" if is_classifier else "CAUSAL_LM"), config
out = {}
if is_classifier:
    # The first two sequences are a pair, and the last two.
    model.eval()
    scores = logits(model)
    loss = -torch.nn.functional.logsigmoid(scores[0::2] - scores[1::2]).mean()
    loss.backward()
    out["loss"] = loss
    for name, value in model.named_parameters():
        if value.requires_grad:
            name = name.removeprefix("base_model.model.").replace(".modules_to_save", "")
            out[name.replace(".default", "")] = value.grad
with torch.no_grad():
    out |= {"peft": logits(model), "merged": logits(load(case["merged"]))}
    if not is_classifier:
        out["base"] = logits(load(case["base"]))
    out["dropout"] = torch.tensor(config.lora_dropout, dtype=torch.float64)
    out["unloaded"] = logits(model.merge_and_unload())
save_file({name: value.detach() for name, value in out.items()}, sys.argv[2])
