//! Image that runs the SGLang of `tests/sglang/setup.sh` on CPUs: Python is in the image, its
//! packages are on a volume.
//!
//! ```text
//!  image:  /usr/local/bin/python3, lscpu, sh · their libraries · Python's standard library
//!  volume: ENVIRONMENT ─▶ /opt/sglang (venv/lib/python3.N/site-packages, 2.6 GB)
//! ```
//! The pods use the flags, keys, ports and probes that the operator renders for every SGLang pod.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use crate::image::{self, Image};
use crate::process::run;
use crate::rootfs;

pub const IMAGE: &str = "rljob.local/sglang:test";
/// `inference.sglang.extraArgs` of a job for a machine without a GPU.
pub const FLAGS: &str = "[--device=cpu, --attention-backend=torch_native, \
    --mem-fraction-static=0.1, --max-total-tokens=4096, --disable-overlap-schedule]";
/// Mount path of the environment in pods.
pub const MOUNT: &str = "/opt/sglang";
/// Program with which SGLang counts CPU cores.
const LSCPU: &str = "/usr/bin/lscpu";
/// Shell that computes the ranks of engines that span pods.
const SHELL: &str = "/bin/sh";
/// Folders excluded from the image: packages, which are on the volume, tests, and link-time files.
const EXCLUDED: [&str; 6] =
    ["site-packages", "dist-packages", "test", "tests", "__pycache__", "config-*"];

/// Builds the image in the folder `output`.
pub fn image(environment: &Path, output: &Path) -> Result<Image> {
    let python = environment.join("venv/bin/python");
    let script =
        "import sysconfig; print(sysconfig.get_path('stdlib'), sysconfig.get_path('purelib'))";
    let paths = run(Command::new(&python).args(["-c", script]))?;
    let (standard, packages) = paths
        .trim()
        .split_once(' ')
        .with_context(|| format!("{} printed no folders: {paths:?}", python.display()))?;
    let root = tempfile::tempdir_in(output)?;
    rootfs::skeleton(root.path())?;
    // As in images built for root, the UID of pods has no passwd entry.
    fs::write(root.path().join("etc/passwd"), "root:x:0:0:root:/:/sbin/nologin\n")?;
    let programs =
        [("python3", python.as_path()), ("lscpu", Path::new(LSCPU)), ("sh", Path::new(SHELL))];
    for (name, program) in programs {
        fs::copy(program, root.path().join("usr/local/bin").join(name))
            .with_context(|| format!("failed to copy {}", program.display()))?;
    }
    let standard = Path::new(standard);
    compile(&python, &copy_standard_library(standard, root.path())?)?;
    let mut loading = vec![python, PathBuf::from(LSCPU), PathBuf::from(SHELL)];
    for folder in [standard.join("lib-dynload"), PathBuf::from(packages)] {
        loading.extend(extensions(&folder)?);
    }
    loaded_by(&loading, environment)?
        .iter()
        .try_for_each(|library| rootfs::copy_library(root.path(), library))?;
    let packages = Path::new(MOUNT).join(Path::new(packages).strip_prefix(environment)?);
    let environment = [
        "PATH=/usr/local/bin",
        "LD_LIBRARY_PATH=/usr/local/lib",
        &format!("PYTHONPATH={}", packages.display()),
        "PYTHONDONTWRITEBYTECODE=1",
        "SGLANG_USE_CPU_ENGINE=1",
        "CUDA_VISIBLE_DEVICES=",
        "HF_HUB_OFFLINE=1",
        "OMP_NUM_THREADS=1",
        // Several ranks would otherwise call the stub of NCCL and compile kernels, for which the
        // image has no compiler.
        "SGLANG_NCCL_SO_PATH=absent.so",
        "TORCHDYNAMO_DISABLE=1",
    ];
    image::build(IMAGE, root.path(), &json!({"Env": environment}), output)
}

/// Copies Python's standard library to the path where Python looks for it, relative to its binary.
fn copy_standard_library(library: &Path, root: &Path) -> Result<PathBuf> {
    let name = library.file_name().context("Python's library has no name")?;
    let target = root.join("usr/local/lib").join(name);
    fs::create_dir_all(&target)?;
    let exclude = EXCLUDED.map(|name| format!("--exclude={name}"));
    let archive = target.with_extension("tar");
    run(Command::new("tar")
        .args(exclude)
        .arg("--create")
        .arg("--file")
        .arg(&archive)
        .arg("--directory")
        .arg(library)
        .arg("."))?;
    run(Command::new("tar")
        .arg("--extract")
        .arg("--file")
        .arg(&archive)
        .arg("--directory")
        .arg(&target))?;
    fs::remove_file(archive).context("failed to remove an archive")?;
    Ok(target)
}

/// Precompiles Python files, since pods have a read-only root file system. Bytecode is not
/// validated against the sources, because image layers do not keep modification times.
fn compile(python: &Path, folder: &Path) -> Result<()> {
    let arguments = ["-m", "compileall", "-q", "--invalidation-mode=unchecked-hash"];
    run(Command::new(python).args(arguments).arg(folder)).map(drop)
}

/// Shared libraries below a folder.
fn extensions(folder: &Path) -> Result<Vec<PathBuf>> {
    let found = run(Command::new("find").arg(folder).args(["-type", "f", "-name", "*.so*"]))?;
    Ok(found.lines().map(PathBuf::from).collect())
}

/// Libraries outside the environment that the loader finds for `paths`. Missing libraries are
/// ignored, because only GPUs use them.
fn loaded_by(paths: &[PathBuf], environment: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").args(paths).output().context("failed to start ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    // A line that ends with a colon names the file that the following lines describe.
    let found = text
        .lines()
        .filter(|line| !line.ends_with(':'))
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(found.map(PathBuf::from).filter(|library| !library.starts_with(environment)).collect())
}
