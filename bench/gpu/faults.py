#!/usr/bin/env python3
"""Injects faults into a job on GPUs, one after another, and appends a row for each to a file.

usage: faults.py RLJOB JOB [--faults NAME ...] [--set PATH=VALUE ...] [--share-gpus PERCENT]
                 [--out results.jsonl]

JOB is a file with a GRPO job whose engine and learners are on GPUs, such as faults.yaml. With
--share-gpus, all are on one GPU and weights go by disk. Each fault strikes after two
steps without one, `learner-killed-restored` after a checkpoint is complete. A row says how many
seconds passed until the next step was trained, by phase: until the run restarted its learners,
until they were ready, until the step. For engines there is one phase. A run that trains no step
within --patience seconds after a fault has failed. After 60 seconds without one, the stacks of SGLang's processes
(`py-spy`, if it is installed) and the ends of all logs are written to DIR-FAULT.txt.

Faults: `learner-killed`, `learner-killed-restored` and `learner-stopped` (SIGKILL and SIGSTOP for
the first learner, after the engine got the weights of a step), `learner-killed-sending` (SIGKILL
when a step is trained, while its weights are sent), `receiver-stopped` (SIGSTOP for SGLang's
scheduler before weights are sent to it; SIGKILL after ten seconds, in the transfer) and
`engine-killed` (SIGKILL for the scheduler).
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import results

FAULTS = [
    "learner-killed",
    "learner-killed-restored",
    "learner-killed-sending",
    "learner-stopped",
    "receiver-stopped",
    "engine-killed",
]
# Seconds without a trained step after which the state of the processes is written.
STUCK = 60
AIMS = {"learner-killed": 10, "learner-killed-restored": 10}
TIME = re.compile(r"^(?:\[rank \d+\] )?(\d{4}-\d\d-\d\dT[\d:.]+)Z")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rljob")
    parser.add_argument("job", type=Path)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--share-gpus", type=int, metavar="PERCENT")
    parser.add_argument("--dir", type=Path, default=Path("/opt/fault-runs"))
    parser.add_argument("--patience", type=int, default=180)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.jsonl")
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


def descendants(parent):
    """Process ids and command lines below a process."""
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                line = (entry / "cmdline").read_bytes()
                commands[int(entry.name)] = line.decode(errors="replace")
                parents[int(entry.name)] = int(fields[1])
            except (OSError, IndexError):
                continue
    found = [parent]
    for process in found:
        found += [child for child, above in parents.items() if above == process]
    return {process: commands[process] for process in found[1:]}


class Run:
    def __init__(self, settings):
        self.settings, self.metrics = settings, None
        command = [settings.rljob, "run", "-f", str(settings.job), "--dir", str(settings.dir)]
        command += ["--engine-command", f"{sys.executable} -m sglang.launch_server"]
        sets = list(settings.set)
        if settings.share_gpus is not None:
            command += [f"--share-gpus={settings.share_gpus}"]
            sets.append("spec.weightSync.method=Disk")
        command += [argument for each in sets for argument in ("--set", each)]
        self.log = open(f"{settings.dir}.log", "w")
        # The logs of a run that is stuck say what the coordinator waits for.
        environment = dict(os.environ, RUST_LOG="info,rljob_coordinator=debug")
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=subprocess.STDOUT, env=environment
        )

    def steps(self):
        """Steps that were trained, with their attempts, in the order in which they were."""
        for file in self.settings.dir.glob("*/*/metrics.jsonl"):
            whole, _, _ = file.read_text().rpartition("\n")  # without a line that is being written
            lines = [json.loads(line) for line in whole.splitlines()]
            return [(line["attempt"], line["step"]) for line in lines]
        return []

    def checkpoints(self):
        """Folders of complete checkpoints."""
        return {file.parent for file in self.settings.dir.glob("*/*/checkpoints/*/manifest.json")}

    def wait(self, condition, seconds):
        """Seconds until the condition holds, or None."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            if condition():
                return time.monotonic() - started
            if self.process.poll() is not None:
                return None
            time.sleep(0.02)
        return None

    def pids(self, name):
        below = descendants(self.process.pid)
        return sorted(process for process, command in below.items() if name in command)

    def logged(self, text, since):
        """Seconds from `since` to the first line of a log with this text after it, or None."""
        times = []
        for file in self.settings.dir.glob("*/*/logs/*.log"):
            for line in file.read_text(errors="replace").splitlines():
                match = TIME.match(line) if text in line else None
                if match:
                    stamp = datetime.fromisoformat(match[1][:26] + "+00:00").timestamp()
                    times += [stamp - since] if stamp > since else []
        return round(min(times), 2) if times else None

    def describe(self, fault):
        """Writes what the processes of a stuck run do, and the end of its logs, to a file."""
        with open(f"{self.settings.dir}-{fault}.txt", "w") as out:
            for process in self.pids("sglang") + self.pids("rljob-learner"):
                line = descendants(self.process.pid).get(process, "").replace("\0", " ")
                print(f"== {process} {line[:120]}", file=out, flush=True)
                dump = ["py-spy", "dump", "--native", "--pid", str(process)]
                try:
                    subprocess.run(dump, stdout=out, stderr=subprocess.STDOUT, timeout=30)
                except (FileNotFoundError, subprocess.TimeoutExpired) as error:
                    print(error, file=out)
                kernel = Path(f"/proc/{process}/wchan")
                print("waits in", kernel.read_text() if kernel.exists() else "?", file=out)
            for file in sorted(self.settings.dir.glob("*/*/logs/*.log")):
                lines = file.read_text(errors="replace").splitlines()[-300:]
                print(f"== {file}", *lines, sep="\n", file=out)
        print(f"{fault}: no step for {STUCK} s: see {out.name}", flush=True)

    def strike(self, fault):
        """Strikes, and returns the time."""
        if fault.startswith("learner") and not fault.endswith("sending"):
            trained = time.time()
            self.wait(lambda: self.logged("updated an engine's weights", trained), 60)
        wall = time.time()
        if fault.startswith("learner"):
            number = signal.SIGKILL if "killed" in fault else signal.SIGSTOP
            os.kill(self.pids("rljob-learner")[0], number)
            return wall
        schedulers = self.pids("sglang::scheduler")
        if fault == "receiver-stopped":
            for process in schedulers:
                os.kill(process, signal.SIGSTOP)
            self.wait(lambda: False, 10)
        for process in schedulers:
            os.kill(process, signal.SIGKILL)
        return wall

    def inject(self, fault):
        """Figures of a fault, or None if the run did not go on."""
        if fault == "learner-killed-restored":
            known = self.checkpoints()
            if self.wait(lambda: self.checkpoints() - known, self.settings.patience) is None:
                return None
        count = len(self.steps())
        steps = 1 if fault == "learner-killed-restored" else 2
        if self.wait(lambda: len(self.steps()) >= count + steps, self.settings.patience) is None:
            return None
        before = self.steps()
        wall = self.strike(fault)
        attempt, step = before[-1]
        if fault.startswith("learner"):
            done = lambda: any(each[0] > attempt for each in self.steps())
        else:
            # One step may have its samples already.
            done = lambda: any(each[1] > step + 1 for each in self.steps())
        seconds = self.wait(done, min(STUCK, self.settings.patience))
        if seconds is None:
            self.describe(fault)
            seconds = self.wait(done, self.settings.patience - STUCK)
        if seconds is None:
            return None
        figures = dict(seconds=round(time.time() - wall, 2), step=step, next=self.steps()[-1])
        if fault.startswith("learner"):
            figures["restart_s"] = self.logged("restarts=", wall)
            figures["loaded_s"] = self.logged("loaded the models", wall)
            figures["ready_s"] = self.logged("the learner is ready", wall)
            figures["weights_s"] = self.logged("sent the weights", wall)
        return figures


def main():
    settings = arguments()
    gpus = results.gpus()
    place, suffix = f"2 x {gpus[0]}", ""
    if settings.share_gpus is not None:
        place, suffix = gpus[0], "-shared-gpu"
    run, failed = Run(settings), []
    try:
        if run.wait(lambda: len(run.steps()) >= 1, 300) is None:
            sys.exit(f"the job trained no step: see {run.log.name}")
        for fault in settings.faults:
            figures = run.inject(fault)
            aim = AIMS.get(fault)
            holds = figures is not None and (aim is None or figures["seconds"] <= aim)
            row = dict(
                name=fault + suffix,
                ratio=None,
                aim=aim,
                holds=holds,
                gpu=place,
                command=f"bench/gpu/faults.py {settings.job.name}",
                commit=settings.commit,
                note="seconds from the fault to the next trained step",
                figures=figures,
            )
            results.append(settings.out, row)
            print(f"bench {fault} {figures}", flush=True)
            if figures is None:
                failed.append(fault)
                break
    finally:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGINT)
            run.wait(lambda: False, 60)
        if run.process.poll() is None:
            run.process.kill()
    sys.exit(f"no step after {failed}" if failed else 0)


if __name__ == "__main__":
    main()
