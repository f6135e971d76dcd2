"""The job of kubernetes.py, and the pods that show what a container with a GPU sees."""

import subprocess
import sys
from pathlib import Path

import node

NAME = "kubernetes"
IMAGE = "rljob.local/gpu:test"
STEPS = 8
SAMPLES = Path(__file__).resolve().parent.parent.parent / "manifests/samples/quickstart"
# Prints the device nodes of GPUs, then what CUDA finds.
SHOW = """ls /dev/nvidia[0-9]*; echo "NVIDIA_VISIBLE_DEVICES=$NVIDIA_VISIBLE_DEVICES"
if command -v nvidia-smi >/dev/null; then nvidia-smi -L; fi"""
COMPUTE = """
python3 -c 'import torch
print(torch.cuda.device_count(), "GPU,", torch.ones(8, device="cuda").sum().item(), "is 8")'"""
EXTRA = [
    "--attention-backend=triton",
    "--mem-fraction-static=0.4",
    "--max-running-requests=64",
    "--cuda-graph-max-bs=64",
    "--disable-piecewise-cuda-graph",
]


def programs(settings):
    """Programs of the image."""
    if settings.check:
        return ["rljob-operator"]
    roles = ["operator", "coordinator", "supervisor", "learner"]
    return [f"rljob-{name}" for name in roles + (["engine"] if settings.stand_in else [])]


class Context:
    """Folders of a run on the machine."""

    def __init__(self, work):
        self.root, self.runs, self.nccl = work / "root", work / "runs", work / "nccl"
        self.data, self.shm = work / "data", Path("/dev/shm/rljob-kubernetes")
        self.mounts, self.as_root = {}, False

    def prepare(self, settings):
        for folder in (self.runs, self.nccl, self.shm):
            subprocess.run(["rm", "-rf", str(folder)], check=True)
            folder.mkdir(parents=True)
            folder.chmod(0o777)
        node.make_root(self.root, settings.programs, programs(settings))
        folders = [Path("/opt")]
        if settings.stand_in:
            make = [sys.executable, str(SAMPLES / "make_data.py"), str(self.data)]
            subprocess.run(make, check=True)
            libtorch = SAMPLES.parent.parent.parent / ".libtorch"
            folders.append(libtorch.resolve())
        self.mounts = node.mounts(folders)
        self.as_root = not node.readable_by_pods()
        if not settings.stand_in and not settings.check:
            node.compile_modules()
            files = [*filter(Path.is_file, settings.model.iterdir()), settings.data]
            if not self.as_root and (error := node.unreadable(files)):
                sys.exit(f"pods run as {node.USER}: {error}: chmod -R a+rX its folder")
        print(f"  pods run as {'root' if self.as_root else node.USER}, with {list(self.mounts)}")


def volumes(context):
    """Volumes of pods with their mounts, as in spec.volumes of an RLJob."""
    shared = {path: (source, True) for path, source in context.mounts.items()}
    shared["/nccl"] = (str(context.nccl), False)
    return [
        {"name": f"host-{number}", "mountPath": path, "readOnly": read_only,
         "hostPath": {"path": source}}
        for number, (path, (source, read_only)) in enumerate(shared.items())
    ]


def variables(settings):
    found = node.environment()
    found["NCCL_DEBUG"], found["NCCL_DEBUG_FILE"] = "INFO", "/nccl/%h.%p.log"
    found["PYTHONDONTWRITEBYTECODE"] = "1"
    if settings.stand_in:
        found["LD_LIBRARY_PATH"] += f":{(SAMPLES.parent.parent.parent / '.libtorch').resolve()}/lib"
    if settings.shared_memory:
        # Otherwise the name of the host, which differs between pods.
        found["NCCL_HOSTID"] = "one-node"
        # A container with one GPU cannot map the memory of another one.
        found["NCCL_P2P_DISABLE"] = "1"
        # Segments of cuMem are passed over sockets of one network namespace; files are not.
        found["NCCL_CUMEM_HOST_ENABLE"] = "0"
    return [{"name": name, "value": value} for name, value in sorted(found.items())]


def security(context):
    user = 0 if context.as_root else node.USER
    return {"runAsUser": user, "runAsGroup": user, "runAsNonRoot": user != 0}


def check_pod(name, settings, context):
    command = SHOW if settings.stand_in else SHOW + COMPUTE
    all_volumes = volumes(context)
    container = {
        "name": "check", "image": IMAGE, "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-ec", command], "env": variables(settings),
        "resources": {"limits": {settings.resource: 1}},
        "volumeMounts": [{key: each[key] for key in ("name", "mountPath", "readOnly")}
                         for each in all_volumes],
    }
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "securityContext": security(context), "containers": [container],
            "volumes": [{"name": each["name"], "hostPath": each["hostPath"]}
                        for each in all_volumes],
        },
    }


def template(container, settings, context):
    main = {"name": container, "env": variables(settings)}
    if settings.share_gpu and container == "trainer":
        limit = {"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "per_process_memory_fraction:0.5"}
        main["env"].append(limit)
    pod = {"securityContext": {**security(context), "fsGroup": node.USER}, "containers": [main]}
    if settings.shared_memory and container != "coordinator":
        pod["volumes"] = [{"name": "shm", "hostPath": {"path": str(context.shm)}}]
        main["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    return {"spec": pod}


def rljob(settings, context):
    data = {"name": "data", "mountPath": "/data", "readOnly": True}
    folder = context.data if settings.stand_in else settings.data.parent
    file = "train.jsonl" if settings.stand_in else settings.data.name
    train = {"path": f"/data/{file}", "prompt": "{{question}}", "answer": "answer"}
    model = {"path": "/model"}
    all_volumes = [*volumes(context), {**data, "hostPath": {"path": str(folder)}}]
    inference, rollout = {"sglang": {"extraArgs": EXTRA}}, {"batchSize": 16, "maxNewTokens": 96}
    reward = {"name": "correct", "math": {}}
    if settings.stand_in:
        train["format"], model = "Text", {"path": "/data/model", "weights": "Random"}
        inference, rollout = {"embedded": {}}, {"batchSize": 16, "maxNewTokens": 6}
        reward = {"name": "correct", "exactMatch": {}}
    else:
        mount = {"name": "model", "mountPath": "/model", "readOnly": True}
        all_volumes.append({**mount, "hostPath": {"path": str(settings.model)}})
    resources = {"limits": {settings.resource: 1}}
    role = lambda container: {"image": IMAGE, "template": template(container, settings, context)}
    return {
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": NAME},
        "spec": {
            "model": model, "volumes": all_volumes,
            "storage": {"hostPath": {"path": str(context.runs)}},
            "dataset": {"train": train}, "rewards": [reward],
            "algorithm": {"grpo": {"groupSize": 8}}, "rollout": rollout,
            "optimizer": {"learningRate": 1.0e-5}, "training": {"steps": STEPS},
            "weightSync": {"method": "Disk" if settings.share_gpu else "Distributed"},
            "checkpoint": {"everySteps": 1000, "keepLast": 1},
            "coordinator": role("coordinator"),
            "trainer": {**role("trainer"), "resources": resources},
            "inference": {**role("engine"), **inference, "resources": resources},
        },
    }
