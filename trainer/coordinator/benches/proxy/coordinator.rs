//! Coordinator of the benchmark in a separate process: the proxy, sessions and sampler of a run
//! with one engine. A line with a number on standard input opens so many sessions, whose keys it
//! prints. It exits at the end of its input.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use prometheus::{IntCounter, Registry};
use rljob_coordinator::clock::Clock;
use rljob_coordinator::engines::{EngineClient, FixedFleets, Fleet, Weights};
use rljob_coordinator::input::Input;
use rljob_coordinator::persistence::fence::Fence;
use rljob_coordinator::proxy::request::Rules;
use rljob_coordinator::proxy::{LIMITS, LoopbackPort, Proxy};
use rljob_coordinator::reward::Runner;
use rljob_coordinator::rollout::agent::calls;
use rljob_coordinator::rollout::agent::session::Session;
use rljob_coordinator::rollout::episodes::Episodes;
use rljob_coordinator::rollout::request::{Key, Purpose};
use rljob_coordinator::rollout::sampler::{SampleRequest, Sampler};
use rljob_coordinator::telemetry::ToolCalls;
use rljob_coordinator::tokens::Token;
use rljob_crds::RunConfig;
use rljob_crds::roles::InferenceSpec;
use rljob_protocol::desired::EngineEndpoint;
use rljob_protocol::version::Version;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const MAX_TURNS: u32 = 16;

/// The process, killed on drop.
pub struct Coordinator {
    /// Base URL of the proxy.
    pub url: String,
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Coordinator {
    pub fn start(engine: &str, model: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("serve").arg(engine).arg(model);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut coordinator = Self { url: String::new(), child, answers };
        coordinator.url = coordinator.line();
        coordinator
    }

    /// Opens sessions and returns their keys.
    pub fn open(&mut self, sessions: usize) -> Vec<String> {
        writeln!(self.child.stdin.as_mut().unwrap(), "{sessions}").unwrap();
        (0..sessions).map(|_| self.line()).collect()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.answers.read_line(&mut line).unwrap() > 0, "the coordinator exited");
        line.trim().to_owned()
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> f64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<f64>().unwrap() * 1024.0
    }

    /// Open sockets.
    pub fn connections(&self) -> usize {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let targets = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process.
pub async fn serve(engine: &str, model: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), model);
    let input = Arc::new(
        Input::open(&config, &Runner::Program(PathBuf::new()), &FixedFleets::default()).unwrap(),
    );
    std::fs::write(folder.path().join("token"), "secret").unwrap();
    let token = Token::open(folder.path(), "token").unwrap();
    let fence = Fence::claim(folder.path(), "bench", 1, 1).unwrap();
    let client = EngineClient::new(token.clone(), token, None);
    let fleet = Fleet::new(&InferenceSpec::default(), client, Clock::start());
    let name = "engine-0".to_owned();
    fleet.set(&[EngineEndpoint { name, url: engine.to_owned(), uid: None }]);
    let interrupted = IntCounter::new("interrupted", "Interruptions.").unwrap();
    let sampler = Sampler::new(&config, &input, &fleet, Clock::start(), 1, interrupted);
    let rollout = &config.spec.rollout;
    let episodes = Episodes {
        input: &input,
        data: input.train().unwrap(),
        sampler: &sampler,
        weights: Weights::Exactly(Version { step: 0, attempt: 0 }),
        lengths: input.lengths(&config.spec, rollout.max_new_tokens),
        tool_calls: &ToolCalls::new(&Registry::new()).unwrap(),
    };
    let proxy = Proxy::new(Rules { temperature: rollout.temperature });
    let port = LoopbackPort::open().unwrap();
    println!("{}", port.base_url());
    let stop = CancellationToken::new();
    tokio::select! {
        () = sessions(&proxy, &episodes) => {}
        served = port.serve(&proxy, LIMITS, stop.clone()) => served.unwrap(),
        () = fleet.monitor(&fence, stop.clone()) => {}
    }
}

/// Opens sessions as requested and answers their calls.
async fn sessions(proxy: &Proxy, episodes: &Episodes<'_>) {
    let prompt = episodes.data.prompt(0).unwrap();
    let mut requested = numbers();
    let mut open = FuturesUnordered::new();
    let mut position = 0_u64;
    let answer = |position| {
        let mut opened = proxy.session(rand::random());
        println!("{}", opened.api_key);
        let prompt = &prompt;
        async move {
            let request = SampleRequest {
                key: Key { purpose: Purpose::Rollout, step: 1, position, index: 0, turn: 0 },
                temperature: 1.0,
                top_p: 1.0,
                max_new_tokens: episodes.lengths.max_new_tokens,
                stop: Vec::new(),
                live: None,
            };
            let session = Session { episodes, prompt, request: &request };
            let program = std::future::pending::<()>();
            calls::answer(&mut opened, session, MAX_TURNS, program).await.map(drop).unwrap();
        }
    };
    loop {
        tokio::select! {
            number = requested.recv() => {
                let Some(number) = number else { return };
                for _ in 0..number {
                    open.push(answer(position));
                    position += 1;
                }
            }
            Some(()) = open.next() => {}
        }
    }
}

/// The numbers on standard input.
fn numbers() -> mpsc::Receiver<usize> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if sender.blocking_send(line.unwrap().parse().unwrap()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// A job with this model and one row of data.
fn config(folder: &Path, model: &Path) -> RunConfig {
    let data = folder.join("data.jsonl");
    std::fs::write(&data, "{\"question\": \"What is 1 + 1?\"}\n").unwrap();
    let agent = json!({"command": ["true"], "maxTurns": MAX_TURNS});
    serde_json::from_value(json!({
        "namespace": "bench", "name": "proxy", "uid": "bench",
        "runDirectory": folder, "modelDirectory": model,
        "spec": {
            "model": {"path": model},
            "storage": {"hostPath": {"path": folder}},
            "dataset": {"train": {"path": data, "prompt": "{{question}}"}},
            "algorithm": {"grpo": {}},
            "rollout": {"maxNewTokens": 64, "workflow": {"agent": agent}},
            "training": {"steps": 1},
        },
    }))
    .unwrap()
}
