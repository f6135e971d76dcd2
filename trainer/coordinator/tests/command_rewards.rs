//! Command rewards with the real runner: results, failures, and what a command cannot do.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::float_cmp, reason = "rewards are exact")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rljob_coordinator::reward::{Question, RewardError, Rewards, Runner};
use rljob_crds::reward::RewardSpec;
use serde_json::json;
use tokio::process::{Child, Command};

const QUESTION: Question<'static> =
    Question { prompt: "1 + 1?", completion: "2", answer: Some("two"), fields: None };

/// Answers each request with the number of preceding requests as reward.
const COUNTING: &str = concat!(
    r#"n=0; while read -r line; do id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/'); "#,
    r#"echo "{\"id\": $id, \"reward\": $n}"; n=$((n+1)); done"#,
);

fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_rljob-reward-runner").into()
}

fn command_at(runner: &Runner, command: &[&str], timeout: u32, retries: u32) -> Rewards {
    let spec: RewardSpec = serde_json::from_value(json!({"name": "check", "command": {
        "command": command, "timeoutSeconds": timeout, "retries": retries, "maxOutageSeconds": 0,
    }}))
    .unwrap();
    Rewards::new(&[spec], runner, None).unwrap()
}

fn command(command: &[&str], timeout: u32, retries: u32) -> Rewards {
    command_at(&Runner::Program(program()), command, timeout, retries)
}

async fn value(rewards: &Rewards) -> f64 {
    rewards.score(QUESTION).await.unwrap().value
}

/// The error and its causes.
async fn error(rewards: &Rewards) -> String {
    let error: RewardError = rewards.score(QUESTION).await.unwrap_err();
    let (mut text, mut cause) = (error.to_string(), std::error::Error::source(&error));
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Answers with reward 1 if the shell expression succeeds, else 0.
fn probe(expression: &str) -> String {
    format!(
        "read -r line; if {expression}; then r=1; else r=0; fi 2>/dev/null; \
         echo \"{{\\\"id\\\": 0, \\\"reward\\\": $r}}\"; cat >/dev/null"
    )
}

#[tokio::test]
async fn one_process_serves_successive_requests() {
    let rewards = command(&["sh", "-c", COUNTING], 10, 0);
    for expected in [0.0, 1.0, 2.0] {
        assert_eq!(value(&rewards).await, expected);
    }
}

#[tokio::test]
async fn concurrent_requests_wait_for_the_process() {
    let rewards = command(&["sh", "-c", COUNTING], 10, 0);
    let scored = futures::future::join_all((0..8).map(|_| value(&rewards))).await;
    let mut values = scored;
    values.sort_by(f64::total_cmp);
    assert_eq!(values, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
}

#[tokio::test]
async fn a_command_that_ends_is_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("started-before");
    let script = format!("[ -e {0} ] || {{ touch {0}; exit 3; }}; {COUNTING}", mark.display());
    assert_eq!(value(&command(&["sh", "-c", &script], 10, 1)).await, 0.0);
}

#[tokio::test]
async fn errors_of_commands_name_the_command_and_the_cause() {
    let failed = |script: &str| {
        format!("reward check (command sh -c {script}) failed 1 times for a completion; last error")
    };
    for (script, why) in [
        (
            "echo no such model >&2; exit 3",
            "the command ended with exit status: 3; last line of stderr: `no such model`",
        ),
        ("exit 0", "the command ended with exit status: 0"),
        ("kill -9 $$", "the command ended with signal: 9 (SIGKILL)"),
        (
            "echo loading; cat",
            "invalid response `loading`, expected {\"reward\": number}: \
             expected value at line 1 column 1",
        ),
        (
            r#"echo '{"reward": 1}'; cat"#,
            "invalid response `{\"reward\": 1}`, expected {\"reward\": number}: \
             expected id 0, found none",
        ),
        ("exec sleep 1000", "no response within 3 s"),
    ] {
        assert_eq!(
            error(&command(&["sh", "-c", script], 3, 0)).await,
            format!("{}: {why}", failed(script))
        );
    }
    let missing = error(&command(&["/nowhere/verify", "--fast"], 5, 0)).await;
    let expected = "reward check (command /nowhere/verify --fast) is unavailable: fix it and run \
                    the job again; last error: failed to start the command: No such file or \
                    directory (os error 2)";
    assert_eq!(missing, expected);
}

#[tokio::test]
async fn endless_output_is_bounded() {
    let text = error(&command(&["sh", "-c", "yes | tr -d '\\n'"], 20, 0)).await;
    assert!(text.contains("longer than 1048576 bytes"), "{text}");
    // Standard error is logged at a limited rate and does not delay the response.
    let script = format!("yes >&2 & {COUNTING}");
    assert_eq!(value(&command(&["sh", "-c", &script], 20, 0)).await, 0.0);
}

/// Running `sleep` processes with this argument.
fn sleepers(seconds: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines =
        entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.starts_with("sleep\0") && line.contains(seconds)).count()
}

