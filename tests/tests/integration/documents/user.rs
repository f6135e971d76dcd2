//! A user who follows the pages: a shell in a folder with the files of a checkout and the programs
//! that the pages name.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rljob_tests::files::{binary, helm, kubeconform, kubernetes, workspace};
use rljob_tests::process::run;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::chart::schemas;

/// Seconds after which a command is killed.
const LIMIT: &str = "300";
/// Folders of the home that commands write to.
const HOME: [&str; 3] = [".local/bin", ".zfunc", ".config/fish/completions"];
/// Kinds of the objects of a job, whose schemas kubeconform has.
const KINDS: [&str; 6] =
    ["ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service", "StatefulSet"];

/// The folder, which is also the home.
pub(crate) struct User {
    folder: TempDir,
}

impl User {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let user = Self { folder };
        symlink(workspace().join("charts"), user.path("charts")).unwrap();
        // A copy: commands write data there.
        let manifests = workspace().join("manifests");
        run(Command::new("cp").arg("-r").arg(manifests).arg(user.path(""))).unwrap();
        for folder in HOME.iter().chain(&["bin", "target/release"]) {
            fs::create_dir_all(user.path(folder)).unwrap();
        }
        for (program, path) in [
            ("bin/helm", helm()),
            ("bin/kubectl", kubernetes("kubectl")),
            ("bin/rljob", binary("rljob")),
            // Of `cargo build --release`.
            ("target/release/rljob", binary("rljob")),
        ] {
            symlink(path.unwrap(), user.path(program)).unwrap();
        }
        user
    }

    /// Selects a cluster and a default namespace.
    pub(crate) fn use_namespace(&self, kubeconfig: &Path, namespace: &str) {
        let text = fs::read_to_string(kubeconfig).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config["contexts"][0]["context"]["namespace"] = json!(namespace);
        // Renamed: commands that were started read the file.
        self.write("kubeconfig.part", &config.to_string());
        fs::rename(self.path("kubeconfig.part"), self.path("kubeconfig")).unwrap();
    }

    /// A path below the folder.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::create_dir_all(self.path(file).parent().unwrap()).unwrap();
        fs::write(self.path(file), text).unwrap();
    }

    /// Adds a program that runs kubeconform with schemas of this machine, which it would download.
    pub(crate) fn add_kubeconform(&self) {
        fs::create_dir_all(self.path("schemas")).unwrap();
        schemas::write_schemas(&self.path("schemas"), &KINDS.map(str::to_owned).into());
        let location = self.path("schemas").join("{{.ResourceKind}}{{.KindSuffix}}.json");
        let program = kubeconform("kubeconform").unwrap();
        let text = format!(
            "#!/bin/sh\nexec '{}' -schema-location '{}' \"$@\"\n",
            program.display(),
            location.display()
        );
        self.write("bin/kubeconform", &text);
        let path = self.path("bin/kubeconform");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A shell that runs a script within the time limit.
    pub(crate) fn command(&self, script: &str) -> Command {
        let folders =
            [self.path("bin"), self.path(".local/bin")].map(|path| path.display().to_string());
        let path = format!("{}:{}", folders.join(":"), std::env::var("PATH").unwrap());
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT, "bash", "-c", script]);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.env_clear().env("PATH", path).env("HOME", self.folder.path());
        command.env("KUBECONFIG", self.path("kubeconfig"));
        command.env("OMP_NUM_THREADS", "1").env("PASSWORD", "secret");
        command
    }

    /// Runs a script up to its first error, and returns its output or the error.
    pub(crate) fn shell(&self, script: &str) -> Result<String, String> {
        run(&mut self.command(&format!("set -e\n{script}")))
            .map_err(|error| format!("{script}\n{error:#}"))
    }

    /// Starts a script that ends later.
    pub(crate) fn start(&self, script: &str) -> Child {
        self.command(script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a server until it has printed its address.
    pub(crate) fn serve(&self, script: &str) -> Result<(), String> {
        let mut server = self.start(script);
        let mut line = String::new();
        let output = server.stdout.take().unwrap();
        let read = BufReader::new(output).read_line(&mut line);
        // `timeout` passes the signal on.
        let _ = kill_process(Pid::from_child(&server), Signal::INT);
        let ended = server.wait_with_output().map_err(|error| error.to_string())?;
        read.map_err(|error| error.to_string())?;
        if line.starts_with("dashboard: http://127.0.0.1:") {
            return Ok(());
        }
        Err(format!("{script}\n{line}{}", String::from_utf8_lossy(&ended.stderr)))
    }
}
