//! What this node has and allows: interpreter, compiler, Landlock and namespaces.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use rljob_sandbox::plan::{Plan, SEARCH_PATH};
use rustix::process::geteuid;
use tempfile::TempDir;

use crate::enter::THIS_PROGRAM;

/// Exit code if the sandbox can never start on this node, and of a program that cannot be started
/// in it.
pub const NOT_STARTED: u8 = 125;
/// User and group of programs if this process is root.
const UNPRIVILEGED: u32 = 65534;

/// The sandbox cannot start on this node, whatever the program.
#[derive(Debug, thiserror::Error)]
pub enum Unsupported {
    #[error(
        "no program {0} in {SEARCH_PATH}: install it in the image, or set the image of the \
         container `rewards`"
    )]
    Program(String),
    #[error("no program {0}")]
    Path(String),
    #[error("failed to open the folder {path}: {cause}")]
    Folder { path: String, cause: std::io::Error },
    #[error("this node cannot confine programs: {0}")]
    Confinement(String),
}

/// Path of a program of the sandbox.
pub fn program(name: &str) -> Result<PathBuf, Unsupported> {
    let mut paths = SEARCH_PATH.split(':').map(|folder| Path::new(folder).join(name));
    paths.find(|path| path.is_file()).ok_or_else(|| Unsupported::Program(name.to_owned()))
}

/// The command that enters the sandbox. As root, it does so as another user, unless the program
/// reads files that only root may read.
pub fn entering(plan: &Plan, keeps_user: bool) -> anyhow::Result<Command> {
    let mut command = Command::new(THIS_PROGRAM);
    command.args(["enter", "--plan", &serde_json::to_string(plan)?, "--"]);
    if geteuid().is_root() && !keeps_user {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    Ok(command)
}

/// A folder for the files of programs; with namespaces, the place where theirs is mounted.
pub fn scratch(keeps_user: bool) -> anyhow::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("rljob-sandbox-").tempdir();
    let folder = folder.context("failed to create a scratch folder")?;
    if geteuid().is_root() && !keeps_user {
        chown(folder.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED))
            .context("failed to change the owner of a scratch folder")?;
    }
    Ok(folder)
}

/// A command that does nothing, with the interpreter of judges and functions.
pub const PYTHON: &[&str] = &["python3", "-c", "pass"];

/// Whether programs get namespaces. Tries the sandbox with and without them with a `command`; logs
/// what is missing.
pub fn has_namespaces(
    keeps_user: bool,
    command: &[&str],
    plan: impl Fn(bool, PathBuf) -> Plan,
) -> anyhow::Result<bool> {
    let (name, arguments) = command.split_first().context("no program is given")?;
    let program = program(name)?;
    let scratch = scratch(keeps_user)?;
    let attempt = |namespaces| -> anyhow::Result<Result<(), String>> {
        let plan = plan(namespaces, scratch.path().to_owned());
        let output = entering(&plan, keeps_user)?
            .arg(&program)
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .context("failed to start a sandbox")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let cause = errors.trim().lines().next_back().unwrap_or_default().to_owned();
        Ok(if output.status.success() { Ok(()) } else { Err(cause) })
    };
    let Err(cause) = attempt(true)? else { return Ok(true) };
    attempt(false)?.map_err(Unsupported::Confinement)?;
    eprintln!(
        "no namespaces for programs ({cause}): each test is one process that cannot write files"
    );
    Ok(false)
}
