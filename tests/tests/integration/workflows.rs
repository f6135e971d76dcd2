//! Workflows of several turns: samples in the journal, and exact recovery of a run whose
//! coordinator and engines are killed while a turn is sampled.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rljob_tests::files::workspace;
use rljob_tests::process::run;

use crate::exact_recovery::{RunUnderFaults, Victim, assert_same_result, practise};
use crate::journal::query;
use crate::local_run::{LocalRun, evaluations, folder_with};

mod stale;

/// The question is repeated after a wrong sum.
const TURNS: [&str; 3] = [
    "practise:spec.rollout.workflow.multiTurn.feedback=\" {{question}}\"",
    "practise:spec.rollout.workflow.multiTurn.discount=0.5",
    "practise:spec.rollout.workflow.multiTurn.maxTokens=16",
];

/// The environment of the sample, as a process of the test.
struct Environment {
    process: Child,
    url: String,
}

impl Environment {
    fn start() -> Self {
        let program = workspace().join("manifests/samples/quickstart/environment.py");
        let mut process =
            Command::new("python3").arg(program).arg("0").stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { process, url: url.trim().to_owned() }
    }

    fn settings(&self) -> [String; 4] {
        let path = "practise:spec.rollout.workflow.environment";
        [
            format!("{path}.url={}", self.url),
            format!("{path}.maxTurns=2"),
            format!("{path}.discount=0.5"),
            format!("{path}.maxTokens=16"),
        ]
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Directory of the run, which has succeeded.
fn finished(run: RunUnderFaults) -> PathBuf {
    let directory = run.local.runs.join("default/practise");
    let (code, output) = run.local.end();
    assert_eq!(code, Some(0), "{output}");
    directory
}

/// Number of samples that meet a condition.
fn count(directory: &Path, condition: &str) -> u64 {
    let sql = format!("SELECT COUNT(*) FROM samples WHERE {condition}");
    query(directory, &sql).parse().unwrap()
}

/// Every sample has its reward from its last turn, and the feedback repeats the prompt.
fn check_samples(directory: &Path) {
    let turns = "json_array_length(turn_rewards)";
    assert!(count(directory, &format!("{turns} = 2")) > 0);
    assert_eq!(count(directory, &format!("{turns} = 1 AND reward != 1")), 0);
    assert_eq!(count(directory, &format!("{turns} = 2 AND reward NOT IN (0, 0.5)")), 0);
    let feedback = "json_extract(segments, '$[2].text')";
    let repeated = format!("{feedback} = ' ' || json_extract(segments, '$[0].text')");
    assert_eq!(count(directory, &format!("{turns} = 2 AND NOT {repeated}")), 0);
    let trained = "json_extract(segments, '$[2].trained')";
    assert_eq!(count(directory, &format!("{turns} = 2 AND {trained}")), 0);
    for evaluation in evaluations(directory) {
        let first = evaluation.scalars.get("sampledFirstTurn").unwrap();
        assert!(evaluation.sampled.unwrap() >= first, "{evaluation:?}");
    }
}

/// Every sample has the sum of the rewards of its turns: those of the environment (1 for a right
/// sum, else -0.25) and of `correct` (1 or 0), the second ones by half.
fn check_episodes(directory: &Path) {
    let turns = "json_array_length(turn_rewards)";
    for (turns_and_reward, exists) in [
        (format!("{turns} = 1 AND reward = 2"), true),
        (format!("{turns} = 2 AND reward = 0.75"), true),
        (format!("{turns} = 2 AND reward = -0.375"), true),
        (format!("{turns} = 1 AND reward != 2"), false),
        (format!("{turns} = 2 AND reward NOT IN (0.75, -0.375)"), false),
    ] {
        assert_eq!(count(directory, &turns_and_reward) > 0, exists, "{turns_and_reward}");
    }
    let trained = "json_extract(segments, '$[2].trained')";
    assert_eq!(count(directory, &format!("{turns} = 2 AND {trained}")), 0);
}

#[test]
#[ignore = "long: make thorough"]
fn kills_in_a_turn_do_not_change_the_result() {
    check_kills("turns", &TURNS, check_samples);
}

#[test]
fn kills_in_a_turn_with_an_environment_do_not_change_the_result() {
    let environment = Environment::start();
    let settings = environment.settings();
    check_kills("episodes", &settings.each_ref().map(String::as_str), check_episodes);
}

#[test]
fn an_environment_that_is_a_program_has_the_same_result_as_the_server_also_after_kills() {
    let environment = Environment::start();
    let settings = environment.settings();
    let served = settings.each_ref().map(String::as_str);
    let served = finished(practise("served-episodes", &served, &[]));
    let program = workspace().join("manifests/samples/environment/sums.py");
    let path = "practise:spec.rollout.workflow.environment";
    let command =
        format!("{path}.command={{command: [python3, {}], processes: 8}}", program.display());
    let of_program: Vec<&str> =
        [command.as_str()].into_iter().chain(settings.iter().skip(1).map(String::as_str)).collect();
    let mut run = practise("program-episodes", &of_program, &[]);
    run.kill_coordinator_in_a_turn();
    run.wait_for_steps(3);
    run.kill_after_log_lines(Victim::Engine, 20);
    let found = finished(run);
    check_episodes(&found);
    assert_same_result(&found, &served);
}

/// A run whose prompts are completed by first observations has the tokens of a run with the whole
/// prompts.
#[test]
fn a_first_observation_is_part_of_the_prompt_also_after_kills() {
    let samples = workspace().join("manifests/samples/environment");
    let path = "practise:spec.rollout.workflow.environment";
    let limits = ["maxTurns=2", "discount=0.5", "maxTokens=16"].map(|set| format!("{path}.{set}"));
    let start = |runs: &str, command: String, more: &[&str]| {
        let command = format!("{path}.command={{command: [python3, {command}], processes: 4}}");
        let settings = [command.as_str()].into_iter().chain(limits.iter().map(String::as_str));
        practise(runs, &settings.chain(more.iter().copied()).collect::<Vec<_>>(), &[])
    };
    let whole = samples.join("sums.py").display().to_string();
    let expected = finished(start("whole-prompts", whole, &[]));
    let observed = workspace().join("tests/tests/integration/workflows/observed.py");
    let observed = format!("{}, {}", observed.display(), samples.display());
    let prompts = ["train", "evaluation"]
        .map(|data| format!("practise:spec.dataset.{data}.prompt=\"{{{{question[:3]}}}}\""));
    let mut run = start("observations", observed, &prompts.each_ref().map(String::as_str));
    run.kill_coordinator_in_a_turn();
    run.wait_for_steps(3);
    run.kill_after_log_lines(Victim::Engine, 20);
    let found = finished(run);
    check_episodes(&found);
    let questions = "json_extract(segments, '$[0].text') LIKE '__+__='";
    assert_eq!(count(&found, &format!("NOT {questions}")), 0);
    assert_eq!(count(&found, "json_extract(segments, '$[0].trained')"), 0);
    assert_same_result(&found, &expected);
}

/// Jobs of the sample `two-turns`, smaller.
const TWO_TURNS: &str = include_str!("workflows/two_turns.yaml");

/// Samples that asked in the first turn have the whole question before the second one; the others
/// have one turn.
fn check_asked(directory: &Path) {
    let turns = "json_array_length(turn_rewards)";
    let asked = "trim(json_extract(segments, '$[1].text')) = '='";
    assert!(count(directory, &format!("{turns} = 2 AND {asked} AND reward = 1")) > 0);
    assert_eq!(count(directory, &format!("{turns} = 2 AND NOT {asked}")), 0);
    assert_eq!(count(directory, &format!("{turns} = 1 AND {asked}")), 0);
    let prompt = "json_extract(segments, '$[0].text')";
    let shown = "json_extract(segments, '$[2].text')";
    let question = format!("{shown} LIKE ' ' || {prompt} || '__='");
    assert_eq!(count(directory, &format!("{turns} = 2 AND NOT {question}")), 0);
    // The policy learns to ask: of 128 samples each.
    let of = |step: u32| count(directory, &format!("step = {step} AND {asked}"));
    let (first, last) = (of(2), of(10));
    assert!(last > first.saturating_add(20), "asked: {first} -> {last}");
}

#[test]
fn a_task_that_only_a_second_turn_can_solve_is_learned_and_random_kills_do_not_change_the_result() {
    let folder = folder_with(TWO_TURNS);
    let program = workspace().join("manifests/samples/environment/operand.py");
    let path = "practise:spec.rollout.workflow.environment.command.command";
    let command = format!("{path}=[{}]", program.display());
    let start = |runs: &str| {
        let local = LocalRun::start_with(folder.path(), runs, &["--set", &command]);
        RunUnderFaults::new(local, "practise")
    };
    let expected = finished(start("expected"));
    check_asked(&expected);
    let jobs = folder.path().join("killed/default");
    fs::create_dir_all(&jobs).unwrap();
    run(Command::new("cp").arg("-a").arg(folder.path().join("expected/default/ask")).arg(&jobs))
        .unwrap();
    let mut killed = start("killed");
    killed.kill_coordinator_in_a_turn();
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for victim in [Victim::Learner(0), Victim::Engine, Victim::Coordinator] {
        killed.kill_after_log_lines(victim, random.random_range(5..40));
    }
    assert_same_result(&finished(killed), &expected);
}

fn check_kills(runs: &str, settings: &[&str], check: fn(&Path)) {
    let expected = finished(practise(runs, settings, &[]));
    check(&expected);
    let mut run = practise(&format!("{runs}-killed"), settings, &[]);
    run.kill_coordinator_in_a_turn();
    run.wait_for_steps(3);
    run.kill_after_log_lines(Victim::Engine, 20);
    run.kill_coordinator_in_a_turn();
    let found = finished(run);
    assert_same_result(&found, &expected);
}
