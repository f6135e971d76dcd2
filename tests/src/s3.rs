//! S3 server (versitygw) with one bucket, whose objects are files that tests can read and alter.
//! Dropping the value stops the server and removes the objects.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::files::s3_server;
use crate::process::start_server;

/// Name of the bucket.
pub const BUCKET: &str = "runs";
/// Access key of the only user.
pub const ACCESS_KEY: &str = "tester";
/// Secret key of the only user.
pub const SECRET_KEY: &str = "not-so-secret";

/// Folder of an object's attributes, in a folder with the object's name.
const ATTRIBUTES: &str = "meta";
/// Folder of multipart uploads: object hash, upload id, parts.
const UPLOADS: &str = ".sgwtmp/multipart";
/// Suffix of an upload's folder while the upload is being completed: `ID.….inprogress`.
const COMPLETING: &str = ".inprogress";
/// Time limit of the server's start.
const LIMIT: Duration = Duration::from_secs(30);

/// A running server with one bucket.
#[derive(Debug)]
pub struct S3 {
    folder: TempDir,
    port: u16,
    server: Option<Child>,
}

impl S3 {
    /// Starts the server with an empty bucket.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir().context("failed to create a folder for the bucket")?;
        fs::create_dir_all(folder.path().join("data").join(BUCKET))?;
        fs::create_dir_all(folder.path().join("attributes"))?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut s3 = Self { folder, port, server: None };
        s3.restart()?;
        Ok(s3)
    }

    /// Restarts the server on the same port with the same objects.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let attributes = self.folder.path().join("attributes").join(BUCKET);
        for kept in [self.objects(), attributes.clone()] {
            undo_completions(&kept)?;
        }
        remove_orphaned_attributes(&attributes, &self.objects())?;
        // The kernel kills the server when the thread that started it exits.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(s3_server()?)
            .args([
                "--port",
                &format!("127.0.0.1:{}", self.port),
                "--keep-alive",
                "posix",
                "--sidecar",
            ])
            .arg(self.folder.path().join("attributes"))
            .arg(self.folder.path().join("data"))
            .envs([("ROOT_ACCESS_KEY", ACCESS_KEY), ("ROOT_SECRET_KEY", SECRET_KEY)]);
        let log = self.folder.path().join("log");
        self.server = Some(start_server(&mut command, &log, self.port, LIMIT)?);
        Ok(())
    }

    /// Kills the server; objects are kept.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut server) = self.server.take() {
            server.kill()?;
            server.wait()?;
        }
        Ok(())
    }

    /// Simulates a killed PUT: until the next restart, the server rejects the creation of the
    /// object although it does not exist.
    pub fn half_make(&self, key: &str) -> Result<()> {
        let attributes =
            self.folder.path().join("attributes").join(BUCKET).join(key).join(ATTRIBUTES);
        fs::create_dir_all(&attributes)?;
        Ok(fs::write(attributes.join("etag"), "0")?)
    }

    /// URL of the server.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Folder of the bucket; object keys are relative paths.
    pub fn objects(&self) -> PathBuf {
        self.folder.path().join("data").join(BUCKET)
    }

    /// Sorted keys of all objects below a prefix, without the server's internal files.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.objects()];
        while let Some(folder) = folders.pop() {
            for path in entries(&folder) {
                let key = path
                    .strip_prefix(self.objects())
                    .map(|key| key.display().to_string())
                    .unwrap_or_default();
                if path.is_dir() {
                    folders.push(path);
                } else if key.starts_with(prefix) && !key.starts_with(".sgwtmp") {
                    found.push(key);
                }
            }
        }
        found.sort();
        found
    }

    /// Number of parts of uploads that are neither completed nor aborted.
    pub fn unfinished_parts(&self) -> usize {
        uploads(&self.objects()).flat_map(|upload| entries(&upload)).count()
    }

    /// Environment variables with the credentials.
    pub fn environment() -> [(&'static str, &'static str); 2] {
        [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)]
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Removes attributes of objects that do not exist. A server killed between writing the attributes
/// and the object would otherwise reject the object permanently.
fn remove_orphaned_attributes(attributes: &Path, objects: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(attributes) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let (kept, object) = (entry.path(), objects.join(entry.file_name()));
        if object.is_dir() {
            remove_orphaned_attributes(&kept, &object)?;
        } else if entry.file_name() != ATTRIBUTES && !object.exists() {
            fs::remove_dir_all(kept)?;
        }
    }
    Ok(())
}

/// Restores the names of uploads whose completion was interrupted by a kill. Clients complete or
/// abort an upload by its id, and the server does not undo the temporary name.
fn undo_completions(bucket: &Path) -> Result<()> {
    for upload in uploads(bucket) {
        let name = upload.file_name().unwrap_or_default().to_string_lossy();
        if let Some((id, _)) = name.strip_suffix(COMPLETING).and_then(|name| name.split_once('.')) {
            fs::rename(&upload, upload.with_file_name(id))?;
        }
    }
    Ok(())
}

/// Folders of unfinished uploads.
fn uploads(bucket: &Path) -> impl Iterator<Item = PathBuf> {
    entries(&bucket.join(UPLOADS)).flat_map(|object| entries(&object))
}

/// Entries of a folder; empty if it does not exist.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
