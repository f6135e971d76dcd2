//! Programs of rewards and agents in verifier pods: the real bridge and runner, lost pods, and
//! clients that are rejected.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use rljob_coordinator::proxy::request::Rules;
use rljob_coordinator::proxy::{Call, Proxy, Session};
use rljob_coordinator::reward::call::CallError;
use rljob_coordinator::reward::session::Start;
use rljob_coordinator::reward::{Pool, Question, Rewards, Runner, VerifierPods, run_agent};
use rljob_crds::reward::RewardSpec;
use rljob_http::{Authority, ClientTls, Role};
use rljob_protocol::desired::VerifierEndpoint;
use rljob_protocol::status::VerifierLoad;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

const UID: &str = "uid";
const QUESTION: Question<'static> =
    Question { prompt: "", completion: "", answer: None, fields: None };
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
    /// The pod of a job with agents, whose programs can use the network of the pod.
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
        let runner =
            program().args(["serve", "--network", "--socket"]).arg(&socket).spawn().unwrap();
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
        let rewards = Rewards::new(&[spec], &Runner::Pods(Arc::clone(&pods)), None).unwrap();
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

/// Posts a reward with its key, and fails unless other keys and paths are rejected.
const AGENT: &str = r#"
import json, os, sys, urllib.error, urllib.request
assert json.load(sys.stdin) == {"question": "1+1"}
base = os.environ["OPENAI_BASE_URL"]
assert base.startswith("http://127.0.0.1:")
def status(url, body, key=os.environ["OPENAI_API_KEY"]):
    request = urllib.request.Request(url, data=body, headers={"Authorization": "Bearer " + key})
    try: return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error: return error.code
reward = base + "/rljob/reward"
exit = base.removesuffix("/v1") + "/exit"
found = [status(base + "/models", None), status(reward, b'{"reward": 1}'),
         status(reward, b'{"reward": 1}', "wrong"),
         status(reward, b'{"reward": 1' + b" " * (7 << 20) + b"}"),
         status(exit, b'{"NotStarted": "forged"}'), status(exit + "/../../exit", b"{}")]
if found != [200, 200, 401, 200, 404, 404]: sys.exit(str(found))
"#;

/// Agents of verifier pods, one at a time in each.
struct AgentPods {
    pods: Arc<VerifierPods>,
    pool: Pool,
    proxy: Proxy,
}

impl AgentPods {
    fn new(pods: &[&Pod]) -> Self {
        let named: Vec<VerifierEndpoint> = pods.iter().map(|pod| pod.endpoint.clone()).collect();
        let pods = VerifierPods::new(tls(Role::Coordinator));
        pods.set(&named);
        let pool = Pool::new(&Runner::Pods(Arc::clone(&pods)), 1);
        Self { pods, pool, proxy: Proxy::new(Rules { temperature: 1.0 }) }
    }

    async fn run(&self, program: &str) -> Result<(), CallError> {
        let session = self.proxy.session([1; 32]);
        let variables = [("OPENAI_API_KEY".to_owned(), session.api_key.clone())];
        let start = Start::Agent {
            command: ["python3", "-c", program].map(str::to_owned).to_vec(),
            variables: BTreeMap::from(variables),
            is_forwarded: true,
        };
        let slot = self.pool.acquire().await.unwrap();
        let input = json!({"question": "1+1"});
        let router = self.proxy.router();
        let program = run_agent(&slot, &start, &input, router, Duration::from_secs(60));
        tokio::select! {
            ended = program => ended,
            () = accept(session) => panic!("the session ended"),
        }
    }
}

/// Accepts every reward.
async fn accept(mut session: Session) {
    while let Some(call) = session.calls.recv().await {
        if let Call::Reward(_, _, reply) = call {
            reply.send(Ok(())).unwrap();
        }
    }
}

#[tokio::test]
async fn agents_in_a_pod_reach_the_proxy_and_nothing_else_of_the_coordinator() {
    let pod = Pod::start("a").await;
    let agents = AgentPods::new(&[&pod]);
    agents.run(AGENT).await.unwrap();
    let ended = agents.run("import sys; sys.exit('no answer')").await;
    let Err(CallError::Failed(error)) = ended else { panic!("{ended:?}") };
    let expected = "the command ended with exit status: 1; last line of stderr: `no answer`";
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn an_agent_ends_with_its_pod_and_when_the_coordinator_gives_up() {
    let (mut pod, folder) = (Pod::start("a").await, tempfile::tempdir().unwrap());
    let file = folder.path().join("pid");
    let program = format!(
        "import os, time\nopen('{0}.new', 'w').write(str(os.getpid()))\n\
         os.rename('{0}.new', '{0}')\ntime.sleep(60)",
        file.display()
    );
    let ended = async || {
        let process = PathBuf::from("/proc").join(fs::read_to_string(&file).unwrap());
        wait_until(async || !process.exists()).await;
        fs::remove_file(&file).unwrap();
    };
    let agents = AgentPods::new(&[&pod]);
    tokio::select! {
        result = agents.run(&program) => panic!("{result:?}"),
        () = wait_until(async || file.exists()) => {}
    }
    ended().await;
    let kill = async {
        wait_until(async || file.exists()).await;
        pod.bridge.kill().await.unwrap();
    };
    let (result, ()) = tokio::join!(agents.run(&program), kill);
    assert!(matches!(result, Err(CallError::Lost(_))), "{result:?}");
    ended().await;
    let next = Pod::start("b").await;
    agents.pods.set(slice::from_ref(&next.endpoint));
    let remove = async {
        wait_until(async || file.exists()).await;
        agents.pods.set(&[]);
    };
    let (result, ()) = tokio::join!(agents.run(&program), remove);
    assert!(matches!(result, Err(CallError::Removed)), "{result:?}");
    ended().await;
}
