#!/usr/bin/env python3
"""Compares rljob-math with Math-Verify on the same pairs of a completion and a reference answer.

usage: compare_math_verify.py FILE [FOLDER]

Pairs are those of tests/suite.tsv and, by suites.py, of the suites in FOLDER. Prints a row per
suite. FILE gets the pairs on which a verdict is wrong: tab-separated suite, form, judged verdict,
rljob-math's, Math-Verify's, reference, completion. Exit status 1 if fewer verdicts of rljob-math are
right than of Math-Verify in a suite, or it is less than 100 times as fast in all of them.
"""

import sys

import suites
import verdicts

SPEED = 100
COLUMNS = "{:22} {:>7} {:>13} {:>13} {:>8} {:>13} {:>11} {:>7}"


def compare(name, pairs, file):
    """Prints a row and returns its numbers: pairs, right verdicts of both, seconds of both."""
    inputs = [(pair.completion, pair.reference) for pair in pairs]
    ours, our_seconds = verdicts.ours(inputs)
    theirs, their_seconds = verdicts.theirs(inputs)
    judged = list(zip(pairs, ours, theirs))
    for pair, our, their in judged:
        if not pair.right == our == their:
            words = ["right" if each else "wrong" for each in (pair.right, our, their)]
            texts = [" ".join(text.split()) for text in (pair.reference, pair.completion)]
            print(name, pair.form, *words, *texts, sep="\t", file=file)
    found = Numbers(
        len(pairs),
        sum(pair.right == our for pair, our, _ in judged),
        sum(pair.right == their for pair, _, their in judged),
        sum(our == their for _, our, their in judged),
        our_seconds,
        their_seconds,
    )
    found.print(name)
    return found


class Numbers:
    def __init__(self, *numbers):
        self.numbers = numbers

    def __add__(self, other):
        return Numbers(*map(sum, zip(self.numbers, other.numbers)))

    def print(self, name):
        pairs, ours, theirs, agree, our_seconds, their_seconds = self.numbers
        print(
            COLUMNS.format(
                name,
                pairs,
                f"{ours} {ours / pairs:.1%}",
                f"{theirs} {theirs / pairs:.1%}",
                f"{agree / pairs:.1%}",
                f"{pairs / our_seconds:.0f}/s",
                f"{pairs / their_seconds:.1f}/s",
                f"{their_seconds / our_seconds:.0f}x",
            ),
            flush=True,
        )

    def holds(self):
        return self.numbers[1] >= self.numbers[2]


def main():
    verdicts.build()
    all_suites = [("own pairs", list(suites.own()))]
    if len(sys.argv) > 2:
        all_suites += suites.of_folder(sys.argv[2])
    print(
        COLUMNS.format("suite", "pairs", "right: ours", "Math-Verify", "agree", "speed", "", "ratio")
    )
    with open(sys.argv[1], "w") as file:
        found = [compare(name, pairs, file) for name, pairs in all_suites]
    total = sum(found[1:], found[0])
    total.print("all")
    fast = total.numbers[5] >= SPEED * total.numbers[4]
    sys.exit(not (fast and all(each.holds() for each in found)))


if __name__ == "__main__":
    main()
