"""The machine of kubernetes.py as a node: programs, cgroups, and files that pods see.

Pods have an image of the project's programs only. Python, PyTorch, SGLang, compilers and the C
library are those of the machine, mounted read-only at the same paths.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

# User of pods, as in the operator's templates.
USER = 65532
CGROUPS = Path("/sys/fs/cgroup")
DRIVER = "/usr/local/nvidia"  # where the device plugin mounts files of the driver
SYSTEM = ["/usr/bin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/include", "/etc/alternatives"]
# Variables of the caller that pods inherit: paths, and settings of CUDA's libraries and of Python.
INHERITED = re.compile(
    r"(PATH|LD_LIBRARY_PATH|CUDA_HOME|(PYTHON|HF_|TRANSFORMERS_|NCCL_|NVSHMEM_|TORCH_).*)$"
)


def install(folder):
    """Copies programs of nodes that the machine lacks from the folder `root` of a bundle."""
    root = folder / "root"
    for file in sorted(each for each in root.rglob("*") if not each.is_dir()):
        target = Path("/") / file.relative_to(root)
        if target.exists() or (target.parent.name == "sbin" and shutil.which(target.name)):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target, follow_symlinks=False)


def mount(kind, options, folder):
    command = ["mount", "-t", kind, "-o", options, kind, str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=10)


def mount_cgroups():
    """Mounts each controller of version 1, or version 2 where the kernel has no version 1."""
    lines = Path("/proc/cgroups").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    try:
        mount("tmpfs", "mode=755", CGROUPS)
        for name in [name for name, _, _, enabled in fields if enabled == "1"]:
            (CGROUPS / name).mkdir()
            mount("cgroup", name, CGROUPS / name)
    except subprocess.CalledProcessError:
        subprocess.run(["umount", "--recursive", str(CGROUPS)], check=True, timeout=10)
        mount("cgroup2", "rw", CGROUPS)


def prepare_cgroups():
    """Mounts cgroups if there are none, and lets the root of version 2 enable controllers."""
    if not any((CGROUPS / name).exists() for name in ("cgroup.controllers", "memory")):
        mount_cgroups()
    if not (CGROUPS / "cgroup.controllers").exists():
        return "cgroup v1"
    try:
        (CGROUPS / "cgroup.subtree_control").write_text("+memory")
    except OSError:  # in a cgroup namespace, the root must have no processes of its own
        leaf = CGROUPS / "machine"
        leaf.mkdir(exist_ok=True)
        for process in (CGROUPS / "cgroup.procs").read_text().split():
            try:
                (leaf / "cgroup.procs").write_text(process)
            except OSError:
                continue  # ended meanwhile, or of the kernel
    return "cgroup v2"


def facts():
    """What decides whether containers run, in a line."""
    types = Path("/proc/filesystems").read_text()
    found = [f"kernel {os.uname().release}", "overlay" if "\toverlay\n" in types else "no overlay"]
    for kind in ("veth", "bridge"):
        name = f"rljob-{kind}"
        add = subprocess.run(["ip", "link", "add", name, "type", kind], capture_output=True)
        subprocess.run(["ip", "link", "del", name], capture_output=True)
        found.append(kind if add.returncode == 0 else f"no {kind}: {add.stderr.decode().strip()}")
    if not Path("/dev/kmsg").exists():  # kubelet does not start without it
        found.append("no /dev/kmsg")
    return ", ".join(found)


def load_driver():
    """Initializes CUDA, which creates /dev/nvidia-uvm, and returns the path of its library."""
    script = """import ctypes
result = ctypes.CDLL("libcuda.so.1").cuInit(0)
assert result == 0, f"cuInit returned {result}"
print(next(line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so" in line))"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"CUDA does not start: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.strip()


def mounts(folders):
    """Paths on the machine by their paths in pods."""
    python = [sys.prefix, sys.base_prefix, os.environ.get("CUDA_HOME", "")]
    found = {}
    for path in [*SYSTEM, *python, *map(str, folders)]:
        within = any(path == other or path.startswith(other + "/") for other in found)
        if path not in ("", "/usr") and os.path.isdir(path) and not within:
            found[path] = os.path.realpath(path)
    return found


def environment():
    """Variables of the containers of a job."""
    names = [name for name in os.environ if INHERITED.match(name)]
    variables = {name: os.environ[name] for name in names}
    libraries = [f"{DRIVER}/lib64", variables.get("LD_LIBRARY_PATH")]
    variables["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
    variables["PATH"] = f"{variables.get('PATH', '/usr/bin')}:{DRIVER}/bin"
    # Triton otherwise asks /sbin/ldconfig, which the image does not have.
    variables["TRITON_LIBCUDA_PATH"] = f"{DRIVER}/lib64"
    # NVLink multicast is not isolated between the containers of a host.
    variables.setdefault("NCCL_NVLS_ENABLE", "0")
    return variables


def readable_by_pods():
    """Whether the user of pods can run Python."""
    command = [sys.executable, "-c", "import json"]
    try:
        return subprocess.run(command, user=USER, group=USER, extra_groups=[]).returncode == 0
    except PermissionError:
        return False


def unreadable(files):
    """The error of the first file that the user of pods cannot read, or None."""
    read = "import sys; [open(file, 'rb').close() for file in sys.argv[1:]]"
    command = [sys.executable, "-c", read, *map(str, files)]
    done = subprocess.run(
        command, user=USER, group=USER, extra_groups=[], capture_output=True, text=True
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode != 0 else None


def compile_modules():
    """Writes the bytecode of Python's modules, which pods cannot write to read-only mounts."""
    folders = [*os.environ.get("PYTHONPATH", "").split(":"), sysconfig.get_path("purelib")]
    command = [sys.executable, "-m", "compileall", "-q", "-j", "0", *filter(None, folders)]
    subprocess.run(command, capture_output=True, check=False)  # files of other versions fail


def find(folders, name):
    """The first program of this name."""
    for folder in folders:
        if (folder / name).is_file():
            return str(folder / name)
    sys.exit(f"{name} is in none of {', '.join(map(str, folders))}")


def make_root(root, folders, names):
    """Writes the files of the image: programs, and the libraries of the operator, whose pod has no
    volumes."""
    shutil.rmtree(root, ignore_errors=True)
    for folder in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/local/bin", "etc", "tmp"):
        (root / folder).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").chmod(0o1777)
    users = f"root:x:0:0::/:/bin/sh\nrljob:x:{USER}:{USER}::/tmp:/bin/sh\n"
    (root / "etc/passwd").write_text(users)
    (root / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    for name in names:
        target = root / "usr/local/bin" / name
        shutil.copy(find(folders, name), target)
        target.chmod(0o755)
    operator = find(folders, "rljob-operator")
    listed = subprocess.run(["ldd", operator], capture_output=True, text=True)
    for library in re.findall(r"(/\S+) \(0x", listed.stdout):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
