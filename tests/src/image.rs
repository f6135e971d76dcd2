//! OCI images of a folder, as archives that containerd imports without a registry: one uncompressed
//! tar and three JSON documents that refer to each other by SHA-256 (OCI image-spec v1.0.2,
//! image-layout.md).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::files;
use crate::process::run;

const INDEX: &str = "index.json";

/// An image archive.
#[derive(Debug)]
pub struct Image {
    /// Image reference of pods, whose `imagePullPolicy` must be `Never` or `IfNotPresent`.
    pub reference: String,
    /// The OCI archive.
    pub archive: PathBuf,
}

/// The pause image, which holds a pod's namespaces; containerd's configuration names it.
pub fn pause(folder: &Path) -> Result<Image> {
    let root = folder.join("pause");
    fs::create_dir_all(&root)?;
    fs::copy(files::kubernetes("pause")?, root.join("pause")).context("failed to copy pause")?;
    build(
        "rljob.local/pause:test",
        &root,
        &json!({"Entrypoint": ["/pause"], "User": "65532:65532"}),
        folder,
    )
}

/// Builds an image of the files under `root`. `config` is the image's `config` object: entry point,
/// user, environment.
pub fn build(reference: &str, root: &Path, config: &Value, output: &Path) -> Result<Image> {
    let layout = tempfile::tempdir_in(output)?;
    let blobs = layout.path().join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let layer = layout.path().join("layer");
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
        "--file",
    ])
    .arg(&layer)
    .arg("--directory")
    .arg(root)
    .arg(".");
    run(&mut tar)?;
    let layer = store(&blobs, &layer, "application/vnd.oci.image.layer.v1.tar")?;
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let config = store_json(&blobs, &config, "application/vnd.oci.image.config.v1+json")?;
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
    let mut manifest = store_json(&blobs, &manifest, "application/vnd.oci.image.manifest.v1+json")?;
    manifest["annotations"] = names(reference);
    fs::write(
        layout.path().join(INDEX),
        json!({"schemaVersion": 2, "manifests": [manifest]}).to_string(),
    )?;
    fs::write(layout.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    pack(layout.path(), reference, output)
}

/// The image of an OCI archive, with the name `reference`.
pub fn named(archive: &Path, reference: &str, output: &Path) -> Result<Image> {
    let layout = tempfile::tempdir_in(output)?;
    run(Command::new("tar")
        .args(["--extract", "--file"])
        .arg(archive)
        .arg("--directory")
        .arg(layout.path()))?;
    let path = layout.path().join(INDEX);
    let mut index: Value = serde_json::from_slice(&fs::read(&path)?)?;
    let manifest = index.pointer_mut("/manifests/0").context("the archive has no image")?;
    manifest["annotations"] = names(reference);
    fs::write(&path, index.to_string())?;
    pack(layout.path(), reference, output)
}

/// Annotations from which containerd takes the image's name.
fn names(reference: &str) -> Value {
    json!({
        "org.opencontainers.image.ref.name": reference, "io.containerd.image.name": reference,
    })
}

/// Writes the archive of a layout.
fn pack(layout: &Path, reference: &str, output: &Path) -> Result<Image> {
    let archive = output.join(format!("{}.tar", reference.replace(['/', ':'], "_")));
    run(Command::new("tar")
        .args(["--create", "--file"])
        .arg(&archive)
        .arg("--directory")
        .arg(layout)
        .args(["oci-layout", INDEX, "blobs"]))?;
    Ok(Image { reference: reference.to_owned(), archive })
}

fn store_json(blobs: &Path, document: &Value, media_type: &str) -> Result<Value> {
    let path = blobs.join("document");
    fs::write(&path, document.to_string())?;
    store(blobs, &path, media_type)
}

/// Moves a file into the blob store and returns its descriptor.
fn store(blobs: &Path, path: &Path, media_type: &str) -> Result<Value> {
    let mut hash = Sha256::new();
    let size = io::copy(&mut File::open(path)?, &mut hash)
        .with_context(|| format!("failed to read {}", path.display()))?;
    let digest = format!("{:x}", hash.finalize());
    fs::rename(path, blobs.join(&digest))?;
    Ok(json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size}))
}