async fn wait_for_sleepers(seconds: &str, count: usize) {
    let start = Instant::now();
    while sleepers(seconds) != count {
        assert!(start.elapsed() < Duration::from_secs(20), "{} remain", sleepers(seconds));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn all_descendants_are_killed_at_a_timeout_and_at_the_end() {
    let seconds = format!("97{}", std::process::id());
    // In the same session, in others, and orphaned.
    let fork = format!(
        "sleep {seconds} & setsid sleep {seconds} & setsid sh -c 'sleep {seconds} & exit' & "
    );
    let hangs = command(&["sh", "-c", &format!("{fork} exec sleep {seconds}")], 2, 0);
    assert!(error(&hangs).await.contains("no response within 2 s"));
    wait_for_sleepers(&seconds, 0).await;
    let rewards = command(&["sh", "-c", &format!("{fork} {COUNTING}")], 10, 0);
    assert_eq!(value(&rewards).await, 0.0);
    wait_for_sleepers(&seconds, 3).await;
    drop(rewards);
    wait_for_sleepers(&seconds, 0).await;
}

#[tokio::test]
async fn a_command_has_no_network_and_no_environment() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connects = format!("bash -c ': >/dev/tcp/127.0.0.1/{port}'");
    assert_eq!(value(&command(&["bash", "-c", &probe(&connects)], 10, 0)).await, 0.0);
    // Cargo sets it for this test.
    for leaks in ["env | grep -q CARGO", "grep -q CARGO /proc/$PPID/environ"] {
        assert_eq!(value(&command(&["sh", "-c", &probe(leaks)], 10, 0)).await, 0.0, "{leaks}");
    }
    assert_eq!(value(&command(&["sh", "-c", &probe("test -n \"$PATH\"")], 10, 0)).await, 1.0);
    assert_eq!(value(&command(&["sh", "-c", &probe("[ $(ulimit -c) = 0 ]")], 10, 0)).await, 1.0);
}

/// The runner of a pod.
fn serve(socket: &Path) -> Child {
    Command::new(program())
        .args(["serve", "--socket"])
        .arg(socket)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn commands_run_in_the_runner_behind_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let runner = Runner::Socket(socket.clone());
    let unreachable = error(&command_at(&runner, &["sh", "-c", COUNTING], 5, 0)).await;
    assert!(unreachable.contains("failed to reach the reward runner"), "{unreachable}");
    let mut server = serve(&socket);
    let start = Instant::now();
    while !socket.exists() && start.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let rewards = command_at(&runner, &["sh", "-c", COUNTING], 10, 0);
    assert_eq!((value(&rewards).await, value(&rewards).await), (0.0, 1.0));
    server.kill().await.unwrap();
}

/// PIDs of the children of a process, with the letter of their state.
fn children_of(parent: u32) -> Vec<(i32, String)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let children = stats.filter_map(|stat| {
        let pid = stat.split(' ').next()?.parse().ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?.to_owned();
        (fields.next()? == parent.to_string()).then_some((pid, state))
    });
    children.collect()
}

#[tokio::test]
async fn descendants_of_a_killed_session_are_killed_and_reaped() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let server = serve(&socket);
    let start = Instant::now();
    while !socket.exists() && start.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seconds = format!("98{}", std::process::id());
    let script = format!("setsid sleep {seconds} & setsid sh -c 'sleep {seconds} & exit' & ");
    let rewards =
        command_at(&Runner::Socket(socket), &["sh", "-c", &format!("{script} {COUNTING}")], 10, 0);
    assert_eq!(value(&rewards).await, 0.0);
    wait_for_sleepers(&seconds, 2).await;
    let server = server.id().unwrap();
    for (session, _) in children_of(server) {
        let pid = rustix::process::Pid::from_raw(session).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    wait_for_sleepers(&seconds, 0).await;
    let start = Instant::now();
    while !children_of(server).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", children_of(server));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
