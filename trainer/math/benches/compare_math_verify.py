"""Compares rljob-math with Math-Verify on the judged pairs of tests/suite.tsv.

Prints accuracy, false positives and false negatives of both. With -v, prints the wrong rows of
Math-Verify. Installs Math-Verify in a virtual environment below the cache folder on the first run.
"""

import os
import pathlib
import subprocess
import sys
import time

VERSION = "0.8.0"
ANTLR = "4.13.2"
CRATE = pathlib.Path(__file__).resolve().parent.parent
SUITE = CRATE / "tests" / "suite.tsv"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
ENVIRONMENT = CACHE / "rljob" / f"math-verify-{VERSION}"


def enter_environment():
    """Runs this script in the environment."""
    python = ENVIRONMENT / "bin" / "python"
    if pathlib.Path(sys.prefix) == ENVIRONMENT:
        return
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
    packages = [f"math-verify=={VERSION}", f"antlr4-python3-runtime=={ANTLR}"]
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages]
    subprocess.run(pip, check=True)
    os.execv(python, [python, *sys.argv])


def rows():
    for line in SUITE.read_text().splitlines():
        if not line.startswith("# "):
            yield line.split("\t")


def peer_verdicts():
    from math_verify import (
        ExprExtractionConfig,
        LatexExtractionConfig,
        StringExtractionConfig,
        parse,
        verify,
    )

    configs = [LatexExtractionConfig(), ExprExtractionConfig(), StringExtractionConfig()]
    for _, prediction, reference, _ in rows():
        gold = reference.split("####")[-1].strip()
        if "answer is" not in gold and "\\boxed" not in gold:
            gold = f"${gold}$"
        completion = f"Thus $\\boxed{{{prediction}}}$."
        if prediction.startswith("C:"):
            completion = prediction[2:].replace("⏎", "\n")
        try:
            expected = parse(gold, extraction_config=configs)
            yield verify(expected, parse(completion, extraction_config=configs))
        except Exception:  # A verdict that fails is not equal.
            yield False


def report(name, verdicts, seconds, verbose=False):
    judged = list(rows())
    assert len(verdicts) == len(judged)
    wrong = [(row, found) for row, found in zip(judged, verdicts) if found != (row[0] == "yes")]
    positives = [row for row, found in wrong if found]
    accuracy = 1 - len(wrong) / len(judged)
    negatives = len(wrong) - len(positives)
    print(
        f"{name}: {len(judged)} pairs, {accuracy:.2%} right, {len(positives)} false positives, "
        f"{negatives} false negatives, {seconds:.2f} s"
    )
    if verbose:
        for row, found in wrong:
            print("  false", "positive:" if found else "negative:", "\t".join(row[1:]))


def main():
    enter_environment()
    run = ["cargo", "run", "-q", "--release", "-p", "rljob-math", "--example", "verdicts", SUITE]
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
    start = time.monotonic()
    ours = subprocess.run(run, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    report("rljob-math", [verdict == "yes" for verdict in ours], time.monotonic() - start)
    import logging

    logging.disable(logging.CRITICAL)
    start = time.monotonic()
    peer = list(peer_verdicts())
    seconds = time.monotonic() - start
    report(f"Math-Verify {VERSION}", peer, seconds, verbose="-v" in sys.argv)


if __name__ == "__main__":
    main()
