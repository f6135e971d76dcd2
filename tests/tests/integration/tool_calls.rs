//! Tools on the model of the sample: samples in the journal, exact recovery of a run whose
//! coordinator is killed while a turn is sampled, tokens of servers, and tools of agents with
//! OpenAI's client.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rljob_protocol::metrics::PERPLEXITY;
use rljob_tests::files::{mcp_python, openai_python, required, workspace};
use rljob_tests::process::run;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::exact_recovery::{RunUnderFaults, Victim, assert_same_result};
use crate::journal::query;
use crate::local_run::{LocalRun, evaluations};

mod code_agent;

/// The sample, smaller. The journal keeps the samples after the oldest checkpoint.
const SMALL: [&str; 14] = [
    "tools-sft:spec.training.steps=120",
    "tools-sft:spec.dataset.train.path=data/teacher.jsonl",
    "tools-sft:spec.dataset.evaluation.path=data/lessons.jsonl",
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

/// Folder of Secrets, the token of the servers, and the reference to it.
const SECRETS: &str = "secrets";
const TOKEN: &str = "token-of-the-adder";
const TOKEN_REFERENCE: &str = "tokenSecretRef: {name: adder}";

/// A server of the samples, as a process of the test, that demands the token.
struct Adder {
    process: Child,
    url: String,
}

impl Adder {
    fn start(python: &Path, program: &str) -> Self {
        let program = workspace().join("manifests/samples/tools").join(program);
        let mut command = Command::new(python);
        command.arg(program).arg("0").env("TOKEN", TOKEN).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
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

/// A folder with the jobs, the data and the Secret of the sample.
fn folder() -> TempDir {
    folder_of("add")
}

/// A folder whose data has the calls of a tool.
fn folder_of(tool: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let samples = workspace().join("manifests/samples");
    fs::copy(samples.join("tools.yaml"), folder.path().join("jobs.yaml")).unwrap();
    let program = samples.join("tools/make_data.py");
    run(Command::new("python3").arg(program).arg(folder.path().join("data")).arg(tool)).unwrap();
    write_token(&folder.path().join(SECRETS), TOKEN);
    folder
}

/// Writes the Secret of the servers.
fn write_token(secrets: &Path, token: &str) {
    fs::create_dir_all(secrets.join("adder")).unwrap();
    fs::write(secrets.join("adder/token"), format!("{token}\n")).unwrap();
}

fn start(folder: &Path, runs: &str, more: &[String]) -> RunUnderFaults {
    RunUnderFaults::new(start_with_secrets(folder, runs, more, SECRETS), "tools")
}

/// `secrets` is the folder of Secrets in `folder`.
fn start_with_secrets(folder: &Path, runs: &str, more: &[String], secrets: &str) -> LocalRun {
    let sets = SMALL.into_iter().chain(more.iter().map(String::as_str));
    let sets: Vec<&str> = sets.flat_map(|set| ["--set", set]).collect();
    let secrets = folder.join(secrets);
    LocalRun::start_in(folder, runs, &sets, &[("RLJOB_SECRETS", secrets.to_str().unwrap())])
}

/// Asserts that no file below a folder contains the token.
fn assert_without_token(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            assert_without_token(&path);
        } else if path.is_file() {
            let content = fs::read(&path).unwrap();
            let found = content.windows(TOKEN.len()).any(|bytes| bytes == TOKEN.as_bytes());
            assert!(!found, "{}", path.display());
        }
    }
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

/// The teacher's calls and answers were learned from its conversations.
fn check_lessons(directory: &Path) {
    let evaluations = evaluations(directory);
    let losses: Vec<f64> = evaluations.iter().map(|own| own.loss.unwrap()).collect();
    let perplexities: Vec<f64> =
        evaluations.iter().map(|own| own.scalars.get(PERPLEXITY).unwrap()).collect();
    assert_eq!(losses.iter().map(|loss| loss.exp()).collect::<Vec<_>>(), perplexities);
    let (first, last) = (&evaluations[0], &evaluations[evaluations.len() - 1]);
    // A guess has 5.3 nats in 4 tokens, and whether to guess 0.64; a call and its answer have none.
    assert_eq!((first.prompts, first.loss_tokens), (256, last.loss_tokens), "{evaluations:?}");
    assert!(losses[0] > 2.0 && losses[losses.len() - 1] < 1.2, "{losses:?}");
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

/// Gives the run of the first job in `from` to other runs.
fn copy_first_job(folder: &Path, from: &str, runs: &str) {
    let jobs = folder.join(runs).join("default");
    fs::create_dir_all(&jobs).unwrap();
    let first = folder.join(from).join("default/tools-sft");
    run(Command::new("cp").arg("-a").arg(first).arg(&jobs)).unwrap();
}

/// The second job with another tool of the same name and schema.
fn start_with(folder: &Path, runs: &str, tool: &str) -> RunUnderFaults {
    copy_first_job(folder, "tools", runs);
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
    let settings = [served_by(&adder)];
    let expected = finished(start(folder.path(), "tools", &settings));
    check_lessons(&folder.path().join("tools/default/tools-sft"));
    check_samples(&expected);
    assert_without_token(&folder.path().join("tools"));
    let samples = workspace().join("manifests/samples/tools");
    let program =
        format!("command: {{command: [python3, add.py], folder: '{}'}}", samples.display());
    assert_same_result(&finished(start_with(folder.path(), "programs", &program)), &expected);
    if let Some(python) = required(mcp_python()) {
        let server = Adder::start(&python, "mcp_adder.py");
        let tool = format!("mcp: {{url: '{}', {TOKEN_REFERENCE}}}", server.url);
        assert_same_result(&finished(start_with(folder.path(), "mcp", &tool)), &expected);
        assert_without_token(&folder.path().join("mcp"));
    }
    copy_first_job(folder.path(), "tools", "killed");
    let mut killed = start(folder.path(), "killed", &settings);
    killed.kill_coordinator_in_a_turn();
    killed.wait_for_steps(2);
    killed.kill_after_log_lines(Victim::Engine, 20);
    killed.kill_coordinator_in_a_turn();
    assert_same_result(&finished(killed), &expected);
    check_unusable_tokens(folder.path(), &adder);
}

/// The setting of the sample's tool.
fn served_by(adder: &Adder) -> String {
    let http = format!("{{url: '{}', {TOKEN_REFERENCE}, maxOutageSeconds: 0}}", adder.url);
    format!("tools:spec.rollout.workflow.tools.tools[0].http={http}")
}

/// Gives a column of tools to the rows of the sample: the name of the tool, the tool as JSON text,
/// no tools, and null, by the remainder of the first summand. With `lacking`, each row names
/// another tool.
fn write_tools_by_row(folder: &Path, lacking: bool) {
    let function = json!({"name": "add", "description": "Of the row.", "parameters": {}});
    let own = json!([{"type": "function", "function": function}]).to_string();
    for name in ["train.jsonl", "test.jsonl"] {
        let path = folder.join("data").join(name);
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| {
            let mut row: Value = serde_json::from_str(line).unwrap();
            let first: usize = row["question"].as_str().unwrap()[..2].parse().unwrap();
            let tools = [json!(["add"]), json!(own), json!([]), Value::Null];
            row["tools"] = if lacking { json!(["halve"]) } else { tools[first % 4].clone() };
            format!("{row}\n")
        });
        let lines: String = lines.collect();
        fs::write(&path, lines).unwrap();
    }
}

/// Lines for readers have the names of the tools of their rows.
fn check_shown_tools(directory: &Path) {
    for name in ["samples.jsonl", "evaluation-samples.jsonl"] {
        let text = fs::read_to_string(directory.join(name)).unwrap();
        for line in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            let first: usize = line["prompt"].as_str().unwrap()[..2].parse().unwrap();
            let tools = if first % 4 < 2 { json!(["add"]) } else { json!([]) };
            assert_eq!(line["tools"], tools, "{name}: {line}");
        }
    }
}

#[test]
fn rows_offer_the_tools_that_they_name() {
    let (folder, adder) = (folder(), Adder::start(Path::new("python3"), "adder.py"));
    let field = |data: &str| format!("tools:spec.dataset.{data}.tools=tools");
    let settings = [served_by(&adder), field("train"), field("evaluation")];
    write_tools_by_row(folder.path(), false);
    let directory = finished(start(folder.path(), "by-row", &settings));
    let prompt = "json_extract(segments, '$[0].text')";
    let result = "json_extract(segments, '$[2].text')";
    let offers = format!("CAST(substr({prompt}, 1, 2) AS INTEGER) % 4 < 2");
    let unknown = "error: no tool add; there are no tools";
    let called = "json_array_length(turn_rewards) > 1";
    assert!(count(&directory, &format!("{called} AND {offers}")) > 0);
    assert_eq!(count(&directory, &format!("{called} AND {offers} AND {result} = '{unknown}'")), 0);
    // Tokens of a system turn that describes a tool: its start, name and end.
    let tokens = "json_extract(segments, '$[0].tokens')";
    let lengths = format!("SELECT DISTINCT {offers}, {tokens} FROM samples ORDER BY 1");
    assert_eq!(query(&directory, &lengths), "0|9\n1|12");
    // Other errors are those of malformed calls.
    let without = format!("{called} AND NOT {offers}");
    assert!(count(&directory, &format!("{without} AND {result} = '{unknown}'")) > 0);
    assert_eq!(count(&directory, &format!("{without} AND {result} NOT LIKE 'error: %'")), 0);

    check_shown_tools(&directory);

    write_tools_by_row(folder.path(), true);
    copy_first_job(folder.path(), "by-row", "lacking");
    let (code, output) = start(folder.path(), "lacking", &settings).local.end();
    let expected = "train.jsonl line 1 has the tool `halve`, which rollout.workflow.tools does not \
        execute (it has add): add it there, or remove it from the row";
    assert!(code == Some(1) && output.contains(expected), "{output}");
}

/// A missing token is an error before the start, a wrong one an error that names its Secret.
fn check_unusable_tokens(folder: &Path, adder: &Adder) {
    let run = |secrets| {
        copy_first_job(folder, "tools", secrets);
        let (code, output) =
            start_with_secrets(folder, secrets, &[served_by(adder)], secrets).end();
        (code, output)
    };
    let (code, output) = run("missing");
    let field = "tools: spec.rollout.workflow.tools.tools[0].http.tokenSecretRef";
    let path = folder.join("missing/adder/token");
    let expected = format!("{field}: failed to read {}: No such file", path.display());
    assert!(code == Some(1) && output.contains(&expected), "{output}");
    write_token(&folder.join("wrong"), "token-of-another-server");
    let (code, output) = run("wrong");
    let expected = "the server returned 401 Unauthorized to the token in key token of Secret \
        adder: the token is missing or wrong";
    assert!(code == Some(1) && output.contains(expected), "{output}");
    assert!(!output.contains("token-of-another-server"), "{output}");
}

#[test]
fn the_client_of_openai_calls_tools_and_the_sample_has_the_exact_tokens() {
    let Some(python) = required(openai_python()) else { return };
    let folder = folder();
    check_agent_tools(folder.path(), "agent-tools", &python, "tests/openai/tools.py");
    copy_first_job(folder.path(), "agent-tools", "response-tools");
    check_agent_tools(folder.path(), "response-tools", &python, "tests/openai/response_tools.py");
}

/// Runs an agent with a tool. Returns the directory of the run.
fn check_agent_tools(folder: &Path, runs: &str, python: &Path, program: &str) -> PathBuf {
    let program = workspace().join(program);
    let agent = format!(
        "tools:spec.rollout.workflow={{agent: {{command: ['{}', '{}'], retries: 0}}}}",
        python.display(),
        program.display()
    );
    // Each sample starts Python with OpenAI's client, which takes a second of a core.
    let small = [
        "training.steps=2",
        "algorithm.grpo.groupSize=4",
        "rollout.batchSize=4",
        "dataset.evaluation.limit=2",
        "rewards=[]",
    ];
    let small = small.map(|set| format!("tools:spec.{set}"));
    let settings: Vec<String> = [agent].into_iter().chain(small).collect();
    let directory = finished(start(folder, runs, &settings));
    // The program fails unless the proxy returns calls and continues their conversation. The
    // journal has the samples of the last step.
    let turns = "json_array_length(turn_rewards)";
    assert_eq!(count(&directory, "TRUE"), 16);
    assert!(count(&directory, &format!("{turns} = 2 AND reward = 1")) > 0);
    directory
}
