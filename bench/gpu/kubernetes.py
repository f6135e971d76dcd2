#!/usr/bin/env python3
"""Runs a GRPO job on a Kubernetes node of this machine, with one GPU for SGLang and one for the
learner, and appends a row with the time of a transfer of weights between the pods to a file.

usage: kubernetes.py [--programs FOLDER ...] [--bundle FOLDER] [--model FOLDER] [--data FILE]
                     [--check] [--stand-in] [--shared-memory] [--share-gpu] [--out results.jsonl]
                     [--commit SHA]

Needs root, two NVIDIA GPUs (one with --share-gpu), PyTorch and SGLang for the calling Python, and
a machine that may be changed: programs of nodes that it lacks are copied to /usr. Control plane,
containerd and the device plugin come from --bundle (kubernetes_bundle.sh) and end with the script.
`--check` ends after two pods have shown their GPU. `--stand-in` needs no GPU: the embedded engine
and a learner on CPUs run with stand-ins of GPUs, which the device plugin advertises under another
name.
`--shared-memory` gives engine and trainer a folder of the machine's /dev/shm, over which NCCL
connects them instead of over sockets. With `--share-gpu`, engine and learner use one GPU in turns,
and weights go by disk.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import job
import node
import results

FOLDER = Path(__file__).resolve().parent
CHECKOUT = FOLDER.parent.parent
WORK = Path("/opt/kubernetes")
ALL_SECONDS = 470
STARTED = time.monotonic()
PHASES = {}  # seconds by name


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=Path, nargs="+", default=[])
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--model", type=Path, default=Path("/opt/models/smol"))
    parser.add_argument("--data", type=Path, default=Path("/opt/data/words-train.jsonl"))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--shared-memory", action="store_true")
    parser.add_argument("--share-gpu", action="store_true")
    parser.add_argument("--out", type=Path, default=FOLDER / "results.jsonl")
    parser.add_argument("--commit", default="unknown")
    settings = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    settings.kubernetes = [cache / "rljob/kube-1.37.0"]
    if settings.bundle:
        settings.kubernetes = [settings.bundle / "bin"]
        settings.programs += settings.kubernetes
    settings.programs = [each.resolve() for each in settings.programs]
    settings.resource = "example.com/gpu" if settings.stand_in else "nvidia.com/gpu"
    return settings


@contextmanager
def phase(name, seconds):
    """Ends a phase that takes longer, and prints its time."""
    left = max(1, round(min(seconds, ALL_SECONDS - (time.monotonic() - STARTED))))

    def stop(*_):
        raise TimeoutError(f"phase {name} took more than {left} s")

    started = time.monotonic()
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(left)
    try:
        yield
    finally:
        signal.alarm(0)
        PHASES[name] = round(time.monotonic() - started, 1)
        print(f"phase {name}: {PHASES[name]} s", flush=True)


class Cluster:
    """One node, which ends with the standard input of rljob-test-cluster."""

    def __init__(self, settings, root):
        program = node.find(settings.programs, "rljob-test-cluster")
        devices, replicas = ("=1", "2") if settings.share_gpu else ("=2", "1")
        gpus = settings.resource + (devices if settings.stand_in else "")
        command = [program, "1", "--folder", f"{job.IMAGE}={root}", "--gpus", gpus]
        command += ["--gpu-replicas", replicas]
        variables = os.environ | {"KUBEBUILDER_ASSETS": str(settings.kubernetes[0])}
        self.lines, self.kubeconfig = [], None
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables,
            start_new_session=True,
        )
        self.kubectl_program = node.find(settings.kubernetes, "kubectl")
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if line.startswith("export KUBECONFIG="):
                self.kubeconfig = line.strip().partition("=")[2]

    def wait(self):
        while self.kubeconfig is None:
            if self.process.poll() is not None:
                sys.exit("the cluster did not start:\n" + "\n".join(self.lines)[-6000:])
            time.sleep(0.2)

    def kubectl(self, *arguments, text=None, check=True):
        command = [self.kubectl_program, f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=100)
        if check and done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-1500:]}")
        return done.stdout

    def apply(self, *objects):
        items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--filename=-", text=json.dumps(items))

    def stop(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def check(cluster, settings, context):
    """Two pods at once show their GPU; each must have another one, unless they share it."""
    names = ["check-0", "check-1"]
    cluster.apply(*(job.check_pod(name, settings, context) for name in names))
    seen = []
    for name in names:
        until = "--for=jsonpath={.status.phase}=Succeeded"
        cluster.kubectl("wait", until, f"pod/{name}", "--timeout=80s")
        output = cluster.kubectl("logs", name)
        print(output, flush=True)
        seen.append(set(re.findall(r"/dev/nvidia\d+", output)))
    cluster.kubectl("delete", "pods", *names, "--wait")
    are_equal = seen[0] == seen[1]
    if [len(each) for each in seen] != [1, 1] or are_equal != settings.share_gpu:
        raise RuntimeError(f"pods with one GPU each saw {seen}")


def install_operator(cluster):
    manifest = (CHECKOUT / "manifests/install.yaml").read_text()
    manifest = re.sub(r'image: "rljob:[^"]*"', f'image: "{job.IMAGE}"', manifest)
    program = "- /usr/local/bin/rljob-operator\n"
    flag = re.search(f"( *){program}", manifest)
    manifest = manifest.replace(flag[0], f"{flag[0]}{flag[1]}- --allow-host-path\n")
    cluster.kubectl("apply", "--filename=-", text=manifest)
    rollout = ["rollout", "status", "deployment/rljob-operator", "--timeout=80s"]
    cluster.kubectl("--namespace=rljob-system", *rollout)


def wait_for_success(cluster):
    shown = None
    while True:
        status = json.loads(cluster.kubectl("get", f"rljob/{job.NAME}", "-o", "json"))
        status = status.get("status", {})
        true = {each["type"]: each for each in status.get("conditions", [])
                if each["status"] == "True"}
        step = status.get("progress", {}).get("step", 0)
        now = (sorted(true), step)
        if now != shown:
            print(f"  {time.monotonic() - STARTED:5.1f} s: {', '.join(now[0])}; step {step}",
                  flush=True)
            shown = now
        if "Succeeded" in true:
            return
        for failure in ("Failed", "Stalled"):
            if failure in true:
                raise RuntimeError(f"the job is {failure}: {true[failure].get('message')}")
        time.sleep(1)


def report(cluster):
    """Objects, events and the last lines of logs, for a reader with 12,000 characters."""
    def show(*arguments, last):
        print(f"── kubectl {' '.join(arguments)}")
        print(cluster.kubectl(*arguments, check=False)[-last:], flush=True)

    if cluster.kubeconfig is None:
        return print("\n".join(cluster.lines)[-6000:])
    kubelet = Path(cluster.kubeconfig).parent.parent / "logs/node-1-kubelet.log"
    errors = [line for line in kubelet.read_text(errors="replace").splitlines() if line[:1] == "E"
              and "status_manager" not in line]
    print("── kubelet\n" + "\n".join(line[:300] for line in errors[-6:]))
    show("get", "pods", "--all-namespaces", "--output=wide", last=1200)
    show("get", "events", "--sort-by=.lastTimestamp", last=1500)
    status = "jsonpath={range .items[*].status.conditions[*]}{.type}={.status} {.message}{'\\n'}"
    show("get", "rljobs", f"--output={status}{{end}}", last=1000)
    for pod in cluster.kubectl("get", "pods", "--output=name", check=False).split():
        show("logs", pod, "--all-containers", "--tail=25", last=1400)
        show("logs", pod, "--all-containers", "--tail=15", "--previous", last=800)
    return show("--namespace=rljob-system", "logs", "deployment/rljob-operator", "--tail=5",
                last=800)


def row(settings, context):
    """Seconds of the transfers after the first, and the transports in the logs of NCCL."""
    metrics = (context.runs / "default" / job.NAME / "metrics.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["syncSeconds"] for line in metrics]
    logs = [file.read_text(errors="replace") for file in context.nccl.iterdir()]
    transports = sorted({found for log in logs for found in re.findall(r" via (\S+)", log)})
    size = sum(file.stat().st_size for file in settings.model.glob("*.safetensors"))
    gpus = ["none"] if settings.stand_in else results.gpus()
    flags = [flag for flag in ("shared_memory", "share_gpu") if getattr(settings, flag)]
    flags = "".join(f" --{flag.replace('_', '-')}" for flag in flags)
    way = "on disk, on one GPU" if settings.share_gpu else "on one node"
    return dict(
        name="kubernetes-shared-gpu" if settings.share_gpu else "kubernetes-weight-sync",
        ratio=None,
        aim=None,
        holds=True,
        gpu=f"{len(gpus)} x {gpus[0]}",
        command=f"bench/gpu/kubernetes.py{flags}",
        commit=settings.commit,
        note="seconds of a transfer of weights from a learner's pod to SGLang's pod " + way,
        figures=dict(
            sync_s=round(statistics.median(seconds[1:]), 4), sync_first_s=round(seconds[0], 4),
            weights_bytes=size, transports=transports, steps=len(seconds), phases_s=PHASES,
        ),
    )


def terminated(*_):
    raise TimeoutError("terminated")


def main():
    settings = arguments()
    signal.signal(signal.SIGTERM, terminated)  # the state is printed and the cluster stopped
    with phase("machine", 90):
        context = job.Context(WORK)
        if settings.bundle:
            node.install(settings.bundle)
        driver = "no driver" if settings.stand_in else node.load_driver()
        print(f"  {node.prepare_cgroups()}, {node.facts()}, {driver}", flush=True)
        context.prepare(settings)
    cluster = None
    try:
        with phase("cluster", 150):
            cluster = Cluster(settings, context.root)
            cluster.wait()
        with phase("check", 90):
            check(cluster, settings, context)
        if settings.check:
            return
        with phase("operator", 90):
            install_operator(cluster)
        with phase("job", 360):
            cluster.apply(job.rljob(settings, context))
            wait_for_success(cluster)
        result = row(settings, context)
        print(json.dumps(result), flush=True)
        if not settings.stand_in:
            results.append(settings.out, result)
    except (RuntimeError, TimeoutError, subprocess.SubprocessError) as error:
        print(f"failed: {error}", flush=True)
        if cluster is not None:
            report(cluster)
        sys.exit(1)
    finally:
        if cluster is not None:
            started = time.monotonic()
            cluster.stop()
            print(f"phase stop: {time.monotonic() - started:.1f} s", flush=True)
        for folder in (context.root, context.shm):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
