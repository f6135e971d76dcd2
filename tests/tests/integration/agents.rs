//! Workflow `agent` with OpenAI's client: the API, samples in the journal, failing programs, and
//! exact recovery of a run whose coordinator and engines are killed in an episode.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rljob_tests::files::{openai_python, required, workspace};

use crate::exact_recovery::{RunUnderFaults, Victim, assert_same_result, practise};
use crate::journal::query;
use crate::local_run::{baseline, evaluations};

const AGENT: &str = "practise:spec.rollout.workflow.agent";

/// Settings of a small run with this agent; `None` where OpenAI's client is not installed.
fn settings(program: &str) -> Option<Vec<String>> {
    let python = required(openai_python())?;
    let program = workspace().join(program);
    let command = format!("{AGENT}.command=[{},{}]", python.display(), program.display());
    // The journal keeps the samples after the oldest checkpoint.
    let small = [
        "algorithm.grpo.groupSize=2",
        "rollout.batchSize=4",
        "dataset.evaluation.limit=2",
        "checkpoint.everySteps=1",
        "rewards=[]",
    ];
    let small = small.map(|set| format!("practise:spec.{set}"));
    Some([command].into_iter().chain(small).collect())
}

fn start(runs: &str, settings: &[String], more: &[&str]) -> RunUnderFaults {
    let more = more.iter().copied();
    practise(runs, &settings.iter().map(String::as_str).chain(more).collect::<Vec<_>>(), &[])
}

/// Directory of the run, which has succeeded.
fn finished(run: RunUnderFaults) -> PathBuf {
    let directory = run.local.runs.join("default/practise");
    let (code, output) = run.local.end();
    assert_eq!(code, Some(0), "{output}");
    directory
}

fn count(directory: &Path, condition: &str) -> u64 {
    query(directory, &format!("SELECT COUNT(*) FROM samples WHERE {condition}")).parse().unwrap()
}

#[test]
fn the_client_of_openai_gets_answers_and_errors_and_the_sample_is_the_selected_branch() {
    let Some(settings) = settings("tests/openai/api.py") else { return };
    let directory = finished(start("agent-api", &settings, &["practise:spec.training.steps=2"]));
    let two_turns = "json_array_length(turn_rewards) = 2 AND reward = 1.25";
    assert_eq!((count(&directory, "TRUE"), count(&directory, two_turns)), (8, 8));
    // Prompt, completion, question and completion: the second prompt is not tokenized again.
    assert_eq!(count(&directory, "json_array_length(segments) = 4"), 8);
}

/// Runs a program of a small job. The journal has the samples of the last step, of two turns each
/// with the sum of their rewards.
fn two_turns_with_exact_tokens(runs: &str, program: &str) {
    let Some(settings) = settings(program) else { return };
    let more = ["practise:spec.training.steps=2", "practise:spec.rollout.workflow.agent.retries=0"];
    let directory = finished(start(runs, &settings, &more));
    let two_turns = "json_array_length(turn_rewards) = 2 AND reward = 1.25";
    assert_eq!((count(&directory, "TRUE"), count(&directory, two_turns)), (8, 8));
    // The model's own tokens are those that it sampled: each has a log-probability and a version.
    assert_eq!(count(&directory, "json_array_length(segments) = 4"), 8);
    let trained =
        "json_extract(segments, '$[1].trained') AND json_extract(segments, '$[3].trained')";
    assert_eq!(count(&directory, trained), 8);
}

#[test]
fn prompts_of_text_and_token_ids_continue_the_exact_tokens_that_they_repeat() {
    two_turns_with_exact_tokens("agent-completions", "tests/openai/completions.py");
}

#[test]
fn responses_continue_by_their_items_and_by_the_id_of_the_previous_one() {
    two_turns_with_exact_tokens("agent-responses", "tests/openai/responses.py");
}

#[test]
#[ignore = "long: make thorough"]
fn kills_in_an_episode_do_not_change_the_result() {
    let Some(settings) = settings("manifests/samples/agent/two_turns.py") else { return };
    let more =
        ["practise:spec.training.steps=4", "practise:spec.rollout.workflow.agent.discount=0.5"];
    let expected = finished(start("agent", &settings, &more));
    let turns = "json_array_length(turn_rewards)";
    assert!(count(&expected, &format!("{turns} = 2")) > 0);
    assert_eq!(count(&expected, &format!("{turns} = 1 AND reward != 1")), 0);
    assert_eq!(count(&expected, &format!("{turns} = 2 AND reward NOT IN (0, 0.5)")), 0);
    assert!(evaluations(&expected).iter().all(|evaluation| evaluation.sampled.is_some()));
    let mut run = start("agent-killed", &settings, &more);
    run.kill_coordinator_in_a_turn();
    run.wait_for_steps(2);
    run.kill_after_log_lines(Victim::Engine, 20);
    run.kill_coordinator_in_a_turn();
    let found = finished(run);
    assert_same_result(&found, &expected);
}

#[test]
fn agents_that_always_fail_end_the_run_with_the_cause() {
    // The file is there when the run starts, its interpreter is not.
    let broken = baseline().folder.join("without-interpreter");
    fs::write(&broken, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&broken, Permissions::from_mode(0o755)).unwrap();
    let broken = format!("['{}']", broken.display());
    for (runs, program, cause) in [
        (
            "agent-exit",
            "[sh,-c,'echo no model >&2; exit 3']",
            "exit status: 3; last line of stderr: `no model`",
        ),
        ("agent-silent", "['true']", "the program of the agent requested no completion"),
        ("agent-slow", "[sleep,'60']", "did not end within 1 s"),
        ("agent-broken", &broken, "failed to start the command"),
    ] {
        let command = format!("{AGENT}.command={program}");
        let more = ["retries=0", "timeoutSeconds=1"].map(|set| format!("{AGENT}.{set}"));
        let settings: Vec<String> = [command].into_iter().chain(more).collect();
        let run = start(runs, &settings, &["practise:spec.training.steps=1"]);
        let (code, output) = run.local.end();
        assert_eq!(code, Some(1), "{output}");
        let failed = "the program of rollout.workflow.agent failed for ";
        assert!(output.contains(failed) && output.contains(cause), "{cause}\n{output}");
    }
}
