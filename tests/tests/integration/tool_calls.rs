//! Tools on the model of the sample: samples in the journal, exact recovery of a run whose
//! coordinator is killed while a turn is sampled, and tools of agents with OpenAI's client.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rljob_tests::files::{mcp_python, openai_python, required, workspace};
use rljob_tests::process::run;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::exact_recovery::{RunUnderFaults, Victim, assert_same_result};
use crate::journal::query;
use crate::local_run::{LocalRun, evaluations};

/// The sample, smaller. The journal keeps the samples after the oldest checkpoint.
const SMALL: [&str; 13] = [
    "tools-sft:spec.training.steps=120",
    "tools-sft:spec.dataset.train.path=data/teacher.jsonl",
    "tools-sft:spec.model.path=data/model",
    "tools:spec.dataset.train.path=data/train.jsonl",
    "tools:spec.dataset.evaluation.path=data/test.jsonl",
    "tools:spec.dataset.evaluation.limit=8",
    "tools:spec.dataset.evaluation.everySteps=4",
    "tools:spec.training.steps=4",
    "tools:spec.training.deterministic=true",
    "tools:spec.optimizer.warmupSteps=1",
    "tools:spec.rollout.batchSize=8",
    "tools:spec.checkpoint={everySteps: 1, keepLast: 9}",
    "tools:spec.failurePolicy={maxRestarts: 50, backoff: {initialSeconds: 0, maxSeconds: 1}}",
];

/// A server of the samples, as a process of the test.
struct Adder {
    process: Child,
    url: String,
}

impl Adder {
    fn start(python: &Path, program: &str) -> Self {
        let program = workspace().join("manifests/samples/tools").join(program);
        let mut process =
            Command::new(python).arg(program).arg("0").stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { process, url: url.trim().to_owned() }
    }
}

impl Drop for Adder {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A folder with the jobs and the data of the sample.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let samples = workspace().join("manifests/samples");
    fs::copy(samples.join("tools.yaml"), folder.path().join("jobs.yaml")).unwrap();
    let program = samples.join("tools/make_data.py");
    run(Command::new("python3").arg(program).arg(folder.path().join("data"))).unwrap();
    folder
}

fn start(folder: &Path, runs: &str, more: &[String]) -> RunUnderFaults {
    let sets = SMALL.into_iter().chain(more.iter().map(String::as_str));
    let sets: Vec<&str> = sets.flat_map(|set| ["--set", set]).collect();
    RunUnderFaults::new(LocalRun::start_with(folder, runs, &sets), "tools")
}

/// Directory of the run, which has succeeded.
fn finished(run: RunUnderFaults) -> PathBuf {
    let directory = run.local.runs.join("default/tools");
    let (code, output) = run.local.end();
    assert_eq!(code, Some(0), "{output}");
    directory
}

fn count(directory: &Path, condition: &str) -> u64 {
    query(directory, &format!("SELECT COUNT(*) FROM samples WHERE {condition}")).parse().unwrap()
}

/// A call is followed by the sum, which is not trained on, and only the last turn has a reward.
fn check_samples(directory: &Path) {
    let turns = "json_array_length(turn_rewards)";
    let result = "json_extract(segments, '$[2].text')";
    let answer = "json_extract(segments, '$[3].text')";
    let right = format!("{turns} = 2 AND {result} = {answer} AND reward = 1");
    assert!(count(directory, &right) > 0);
    let prompt = "json_extract(segments, '$[0].text')";
    let [a, b] = [1, 4].map(|from| format!("substr({prompt}, {from}, 2)"));
    let call = format!("'%\"a\": \"' || {a} || '\", \"b\": \"' || {b} || '\"}}}}%'");
    let called = format!("{turns} > 1 AND json_extract(segments, '$[1].text') LIKE {call}");
    assert!(count(directory, &called) > 0);
    let sum = format!("printf('%03d', CAST({a} AS INTEGER) + CAST({b} AS INTEGER))");
    assert_eq!(count(directory, &format!("{called} AND {result} != {sum}")), 0);
    let first = "json_extract(turn_rewards, '$[0]')";
    assert_eq!(count(directory, &format!("{turns} > 1 AND {first} != 0")), 0);
    let trained = "json_extract(segments, '$[2].trained')";
    assert_eq!(count(directory, &format!("{turns} > 1 AND {trained}")), 0);
    assert!(evaluations(directory).iter().all(|evaluation| evaluation.greedy.is_some()));
    check_evaluation_samples(directory);
}

