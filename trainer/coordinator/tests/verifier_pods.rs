//! Programs of rewards in verifier pods: the real bridge and runner, lost pods, and clients that
//! are rejected.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use rljob_coordinator::reward::{Question, Rewards, Runner, VerifierPods};
use rljob_crds::reward::RewardSpec;
use rljob_http::{Authority, ClientTls, Role};
use rljob_protocol::desired::VerifierEndpoint;
use rljob_protocol::status::VerifierLoad;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

const UID: &str = "uid";
const QUESTION: Question<'static> = Question { prompt: "", completion: "", answer: None };
/// Answers once a file exists.
const SLOW: &str = concat!(
    r#"while read -r line; do id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/'); "#,
    r#"touch FOLDER/began; while ! [ -e FOLDER/go ]; do sleep 0.02; done; "#,
    r#"echo "{\"id\": $id, \"reward\": 1}"; done"#,
);

fn pem(role: Role) -> String {
    Authority::new(UID, [1; 32]).unwrap().issue(role, [role as u8; 32]).unwrap()
}

fn tls(role: Role) -> ClientTls {
    ClientTls::of_pem(&pem(role), &Role::Verifier.server_name(UID)).unwrap()
}

/// The containers of a verifier pod, as processes.
struct Pod {
    endpoint: VerifierEndpoint,
    bridge: Child,
    _runner: Child,
    _folder: tempfile::TempDir,
}

impl Pod {
    async fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (socket, key) = (folder.path().join("socket"), folder.path().join("key"));
        fs::write(&key, pem(Role::Verifier)).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address: SocketAddr = port.local_addr().unwrap();
        drop(port);
        let program = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_rljob-reward-runner"));
            command.kill_on_drop(true);
            command
        };
        let bridge = program()
            .args(["bridge", "--listen", &address.to_string(), "--socket"])
            .arg(&socket)
            .arg("--tls-file")
            .arg(&key)
            .args(["--tls-client-name", &Role::Coordinator.server_name(UID)])
            .spawn()
            .unwrap();
        let runner = program().args(["serve", "--socket"]).arg(&socket).spawn().unwrap();
        wait_until(async || TcpStream::connect(address).await.is_ok()).await;
        let endpoint = VerifierEndpoint { name: name.to_owned(), uid: name.to_owned(), address };
        Self { endpoint, bridge, _runner: runner, _folder: folder }
    }
}

async fn wait_until(condition: impl AsyncFn() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < Duration::from_secs(20), "the condition does not hold");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Pods, and a reward whose calls last until the file `go` exists.
struct Setup {
    pods: Arc<VerifierPods>,
    rewards: Rewards,
    folder: tempfile::TempDir,
}

impl Setup {
    fn new(processes: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = SLOW.replace("FOLDER", &folder.path().display().to_string());
        let spec: RewardSpec = serde_json::from_value(json!({"name": "slow", "command": {
            "command": ["sh", "-c", script], "processes": processes, "retries": 0,
            "maxOutageSeconds": 0,
        }}))
        .unwrap();
        let pods = VerifierPods::new(tls(Role::Coordinator));
        let rewards = Rewards::new(&[spec], &Runner::Pods(Arc::clone(&pods))).unwrap();
        Self { pods, rewards, folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn values(&self, calls: usize) -> Vec<f64> {
        let scores = join_all((0..calls).map(|_| self.rewards.score(QUESTION))).await;
        scores.into_iter().map(|score| score.unwrap().value).collect()
    }

    async fn wait_for_load(&self, running: u32, waiting: u32, needed_pods: u32) {
        let expected = VerifierLoad { running, waiting, needed_pods };
        wait_until(async || self.pods.load() == expected).await;
    }
}

#[tokio::test]
async fn calls_are_spread_over_pods_and_repeated_when_pods_are_lost() {
    let (mut first, second) = (Pod::start("a").await, Pod::start("b").await);
    let setup = Setup::new(2);
    setup.pods.set(slice::from_ref(&first.endpoint));
    let strike = async {
        setup.wait_for_load(2, 3, 3).await;
        setup.pods.set(&[first.endpoint.clone(), second.endpoint.clone()]);
        setup.wait_for_load(4, 1, 3).await;
        wait_until(async || setup.file("began").exists()).await;
        // One pod is lost, then a third one replaces both.
        first.bridge.kill().await.unwrap();
        setup.wait_for_load(2, 3, 3).await;
        let third = Pod::start("c").await;
        setup.pods.set(slice::from_ref(&third.endpoint));
        setup.wait_for_load(2, 3, 3).await;
        fs::write(setup.file("go"), "").unwrap();
        third
    };
    let (values, _third) = tokio::join!(setup.values(5), strike);
    assert_eq!(values, [1.0; 5]);
    setup.wait_for_load(0, 0, 3).await;
}

#[tokio::test]
async fn only_the_coordinator_is_admitted() {
    let pod = Pod::start("a").await;
    for (role, is_admitted) in
        [(Role::Coordinator, true), (Role::Trainer, false), (Role::Operator, false)]
    {
        let stream = TcpStream::connect(pod.endpoint.address).await.unwrap();
        let mut stream = tls(role).connect(stream).await.unwrap();
        // A server of TLS 1.3 rejects a client after the client's handshake.
        let read = tokio::time::timeout(Duration::from_secs(1), stream.read_u8()).await;
        assert_eq!(read.is_err(), is_admitted, "{role:?}: {read:?}");
    }
}
