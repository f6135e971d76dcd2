"""Public suites of mathematical problems as judged pairs of a completion and a reference answer.

A suite is a file of JSON lines, whose name is the suite's. Its answers are in `answer`,
`final_answer` or `gt`, or in the last box of `solution`. Pairs, by form:
- solution: the suite's own solution, if it marks its final answer (right)
- the forms of rewritings.py: the answer in another way (right), another number in it (wrong)
- other: the answer of another row, and its solution if it marks its answer (wrong)
- model: completions of a model in `code`, judged by the file's `score`

`*.py` are tests of Math-Verify: calls of `parametrize` with a reference, a completion and a verdict.
"""

import ast
import json
import re
from dataclasses import dataclass
from pathlib import Path

import rewritings

OWN = Path(__file__).resolve().parent.parent / "tests" / "suite.tsv"


@dataclass(frozen=True)
class Pair:
    form: str
    right: bool
    completion: str
    reference: str


def own():
    """The judged pairs of this crate's tests."""
    for line in OWN.read_text().splitlines():
        if line.startswith("# "):
            continue
        verdict, prediction, reference, form = line.split("\t")
        completion = f"Thus $\\boxed{{{prediction}}}$."
        if prediction.startswith("C:"):
            completion = prediction[2:].replace("⏎", "\n")
        yield Pair(form, verdict == "yes", completion, reference)


def of_folder(folder):
    """Names and pairs of a folder's suites."""
    for path in sorted(Path(folder).glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        yield path.stem, list(of_rows(rows))
    tests = [pair for path in sorted(Path(folder).glob("*.py")) for pair in of_tests(path)]
    if tests:
        yield "Math-Verify's tests", tests


def of_rows(rows):
    answers = [answer(row) for row in rows]
    for index, row in enumerate(rows):
        reference = answers[index]
        if reference is None:
            continue
        for completion, right in zip(row.get("code", []), row.get("score", [])):
            yield Pair("model", right, completion, reference)
        if marked := marked_solution(row):
            yield Pair("solution", True, marked, reference)
        for form, right, completion in rewritings.of(reference):
            yield Pair(form, right, completion, reference)
        for other in different(index, answers):
            yield Pair("other", False, rewritings.box(answers[other]), reference)
            if marked := marked_solution(rows[other]):
                yield Pair("other", False, marked, reference)


def different(index, answers):
    """The next row whose answer has other numbers, letters or words than that of a row."""
    for step in range(1, len(answers)):
        other = (index + step) % len(answers)
        if answers[other] is not None and parts(answers[other]) != parts(answers[index]):
            return [other]
    return []


def parts(text):
    """Numbers and words of an answer, without the names before the last `=`."""
    return sorted(re.findall(r"[0-9.]+|[a-zA-Z]+", text.split("=")[-1]))


def answer(row):
    """The reference answer of a row, without dollars."""
    found = row.get("answer", row.get("final_answer", row.get("gt")))
    if isinstance(found, list):
        found = found[0] if len(found) == 1 else None
    if found is None and (boxed := last_box(solution(row))):
        found = boxed
    if found is None:
        return None
    return re.sub(r"(?<!\\)\$", "", str(found).split("####")[-1]).strip().rstrip(".") or None


def solution(row):
    found = row.get("solution", row.get("answer", ""))
    return found[0] if isinstance(found, list) else str(found)


def marked_solution(row):
    found = solution(row)
    return found if "####" in found or last_box(found) is not None else None


def last_box(text):
    """Content of the last box."""
    _, found, after = text.rpartition("\\boxed{")
    depth = 1
    for at, character in enumerate(after):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return after[:at] if found else None
    return None


def of_tests(path):
    for call in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "parametrize"):
            continue
        try:
            names, rows = map(ast.literal_eval, call.args)
        except ValueError:  # Rows that are computed.
            continue
        if re.fullmatch(r"gold, *pred, *(expected|result)", str(names)):
            for reference, completion, verdict in rows:
                yield Pair(path.stem, bool(verdict), completion, reference)
