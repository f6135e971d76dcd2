"""Generalized Advantage Estimation over packed sequences as a Python loop, for gae.rs.

A line `seconds` is answered with the duration of a pass, `sum` with the sum of the absolute values
of its advantages. Lists of floats are faster here than elements of tensors.
"""

import sys
import time

SEQUENCES = 1024
DISCOUNT, LAMBDA = 0.99, 0.95


def wave(tokens, factor):
    return [token * factor % 1999 / 1999 - 0.5 for token in range(tokens)]


def advantages(ends, found, values):
    """Replaces the rewards `found` by advantages; `ends` are the positions after the sequences."""
    start = 0
    for end in ends:
        next_value = next_advantage = 0.0
        for token in range(end - 1, start - 1, -1):
            delta = found[token] + DISCOUNT * next_value - values[token]
            next_advantage = delta + DISCOUNT * LAMBDA * next_advantage
            found[token] = next_advantage
            next_value = values[token]
        start = end


def main():
    ends, tokens = [], 0
    for sequence in range(SEQUENCES):
        tokens += 64 + sequence * 2741 % 4033
        ends.append(tokens)
    rewards, values = wave(tokens, 7), wave(tokens, 13)
    for line in sys.stdin:
        found = list(rewards)
        start = time.perf_counter()
        advantages(ends, found, values)
        seconds = time.perf_counter() - start
        print(seconds if line.strip() == "seconds" else sum(map(abs, found)), flush=True)


main()
