"""Creates stubs of the NVIDIA libraries that torch's wheel links.

With the stubs, torch loads without the libraries. Every function returns 1, an error code in all of
them. Requires gcc, nm and readelf.

usage: cuda_stubs.py SITE_PACKAGES
"""

import pathlib
import re
import subprocess
import sys
import tempfile

# Patterns of undefined symbols of torch's libraries, by library.
NAMES = {
    "libcublas": r"cublas(?!Lt)",
    "libcublasLt": r"cublasLt",
    "libcudnn": r"cudnn",
    "libcufft": r"cufft",
    "libcufile": r"cuFile",
    "libcurand": r"curand",
    "libcusolver": r"cusolver",
    "libcusparse": r"cusparse(?!Lt)",
    "libcusparseLt": r"cusparseLt",
    "libnccl": r"p?nccl",
    "libnvrtc": r"nvrtc",
    "libnvshmem_host": r"nvshmem",
}


def lines(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def needed(library):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", "\n".join(lines("readelf", "-d", library)))


def undefined(library):
    """Undefined symbols with their version, or an empty string."""
    names = [line.split()[-1] for line in lines("nm", "-D", "--undefined-only", library)]
    return dict((name.partition("@")[0], name.partition("@")[2]) for name in names)


def make(target, functions):
    versions = sorted({version for version in functions.values() if version})
    with tempfile.TemporaryDirectory() as folder:
        source, script = pathlib.Path(folder, "stub.c"), pathlib.Path(folder, "versions")
        source.write_text("".join(f"long {name}(void) {{ return 1; }}\n" for name in functions))
        script.write_text(f"{versions[0] if versions else ''} {{ global: *; }};\n")
        flags = [
            "-shared",
            "-fPIC",
            "-w",
            f"-Wl,-soname,{target.name}",
            f"-Wl,--version-script={script}",
        ]
        subprocess.run(["gcc", *flags, "-o", target, source], check=True)


def main(site):
    folder = pathlib.Path(site, "torch", "lib")
    libraries = [
        path for path in folder.iterdir() if path.name.startswith("lib") and ".so" in path.name
    ]
    present = {path.name for path in libraries}
    present |= {path.name for path in pathlib.Path(site, "nvidia").rglob("*.so*")}
    functions = {}
    for library in libraries:
        functions |= undefined(library)
    for name in sorted({name for library in libraries for name in needed(library)} - present):
        pattern = NAMES.get(name.partition(".so")[0])
        if pattern:
            matching = {
                function: version
                for function, version in functions.items()
                if re.match(pattern, function)
            }
            make(folder / name, matching)


main(sys.argv[1])
