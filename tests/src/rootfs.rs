//! Root file system of the project's image: the workspace's binaries, their libraries, and basic
//! files of a Linux system. `make images` builds the equivalent for users.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::files;
use crate::image::{self, Image};
use crate::process::run;

/// Binaries of the image; each pod names one in its command.
pub const BINARIES: [&str; 7] = [
    "rljob-operator",
    "rljob-coordinator",
    "rljob-reward-runner",
    "rljob-sandbox",
    "rljob-supervisor",
    "rljob-learner",
    "rljob-engine",
];

/// Builds the project's image with the name `reference` in the folder `output`, or takes that of
/// the archive `RLJOB_IMAGE`, which `make images` builds.
pub fn image(reference: &str, output: &Path) -> Result<Image> {
    if let Some(archive) = env::var_os("RLJOB_IMAGE") {
        return image::named(Path::new(&archive), reference, output);
    }
    let root = tempfile::tempdir_in(output)?;
    assemble(root.path(), &BINARIES)?;
    image::build(
        reference,
        root.path(),
        &json!({"Env": ["PATH=/usr/local/bin"], "User": "65532:65532"}),
        output,
    )
}

/// Builds an image with the C library of this machine and no program, as users bring for their
/// agents.
pub fn image_without_programs(reference: &str, output: &Path) -> Result<Image> {
    let root = tempfile::tempdir_in(output)?;
    skeleton(root.path())?;
    let libraries = loaded_libraries(&files::binary("rljob-reward-runner")?)?;
    libraries.iter().try_for_each(|library| copy_library(root.path(), library))?;
    let config = json!({"Env": ["PATH=/usr/local/bin"], "User": "65532:65532"});
    image::build(reference, root.path(), &config, output)
}

/// Writes the image's files below `root`.
fn assemble(root: &Path, binaries: &[&str]) -> Result<()> {
    skeleton(root)?;
    let mut libraries = BTreeSet::new();
    for name in binaries {
        let source = files::binary(name)?;
        let target = root.join("usr/local/bin").join(name);
        run(Command::new("strip").arg("--strip-debug").arg("-o").arg(&target).arg(&source))?;
        libraries.extend(loaded_libraries(&source)?);
    }
    libraries.iter().try_for_each(|library| copy_library(root, library))
}

/// Writes basic files of a Linux system below `root`.
pub(crate) fn skeleton(root: &Path) -> Result<()> {
    for folder in ["usr/local/bin", "usr/local/lib", "etc/ssl/certs", "tmp"] {
        fs::create_dir_all(root.join(folder))
            .with_context(|| format!("failed to create {folder} in the image"))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    // Debian's layout: binaries refer to the loader as /lib64/… and to libraries as /lib/…
    for (link, target) in [("lib", "usr/lib"), ("lib64", "usr/lib64"), ("bin", "usr/local/bin")] {
        fs::create_dir_all(root.join(target))?;
        symlink(target, root.join(link))?;
    }
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/:/sbin/nologin\nrljob:x:65532:65532:rljob:/tmp:/sbin/nologin\n",
    )?;
    fs::write(root.join("etc/group"), "root:x:0:\nrljob:x:65532:\n")?;
    fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
    let certificates = Path::new("/etc/ssl/certs/ca-certificates.crt");
    if certificates.exists() {
        fs::copy(certificates, root.join("etc/ssl/certs/ca-certificates.crt"))?;
    }
    Ok(())
}

/// Libraries that the dynamic loader loads for a binary, and the loader.
fn loaded_libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    // Cargo sets the library path of programs that it runs; otherwise it is derived from LIBTORCH.
    let libtorch = env::var_os("LIBTORCH")
        .map_or_else(|| files::workspace().join(".libtorch"), PathBuf::from)
        .join("lib");
    let folders = [env::var_os("LD_LIBRARY_PATH"), Some(libtorch.into_os_string())]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(OsStr::new(":"));
    let text = run(Command::new("ldd").arg(binary).env("LD_LIBRARY_PATH", folders))?;
    ensure!(!text.contains("not found"), "{} lacks libraries:\n{text}", binary.display());
    // "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x…)" or "/lib64/ld-linux-x86-64.so.2 (0x…)"
    let words =
        text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(words.map(PathBuf::from).collect())
}

/// Copies a library: system libraries keep their path, others go to /usr/local/lib, which is in the
/// run path of the workspace's binaries.
pub(crate) fn copy_library(root: &Path, library: &Path) -> Result<()> {
    let is_system = ["/lib", "/usr/lib"].iter().any(|folder| library.starts_with(folder))
        || library.starts_with("/lib64");
    let name = library.file_name().with_context(|| format!("{} has no name", library.display()))?;
    let target = if is_system {
        root.join(library.strip_prefix("/")?)
    } else {
        root.join("usr/local/lib").join(name)
    };
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(library, &target)
        .map(drop)
        .with_context(|| format!("failed to copy {} into the image", library.display()))
}
