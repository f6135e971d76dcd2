//! A bucket on a real S3 server (versitygw), whose objects are files that a test may look at and
//! alter. Gone with the value.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::files::s3_server;
use crate::process::wait_until;

/// The bucket's name.
pub const BUCKET: &str = "runs";
/// Of the only user.
pub const ACCESS_KEY: &str = "tester";
/// Of the only user.
pub const SECRET_KEY: &str = "not-so-secret";

/// Folder in which the server keeps the attributes of what has the name of the folder around it.
const ATTRIBUTES: &str = "meta";
/// Folder in which the server keeps uploads: an object's hash, an upload's id, the parts.
const UPLOADS: &str = ".sgwtmp/multipart";
/// How an upload's folder ends while it is completed. It starts with the id and a dot.
const COMPLETING: &str = ".inprogress";
/// How long the server may take to listen.
const LIMIT: Duration = Duration::from_secs(30);

/// A server with one bucket.
#[derive(Debug)]
pub struct S3 {
    folder: TempDir,
    port: u16,
    server: Option<Child>,
}

impl S3 {
    /// Starts the server with an empty bucket.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the bucket")?;
        fs::create_dir_all(folder.path().join("data").join(BUCKET))?;
        fs::create_dir_all(folder.path().join("attributes"))?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let mut s3 = Self { folder, port, server: None };
        s3.restart()?;
        Ok(s3)
    }

    /// Starts the server again, on the same port with the same objects.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        let attributes = self.folder.path().join("attributes").join(BUCKET);
        for kept in [self.objects(), attributes.clone()] {
            undo_completions(&kept)?;
        }
        forget_unmade(&attributes, &self.objects())?;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))?;
        // Its life ends with that of the thread that starts it, however that ends.
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
            .envs([("ROOT_ACCESS_KEY", ACCESS_KEY), ("ROOT_SECRET_KEY", SECRET_KEY)])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        self.server = Some(command.spawn().context("cannot start the S3 server")?);
        let port = self.port;
        wait_until("the S3 server to listen", LIMIT, || {
            Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok())
        })
        .with_context(|| fs::read_to_string(self.folder.path().join("log")).unwrap_or_default())
    }

    /// Kills the server in whatever it is doing; objects stay.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut server) = self.server.take() {
            server.kill()?;
            server.wait()?;
        }
        Ok(())
    }

    /// Leaves what a kill leaves of an object on its way: until the next start the server refuses
    /// to make it, although it is not there.
    pub fn half_make(&self, key: &str) -> Result<()> {
        let attributes =
            self.folder.path().join("attributes").join(BUCKET).join(key).join(ATTRIBUTES);
        fs::create_dir_all(&attributes)?;
        Ok(fs::write(attributes.join("etag"), "0")?)
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder that is the bucket: an object's key is a path in it.
    pub fn objects(&self) -> PathBuf {
        self.folder.path().join("data").join(BUCKET)
    }

    /// Every object below a prefix, by name. What the server keeps for itself is left out.
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

    /// Parts of uploads that are neither completed nor aborted.
    pub fn unfinished_parts(&self) -> usize {
        uploads(&self.objects()).flat_map(|upload| entries(&upload)).count()
    }

    /// What the environment of a process says, that it may use the bucket.
    pub fn environment() -> [(&'static str, &'static str); 2] {
        [("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)]
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Removes what the server keeps of objects that it was killed before it had made: with attributes
/// beside the objects it would refuse to make them ever after.
fn forget_unmade(attributes: &Path, objects: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(attributes) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let (kept, object) = (entry.path(), objects.join(entry.file_name()));
        if object.is_dir() {
            forget_unmade(&kept, &object)?;
        } else if entry.file_name() != ATTRIBUTES && !object.exists() {
            fs::remove_dir_all(kept)?;
        }
    }
    Ok(())
}

/// Gives uploads that the server was killed in completing their id back: by it they are completed
/// or aborted, and the server itself never looks for the other name.
fn undo_completions(bucket: &Path) -> Result<()> {
    for upload in uploads(bucket) {
        let name = upload.file_name().unwrap_or_default().to_string_lossy();
        if let Some((id, _)) = name.strip_suffix(COMPLETING).and_then(|name| name.split_once('.')) {
            fs::rename(&upload, upload.with_file_name(id))?;
        }
    }
    Ok(())
}

/// Folders of the uploads that are under way, each with its parts.
fn uploads(bucket: &Path) -> impl Iterator<Item = PathBuf> {
    entries(&bucket.join(UPLOADS)).flat_map(|object| entries(&object))
}

/// What is in a folder; nothing is in what is no folder.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
