//! Compiles the C++ shim against the libtorch of `LIBTORCH`. With `RLJOB_SANITIZE=address`, the
//! shim and the tests have AddressSanitizer (`make asan`). With feature `cuda`, also compiles the
//! part for NCCL against the CUDA toolkit of `CUDA_HOME`.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=src/shim.cpp");
    println!("cargo:rerun-if-changed=src/shim.h");
    println!("cargo:rerun-if-changed=src/nccl.cpp");
    println!("cargo:rerun-if-changed=src/linear.cpp");
    println!("cargo:rerun-if-changed=src/linear_kernel.h");
    println!("cargo:rerun-if-changed=src/linear_tiles.h");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    println!("cargo:rerun-if-env-changed=RLJOB_SANITIZE");
    let Some(libtorch) = std::env::var_os("LIBTORCH").map(PathBuf::from) else {
        println!("cargo:error=LIBTORCH is not set: run `make setup`, which installs .libtorch");
        return;
    };
    let mut flags = Vec::new();
    if std::env::var("RLJOB_SANITIZE").is_ok_and(|name| name == "address") {
        flags.push("-fsanitize=address");
        println!("cargo:rustc-link-lib=dylib=asan");
    }
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .flags(flags.clone())
        .flag("-w") // libtorch's headers warn
        .define("USE_C10D_GLOO", None)
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"))
        .file("src/shim.cpp")
        .compile("rljob_collective_shim");
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .flags(flags.clone())
        .flag("-w")
        .flag("-fopenmp") // without it at::parallel_for is sequential
        .opt_level(3) // in every profile, because tests and the quick start use it too
        .include(libtorch.join("include"))
        .file("src/linear.cpp")
        .compile("rljob_linear");
    println!("cargo:rustc-link-lib=dylib=gomp");
    println!("cargo:rustc-link-search=native={}", libtorch.join("lib").display());
    println!("cargo:rustc-link-lib=dylib=torch_cpu");
    println!("cargo:rustc-link-lib=dylib=c10");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        compile_nccl(&libtorch);
    }
}

fn compile_nccl(libtorch: &Path) {
    let cuda = std::env::var_os("CUDA_HOME").map(PathBuf::from).filter(|path| path.is_dir());
    let Some(cuda) = cuda else {
        println!("cargo:error=CUDA_HOME is not a folder: run `make setup-cuda`");
        return;
    };
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .flag("-w")
        .include(libtorch.join("include"))
        .include(cuda.join("include"))
        .file("src/nccl.cpp")
        .compile("rljob_collective_nccl");
    println!("cargo:rustc-link-search=native={}", cuda.join("lib").display());
    for library in ["nccl", "c10_cuda", "cudart"] {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
}
