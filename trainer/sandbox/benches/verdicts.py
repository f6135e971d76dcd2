#!/usr/bin/env python3
"""Verdicts per second of programs with 10 tests each, beside a runner of plain subprocesses.

    verdicts.py [--sandbox target/release/rljob-sandbox] [--programs 40] [--rounds 3]

The peer runs `python3 program.py` for each test with limits of time, memory, processes and file
size, and without isolation. Both run two programs at a time. Rounds alternate; figures are medians.
"""

import argparse
import json
import resource
import statistics
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = 10
WORKERS = 2
PROGRAM = """
def primes(limit):
    sieve = bytearray([1]) * (limit + 1)
    for n in range(2, limit + 1):
        if sieve[n]:
            yield n
            sieve[n * n::n] = bytes(len(range(n * n, limit + 1, n)))

limit = int(input())
print(sum(primes(limit)))
"""
LIMITS = {
    "compile_seconds": 10,
    "test_seconds": 5,
    "total_seconds": 60,
    "memory_mib": 512,
    "processes": 16,
    "output_kib": 1024,
    "files_mib": 64,
}


def answer(limit):
    return sum(n for n in range(2, limit + 1) if all(n % d for d in range(2, int(n**0.5) + 1)))


def limit_process():
    resource.setrlimit(resource.RLIMIT_CPU, (5, 6))
    resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
    resource.setrlimit(resource.RLIMIT_NPROC, (1024, 1024))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, 64 << 20))


def run_plain(inputs, outputs, programs):
    """Seconds of the peer."""

    def verdict(_):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.py"
            path.write_text(PROGRAM)
            found = [
                subprocess.run(
                    ["/usr/bin/python3", path],
                    input=text,
                    capture_output=True,
                    text=True,
                    timeout=10,
                    preexec_fn=limit_process,
                ).stdout.strip()
                for text in inputs
            ]
        return found == outputs

    start = time.perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        assert all(pool.map(verdict, range(programs)))
    return time.perf_counter() - start


class Judges:
    """Judges that stay open, as in a run."""

    def __init__(self, sandbox, namespaces):
        settings = {"limits": LIMITS, "compiles": False, "stops_at_failure": True}
        command = [sandbox, "judge", "--settings", json.dumps(settings)]
        command += [] if namespaces else ["--no-namespaces"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.judges = [subprocess.Popen(command, **pipes) for _ in range(WORKERS)]

    def run(self, tests, programs):
        """Seconds for all programs."""
        request = {"id": 1, "language": "Python", "program": PROGRAM, "tests": tests}
        line = json.dumps(request) + "\n"

        def serve(judge):
            for _ in range(programs // WORKERS):
                judge.stdin.write(line)
                judge.stdin.flush()
                outcomes = json.loads(judge.stdout.readline())["outcomes"]
                assert outcomes == ["Passed"] * TESTS, outcomes

        threads = [threading.Thread(target=serve, args=[judge]) for judge in self.judges]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start

    def close(self):
        for judge in self.judges:
            judge.stdin.close()
            judge.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sandbox", default="target/release/rljob-sandbox")
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    inputs = [f"{1000 + 37 * index}\n" for index in range(TESTS)]
    outputs = [str(answer(int(text))) for text in inputs]
    tests = json.dumps({"inputs": inputs, "outputs": outputs})
    judges = {name: Judges(arguments.sandbox, name == "namespaces")
              for name in ("namespaces", "no-namespaces")}
    for judge in judges.values():
        judge.run(tests, WORKERS)
    rounds = []
    for _ in range(arguments.rounds):
        times = {"plain": run_plain(inputs, outputs, arguments.programs)}
        for name, judge in judges.items():
            times[name] = judge.run(tests, arguments.programs)
        rounds.append({name: arguments.programs / seconds for name, seconds in times.items()})
    for judge in judges.values():
        judge.close()
    speed = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    print("verdicts per second:", {name: round(value, 1) for name, value in speed.items()})
    for name in judges:
        ratio = statistics.median(each[name] / each["plain"] for each in rounds)
        print(f"bench code-verdicts-{name} {ratio:.2f} 3 {'holds' if ratio >= 3 else 'short'}")


main()
