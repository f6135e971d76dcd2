//! Paths of the checkout, of built binaries, and of the caches that `make setup` fills.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Root of the checkout.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

/// A binary of the workspace, from the profile of the running test.
pub fn binary(name: &str) -> Result<PathBuf> {
    let own = env::current_exe().context("failed to find the running program")?;
    // target/PROFILE/deps/integration-HASH, or target/PROFILE/rljob-test-cluster
    let found =
        own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| {
        format!("{name} does not exist next to {}: run `cargo build --workspace`", own.display())
    })
}

/// A Kubernetes program: from `KUBEBUILDER_ASSETS` if present there, else from the cache that
/// tests/kube/build.sh fills.
pub fn kubernetes(program: &str) -> Result<PathBuf> {
    let assets = env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let folders = [assets, Some(cache()?.join("kube-1.37.0"))];
    for folder in folders.into_iter().flatten() {
        let path = folder.join(program);
        if path.is_file() {
            return Ok(path);
        }
    }
    bail!("{program} is neither in KUBEBUILDER_ASSETS nor in the cache: run `make setup`")
}

/// The S3 server, from the cache that tests/s3/build.sh fills.
pub fn s3_server() -> Result<PathBuf> {
    installed(Path::new("versitygw-1.8.0/versitygw"))
}

/// Helm, from the cache that tests/helm/build.sh fills.
pub fn helm() -> Result<PathBuf> {
    installed(Path::new("helm-4.3.1/helm"))
}

/// `kubeconform`, or `swagger.json` of Kubernetes, from the cache that tests/kubeconform/build.sh
/// fills.
pub fn kubeconform(file: &str) -> Result<PathBuf> {
    installed(&Path::new("kubeconform-0.8.0").join(file))
}

/// `prometheus` or `promtool`, from the cache that tests/prometheus/build.sh fills.
pub fn prometheus(program: &str) -> Result<PathBuf> {
    installed(&Path::new("prometheus-3.16.0-kubernetes").join(program))
}

/// A file of the folder that tests/prometheus-operator/build.sh fills in the cache:
/// `prometheus-config`, or the CRD `podmonitors.yaml` or `prometheusrules.yaml`.
pub fn prometheus_operator(file: &str) -> Result<PathBuf> {
    installed(&Path::new("prometheus-operator-0.85.0").join(file))
}

/// Kueue, whose Helm chart is beside it in `chart`, from the cache that tests/kueue/build.sh fills.
pub fn kueue() -> Result<PathBuf> {
    installed(Path::new("kueue-0.19.2/kueue"))
}

/// axe-core, from the cache that tests/axe/setup.sh fills.
pub fn axe() -> Result<PathBuf> {
    installed(Path::new("axe-4.14.0/axe.min.js"))
}

/// `mlflow`, from the cache that tests/mlflow/setup.sh fills.
pub fn mlflow() -> Result<PathBuf> {
    installed(Path::new("mlflow-3.17.2/bin/mlflow"))
}

/// The OpenTelemetry Collector, from the cache that tests/otelcol/build.sh fills.
pub fn otelcol() -> Result<PathBuf> {
    installed(Path::new("otelcol-0.165.0/otelcol"))
}

/// Folder of SGLang and its test models, which tests/sglang/setup.sh fills.
pub fn sglang() -> Result<PathBuf> {
    installed(Path::new("sglang-0.5.12/serve.sh"))?;
    Ok(cache()?.join("sglang-0.5.12"))
}

/// Python with torch, transformers and aiohttp: `RLJOB_PYTHON`, else that of SGLang.
pub fn python() -> Result<PathBuf> {
    match env::var_os("RLJOB_PYTHON").map(PathBuf::from) {
        Some(python) if python.is_file() => Ok(python),
        Some(python) => bail!("RLJOB_PYTHON={} does not exist", python.display()),
        None => installed(Path::new("sglang-0.5.12/venv/bin/python")),
    }
}

/// Python with OpenAI's client, from the cache that tests/openai/setup.sh fills.
pub fn openai_python() -> Result<PathBuf> {
    installed(Path::new("openai-3.57.0/bin/python"))
}

/// Python with the SDK of MCP, which tests/mcp/setup.sh installs.
pub fn mcp_python() -> Result<PathBuf> {
    installed(Path::new("mcp-2.3.0/bin/python"))
}

/// Folder of the packages of PEFT for [`python`], from the cache that tests/peft/setup.sh fills.
pub fn peft_packages() -> Result<PathBuf> {
    let python = installed(Path::new("peft-0.21.2/bin/python"))?;
    let libraries = python.with_file_name("../lib");
    let mut folders = fs::read_dir(&libraries)?.collect::<std::io::Result<Vec<_>>>()?;
    folders.retain(|folder| folder.path().join("site-packages/peft").is_dir());
    let folder = folders.pop().with_context(|| format!("{} has no PEFT", libraries.display()))?;
    Ok(folder.path().join("site-packages"))
}

/// A file of the folder that tests/gitops/build.sh fills in the cache: `gitops`, or the CRD
/// `applications.yaml`, `kustomizations.yaml`, `gitrepositories.yaml` or `helmreleases.yaml`.
pub fn gitops(file: &str) -> Result<PathBuf> {
    installed(&Path::new("gitops-argocd-3.5.7-flux-1.9.6").join(file))
}

/// The requirement of a test, or `None` if it is not installed: the test is skipped.
///
/// # Panics
/// It is not installed and `CI` is set: no test is skipped there.
#[expect(
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails, or prints that it is skipped"
)]
pub fn required(found: Result<PathBuf>) -> Option<PathBuf> {
    match found {
        Ok(path) => Some(path),
        Err(error) if env::var_os("CI").is_some() => panic!("{error:#}"),
        Err(error) => {
            println!("skipped: {error:#}");
            None
        }
    }
}

/// A file in the cache, which `make setup` fills.
fn installed(file: &Path) -> Result<PathBuf> {
    let path = cache()?.join(file);
    if path.is_file() {
        Ok(path)
    } else {
        bail!("{} does not exist: run `make setup`", path.display())
    }
}

/// The program that enforces NetworkPolicies, from the cache that tests/network/build.sh fills.
pub fn kube_router() -> Result<PathBuf> {
    installed(Path::new("kube-router-2.1.0/kube-router"))
}

/// The project's cache folder.
pub fn cache() -> Result<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cache")));
    Ok(base.context("neither XDG_CACHE_HOME nor HOME is set")?.join("rljob"))
}
