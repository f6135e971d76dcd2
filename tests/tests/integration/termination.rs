//! SIGTERM during the start of each program of a pod. The first process of a container gets no
//! signal without a handler: a program that waits before it installs one runs until the grace
//! period of its pod is over.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rljob_tests::files::binary;
use rljob_tests::process::{run, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// Time limit of a start and of an exit on a loaded machine.
const LIMIT: Duration = Duration::from_secs(60);
/// A run configuration that blocks its reader until [`exit_after_sigterm`] opens it.
const CONFIG: &str = "run.json";

/// Starts a program in a folder, sends SIGTERM once it has a handler, and returns its exit.
fn terminate(folder: &Path, program: &str, arguments: &str) -> ExitStatus {
    let mut command = Command::new(binary(program).unwrap());
    command.args(arguments.split(' ')).current_dir(folder).stderr(Stdio::null());
    let mut process = command.spawn().unwrap();
    let exit = exit_after_sigterm(&mut process, folder);
    // It still runs after an error.
    let _ = process.kill();
    exit.unwrap_or_else(|error| panic!("{program} {arguments}: {error:#}"))
}

fn exit_after_sigterm(process: &mut Child, folder: &Path) -> Result<ExitStatus> {
    wait_until("a handler of SIGTERM", LIMIT, || Ok(handles_sigterm(process)))?;
    kill_process(Pid::from_child(process), Signal::TERM)?;
    let mut exit = None;
    wait_until("the exit", LIMIT, || {
        // A reader of the configuration gets the end of the file.
        drop(File::options().read(true).write(true).open(folder.join(CONFIG))?);
        exit = process.try_wait()?;
        Ok(exit.is_some())
    })?;
    exit.context("the process has no exit status")
}

/// Whether the process has a handler for SIGTERM.
fn handles_sigterm(process: &Child) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    caught.is_some_and(|bits| bits >> (Signal::TERM.as_raw() - 1) & 1 == 1)
}

#[test]
fn programs_handle_sigterm_before_they_read_or_wait_for_anything() {
    let folder = tempfile::tempdir().unwrap();
    run(Command::new("mkfifo").arg(folder.path().join(CONFIG))).unwrap();
    let exit = |program: &str, arguments: &str| terminate(folder.path(), program, arguments);
    assert_eq!(exit("rljob-engine", "--model-path=absent --port=0").code(), Some(0));
    for arguments in [
        "serve --socket=socket",
        "bridge --socket=absent --listen=127.0.0.1:0 --tls-file=absent --tls-client-name=none",
    ] {
        assert_eq!(exit("rljob-reward-runner", arguments).code(), Some(0), "{arguments}");
    }
    // These exit because their configuration is empty; without a handler they would be killed.
    for (program, arguments) in [
        ("rljob-coordinator", ""),
        ("rljob-coordinator", " --download-model"),
        ("rljob-supervisor", " --coordinator=https://127.0.0.1:1 --name=a --address=127.0.0.1"),
    ] {
        let arguments = format!("--config={CONFIG} --tokens=absent{arguments}");
        assert!(exit(program, &arguments).code().is_some(), "{program} {arguments}");
    }
}
