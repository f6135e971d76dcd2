//! With feature `cuda`: compiles the kernels, and those that a benchmark compares, with nvcc and
//! cuDNN's part with the C++ compiler, against the libtorch of `LIBTORCH` and the CUDA toolkit of
//! `CUDA_HOME`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compute capabilities whose machine code is built; later ones compile the PTX of the last.
const CAPABILITIES: [&str; 2] = ["80", "90"];

fn main() {
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    println!("cargo:rerun-if-changed=cuda");
    println!("cargo:rerun-if-changed=benches/gae_peer.cu");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let folder = |name| {
        let folder = std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_dir());
        if folder.is_none() {
            println!("cargo:error={name} is not a folder: run `make setup-cuda`");
        }
        folder
    };
    if let (Some(libtorch), Some(cuda)) = (folder("LIBTORCH"), folder("CUDA_HOME")) {
        build(&libtorch, &cuda);
    }
}

fn build(libtorch: &Path, cuda: &Path) {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    let kernels = ["cuda/norm.cu", "cuda/elementwise.cu", "cuda/head.cu", "cuda/gae.cu"];
    compile(cuda, &kernels, &out.join("librljob_kernels.a"));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=rljob_kernels");
    let peers = out.join("librljob_kernel_peers.a");
    compile(cuda, &["benches/gae_peer.cu"], &peers);
    println!("cargo:rustc-link-arg-benches={}", peers.display());
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .flag("-w") // the headers of libtorch and cuDNN warn
        .opt_level(2)
        .include(libtorch.join("include"))
        .include(cuda.join("include"))
        .files(["cuda/attention.cpp", "cuda/device.cpp"])
        .compile("rljob_kernels_host");
    println!("cargo:rustc-link-search=native={}", cuda.join("lib").display());
    for library in ["torch_cuda", "c10_cuda", "cudart", "cudnn", "nvrtc"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}

/// Compiles kernels to a static library. Device code is optimized in every profile.
fn compile(cuda: &Path, sources: &[&str], library: &Path) {
    let mut nvcc = Command::new(cuda.join("bin/nvcc"));
    nvcc.args(["-lib", "-std=c++17", "-O3", "-Xcompiler=-fPIC", "-o"])
        .arg(library)
        .args(
            CAPABILITIES
                .map(|version| format!("-gencode=arch=compute_{version},code=sm_{version}")),
        )
        .arg("-gencode=arch=compute_90,code=compute_90")
        .args(sources);
    match nvcc.status() {
        Ok(status) if status.success() => {}
        Ok(status) => println!("cargo:error=nvcc ended with {status}"),
        Err(error) => println!("cargo:error=failed to start {}: {error}", cuda.display()),
    }
}
