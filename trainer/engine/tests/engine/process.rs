//! Process behavior: waiting for the folder, signals, exit of the parent.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::harness::{tiny_config, write_model};

const LIMIT: Duration = Duration::from_secs(120);

fn engine(model: &std::path::Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rljob-engine"));
    command
        .args(["--port", "0", "--model-path", model.to_str().unwrap()])
        .args(flags)
        .env("OMP_NUM_THREADS", "1");
    command.stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Waits for a log line that contains `text`.
async fn logged(child: &mut Child, text: &str) -> BufReader<tokio::process::ChildStderr> {
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    let seen = async {
        while !line.contains(text) {
            line.clear();
            assert!(
                lines.read_line(&mut line).await.unwrap() > 0,
                "the engine exited before `{text}`"
            );
        }
    };
    timeout(LIMIT, seen).await.unwrap();
    lines
}

#[tokio::test]
async fn the_engine_waits_for_its_folder_and_exits_with_0_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let mut child = engine(&model, &[]).spawn().unwrap();
    let stderr = logged(&mut child, "waiting for the model folder").await;
    child.stderr = Some(stderr.into_inner());
    let partial = folder.path().join("partial");
    write_model(&partial, &tiny_config(), 1);
    std::fs::rename(&partial, &model).unwrap();
    let _stderr = logged(&mut child, "listening on http://127.0.0.1:").await;
    kill_process(Pid::from_raw(child.id().unwrap() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(timeout(LIMIT, child.wait()).await.unwrap().unwrap().code(), Some(0));
}

#[tokio::test]
async fn the_engine_exits_with_its_parent_on_request() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), tiny_config().to_string()).unwrap();
    let command = r#"
"$0" --port 0 --load-format dummy --exit-with-parent $$ --model-path "$1" &
echo "pid $!" >&2; read _; exit 0"#;
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command, env!("CARGO_BIN_EXE_rljob-engine"), folder.path().to_str().unwrap()])
        .env("OMP_NUM_THREADS", "1");
    let mut shell =
        shell.stdin(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(shell.stderr.take().unwrap()).lines();
    let mut pid = None;
    loop {
        let line = timeout(LIMIT, lines.next_line())
            .await
            .unwrap()
            .unwrap()
            .expect("the engine exited before it listened");
        pid = line
            .strip_prefix("pid ")
            .map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap())
            .or(pid);
        if line.contains("listening on") {
            break;
        }
    }
    drop(shell.stdin.take());
    assert!(timeout(LIMIT, shell.wait()).await.unwrap().unwrap().success());
    let gone = async {
        while test_kill_process(pid.unwrap()).is_ok() && !is_zombie(pid.unwrap()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, gone).await.unwrap();
}

/// Whether the process has exited but has not been waited for.
fn is_zombie(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .is_ok_and(|stat| stat.contains(") Z "))
}
