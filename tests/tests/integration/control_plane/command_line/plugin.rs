//! `kubectl rljob`: kubectl with the plugin in its PATH, with and without a terminal.

use std::env;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use rljob_tests::Namespace;
use rljob_tests::files::{binary, kubernetes};
use rljob_tests::process::run;
use tempfile::TempDir;

use super::super::cluster;

/// A folder of PATH with the plugin, as a link to `rljob`.
pub(in super::super) struct Plugin(pub(super) TempDir);

impl Plugin {
    pub(in super::super) fn install() -> Self {
        let folder = tempfile::tempdir().unwrap();
        symlink(binary("rljob").unwrap(), folder.path().join("kubectl-rljob")).unwrap();
        Self(folder)
    }

    /// kubectl with the plugin in PATH and the cluster's kubeconfig in KUBECONFIG.
    pub(super) fn kubectl(&self, arguments: &[&str]) -> Command {
        kubectl_with(self.0.path(), arguments)
    }

    /// `kubectl rljob ARGUMENTS --namespace NAMESPACE`.
    pub(in super::super) fn run(
        &self,
        namespace: &Namespace,
        arguments: &[&str],
    ) -> Result<String, String> {
        let mut command = self.kubectl(&["rljob"]);
        command.args(arguments).args(["--namespace", &namespace.name]);
        run(&mut command).map_err(|error| format!("{error:#}"))
    }

    /// Runs `kubectl rljob` in a pseudo terminal, calls `then` after its second frame, and returns
    /// all frames.
    pub(super) fn frames(
        &self,
        namespace: &Namespace,
        arguments: &str,
        then: impl FnOnce(),
    ) -> Vec<String> {
        let line = format!("kubectl rljob {arguments} --namespace {}", namespace.name);
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        set_environment(&mut command, self.0.path());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let (mut bytes, mut buffer, mut then) = (Vec::new(), [0; 4096], Some(then));
        let frames = |bytes: &[u8]| -> Vec<String> {
            let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n");
            text.split("\x1b[H\x1b[2J").skip(1).map(ToOwned::to_owned).collect()
        };
        loop {
            let count = output.read(&mut buffer).unwrap();
            bytes.extend(&buffer[..count]);
            if count == 0 {
                break;
            }
            if frames(&bytes).len() > 1
                && let Some(then) = then.take()
            {
                then();
            }
        }
        assert!(child.wait().unwrap().success());
        frames(&bytes)
    }
}

pub(super) fn kubectl_with(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(kubernetes("kubectl").unwrap());
    set_environment(&mut command, folder);
    command.args(arguments);
    command
}

/// Lets a command find kubectl, the programs of a folder and the cluster.
fn set_environment(command: &mut Command, folder: &Path) {
    let program = kubernetes("kubectl").unwrap();
    let folders = [folder, program.parent().unwrap()];
    let path =
        format!("{}:{}:{}", folders[0].display(), folders[1].display(), env::var("PATH").unwrap());
    command.env("PATH", path).env("KUBECONFIG", cluster().kubeconfig());
}
