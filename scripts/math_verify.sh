#!/usr/bin/env bash
# Compares Math-Verify with the judged pairs of the math reward: pairs that it gets right, wrong
# answers that it accepts, and right answers that it rejects. The reward's figures are printed by
# `cargo test --workspace --lib judged_pairs -- --nocapture`.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.9.0
venv=${XDG_CACHE_HOME:-$HOME/.cache}/rljob/math-verify-$version
if [[ ! -x $venv/bin/math-verify-ready ]]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet "math-verify[antlr4_13_2]==$version"
  ln -s python3 "$venv/bin/math-verify-ready"
fi
"$venv/bin/python3" - trainer/coordinator/tests/fixtures/math-pairs.tsv <<'PYTHON'
import sys

from math_verify import parse, verify

pairs, accepted, rejected = 0, [], []
for line in open(sys.argv[1], encoding="utf-8"):
    if line.startswith("# "):
        continue
    reference, equal, other = line.rstrip("\n").split("\t")
    gold = parse(f"\\boxed{{{reference}}}")
    for forms, expected, wrong in [(equal, True, rejected), (other, False, accepted)]:
        for form in forms.split("¦"):
            pairs += 1
            answer = parse(f"So it is $\\boxed{{{form}}}$.")
            if verify(gold, answer) != expected:
                wrong.append(f"{reference}   {form}")
print("\n".join(["accepted although wrong:"] + accepted + ["rejected although right:"] + rejected))
right = pairs - len(accepted) - len(rejected)
print(f"Math-Verify: {right} of {pairs} pairs right, "
      f"{len(accepted)} wrong answers accepted, {len(rejected)} right answers rejected")
PYTHON
