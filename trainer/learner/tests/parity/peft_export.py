"""Logits of an adapter that PEFT loads, beside those of the merged model, and of PEFT in training.

usage: peft_export.py CASE.json OUT.safetensors

{"base": folder, "adapter": folder, "merged": folder, "sequences": [[token, …], …]}
"""
import json
import sys
import warnings

import torch
from peft import PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

warnings.simplefilter("error", UserWarning)  # of missing and unexpected keys
torch.set_num_threads(1)
case = json.load(open(sys.argv[1]))


def load(folder):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


@torch.no_grad()
def logits(model):
    return torch.cat([model(torch.tensor([tokens])).logits[0] for tokens in case["sequences"]])


model = PeftModel.from_pretrained(load(case["base"]), case["adapter"])
config = model.peft_config["default"]
out = {"peft": logits(model), "base": logits(load(case["base"]))}
out["merged"] = logits(load(case["merged"]))
out["dropout"] = torch.tensor(config.lora_dropout, dtype=torch.float64)
out["unloaded"] = logits(model.merge_and_unload())
save_file(out, sys.argv[2])
