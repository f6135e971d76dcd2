"""Verdicts of rljob-math and of Math-Verify on the same pairs of a completion and a reference."""

import logging
import subprocess
import tempfile
import time
from pathlib import Path

from math_verify import (
    ExprExtractionConfig,
    LatexExtractionConfig,
    StringExtractionConfig,
    parse,
    verify,
)

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "target/release/examples/verdicts"
EXTRACTION = [LatexExtractionConfig(), ExprExtractionConfig(), StringExtractionConfig()]

logging.disable(logging.CRITICAL)


def build():
    """Builds the program that prints verdicts of rljob-math."""
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--package", "rljob-math"]
    subprocess.run([*command, "--example", "verdicts"], check=True, cwd=ROOT)


def ours(pairs):
    """Verdicts of rljob-math, and the seconds of its program with its start."""
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rows:
        for completion, reference in pairs:
            text = completion.replace("\t", " ").replace("\r", "").replace("\n", "⏎")
            print("", f"C:{text}", " ".join(reference.split()), "", sep="\t", file=rows)
        rows.flush()
        start = time.monotonic()
        output = subprocess.run([PROGRAM, rows.name], check=True, stdout=subprocess.PIPE, text=True)
        seconds = time.monotonic() - start
    found = [verdict == "yes" for verdict in output.stdout.split()]
    assert len(found) == len(pairs)
    return found, seconds


def theirs(pairs):
    """Verdicts of Math-Verify, and its seconds. A verdict that fails is not equal."""
    start = time.monotonic()
    found = [peer_verdict(completion, reference) for completion, reference in pairs]
    return found, time.monotonic() - start


def peer_verdict(completion, reference):
    gold = reference.split("####")[-1].strip()
    if "answer is" not in gold and "\\boxed" not in gold and "$" not in gold:
        gold = f"${gold}$"
    try:
        expected = parse(gold, extraction_config=EXTRACTION)
        return verify(expected, parse(completion, extraction_config=EXTRACTION))
    except Exception:
        return False