/// Results are given, not sampled, and only the last turn has a reward.
fn check_evaluation_samples(directory: &Path) {
    let text = fs::read_to_string(directory.join("evaluation-samples.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let right = lines.filter(|line| line["turns"].is_array() && line["reward"] == 1.0);
    let mut answered = 0;
    for line in right {
        let turns = line["turns"].as_array().unwrap();
        let [first, .., last] = turns.as_slice() else { panic!("one turn: {line}") };
        let sampled = |segment: usize| last["segments"][segment]["sampled"].clone();
        assert_eq!([sampled(0), sampled(1)], [json!(false), json!(true)], "{line}");
        assert_eq!([&first["reward"], &last["reward"]], [&json!(0.0), &json!(1.0)], "{line}");
        assert_eq!(first["segments"][0]["text"], line["prompt"], "{line}");
        answered += usize::from(last["segments"][0]["text"] == line["answer"]);
    }
    assert!(answered > 0);
}

/// Gives the run of the first job to other runs.
fn copy_first_job(folder: &Path, runs: &str) {
    let jobs = folder.join(runs).join("default");
    fs::create_dir_all(&jobs).unwrap();
    let first = folder.join("tools/default/tools-sft");
    run(Command::new("cp").arg("-a").arg(first).arg(&jobs)).unwrap();
}

/// The second job with another tool of the same name and schema.
fn start_with(folder: &Path, runs: &str, tool: &str) -> RunUnderFaults {
    copy_first_job(folder, runs);
    let number = "{type: string}";
    let parameters =
        format!("{{type: object, properties: {{a: {number}, b: {number}}}, required: [a, b]}}");
    let tool = format!(
        "tools:spec.rollout.workflow.tools.tools=[{{name: add, description: Adds two numbers., \
            parameters: {parameters}, {tool}}}]"
    );
    start(folder, runs, &[tool])
}

#[test]
fn results_follow_calls_whatever_the_tool_and_kills_in_a_turn_do_not_change_the_result() {
    let (folder, adder) = (folder(), Adder::start(Path::new("python3"), "adder.py"));
    let url = format!("tools:spec.rollout.workflow.tools.tools[0].http.url={}", adder.url);
    let settings = [url];
    let expected = finished(start(folder.path(), "tools", &settings));
    check_samples(&expected);
    let samples = workspace().join("manifests/samples/tools");
    let program =
        format!("command: {{command: [python3, add.py], folder: '{}'}}", samples.display());
    assert_same_result(&finished(start_with(folder.path(), "programs", &program)), &expected);
    if let Some(python) = required(mcp_python()) {
        let server = Adder::start(&python, "mcp_adder.py");
        let tool = format!("mcp: {{url: '{}'}}", server.url);
        assert_same_result(&finished(start_with(folder.path(), "mcp", &tool)), &expected);
    }
    copy_first_job(folder.path(), "killed");
    let mut killed = start(folder.path(), "killed", &settings);
    killed.kill_coordinator_in_a_turn();
    killed.wait_for_steps(2);
    killed.kill_after_log_lines(Victim::Engine, 20);
    killed.kill_coordinator_in_a_turn();
    assert_same_result(&finished(killed), &expected);
}

#[test]
fn the_client_of_openai_calls_tools_and_the_sample_has_the_exact_tokens() {
    let Some(python) = required(openai_python()) else { return };
    let program = workspace().join("tests/openai/tools.py");
    let agent = format!(
        "tools:spec.rollout.workflow={{agent: {{command: ['{}', '{}'], retries: 0}}}}",
        python.display(),
        program.display()
    );
    let small = ["training.steps=2", "rollout.batchSize=4", "rewards=[]"];
    let small = small.map(|set| format!("tools:spec.{set}"));
    let settings: Vec<String> = [agent].into_iter().chain(small).collect();
    let folder = folder();
    let directory = finished(start(folder.path(), "agent-tools", &settings));
    // The program fails unless the proxy returns calls and continues their conversation. The
    // journal has the samples of the last step.
    let turns = "json_array_length(turn_rewards)";
    assert_eq!(count(&directory, "TRUE"), 32);
    assert!(count(&directory, &format!("{turns} = 2 AND reward = 1")) > 0);
}
