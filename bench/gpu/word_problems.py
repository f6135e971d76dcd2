#!/usr/bin/env python3
"""Generates word problems of GSM8K's form that a small model can learn.

usage: word_problems.py FOLDER [--train 8000] [--test 1319] [--seed 1]

Writes FOLDER/words-train.jsonl and FOLDER/words-test.jsonl: objects with `question` and `answer`, a
worked solution whose last line is `#### NUMBER`, as in GSM8K (Cobbe et al., "Training Verifiers to
Solve Math Word Problems", 2021). A problem is a chain of one to four steps about one quantity, with
numbers of at most three digits. No question of the training set is in the test set.
"""

import argparse
import json
import random
from pathlib import Path

NAMES = ["Ana", "Ben", "Carla", "Dev", "Emma", "Farid", "Grace", "Hugo", "Iris", "Jon", "Kira"]
THINGS = ["apples", "books", "cards", "coins", "marbles", "pencils", "shells", "stamps", "tickets"]
CONTAINERS = ["bags", "boxes", "jars", "packs"]
LARGEST = 999


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=8_000)
    parser.add_argument("--test", type=int, default=1_319)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def start(draw, name, thing):
    """First sentence, first line of the solution, value."""
    if draw.random() < 0.5:
        count = draw.randint(5, 60)
        return f"{name} has {count} {thing}.", f"{name} starts with {count} {thing}.", count
    containers, each = draw.randint(2, 12), draw.randint(3, 20)
    container = draw.choice(CONTAINERS)
    count = containers * each
    return (
        f"{name} has {containers} {container} with {each} {thing} each.",
        f"{name} starts with {containers} * {each} = {count} {thing}.",
        count,
    )


def buys(draw, name, thing, count):
    more = draw.randint(2, 80)
    line = f"After buying, there are {count} + {more} = {count + more} {thing}."
    return f"{name} buys {more} more.", line, count + more


def gives(draw, name, thing, count):
    friend = draw.choice([other for other in NAMES if other != name])
    fewer = draw.randint(1, max(1, count - 1))
    line = f"After giving {fewer} away, there are {count} - {fewer} = {count - fewer} {thing}."
    return f"{name} gives {fewer} of them to {friend}.", line, count - fewer


def shares(draw, name, thing, count):
    people = draw.choice([each for each in range(2, 10) if count % each == 0] or [1])
    if people == 1:
        return buys(draw, name, thing, count)
    line = f"Everyone gets {count} / {people} = {count // people} {thing}."
    text = f"{name} shares them equally among {people} people and keeps one of the shares."
    return text, line, count // people


def multiplies(draw, name, thing, count):
    factor, word = draw.choice([(2, "twice"), (3, "three times"), (4, "four times")])
    text = f"A month later {name} has {word} as many."
    line = f"A month later there are {count} * {factor} = {count * factor} {thing}."
    return text, line, count * factor


STEPS = [buys, gives, shares, multiplies]


def problem(draw):
    name, thing = draw.choice(NAMES), draw.choice(THINGS)
    sentence, line, count = start(draw, name, thing)
    sentences, lines = [sentence], [line]
    for _ in range(draw.randint(1, 4)):
        sentence, line, result = draw.choice(STEPS)(draw, name, thing, count)
        if not 1 <= result <= LARGEST:
            continue
        count = result
        sentences.append(sentence)
        lines.append(line)
    question = " ".join([*sentences, f"How many {thing} does {name} have in the end?"])
    return dict(question=question, answer="\n".join([*lines, f"#### {count}"]))


def distinct(draw, number):
    found = {}
    while len(found) < number:
        each = problem(draw)
        found.setdefault(each["question"], each)
    problems = list(found.values())
    draw.shuffle(problems)  # short problems are found first
    return problems


def main():
    settings = arguments()
    problems = distinct(random.Random(settings.seed), settings.train + settings.test)
    settings.folder.mkdir(parents=True, exist_ok=True)
    parts = dict(train=problems[settings.test :], test=problems[: settings.test])
    for name, part in parts.items():
        lines = "".join(json.dumps(each) + "\n" for each in part)
        (settings.folder / f"words-{name}.jsonl").write_text(lines)


main()
