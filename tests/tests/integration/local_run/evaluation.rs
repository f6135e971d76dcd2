//! `rljob evaluate` and `rljob compare` on the model of a finished run.

use std::process::Command;

use rljob_tests::files::binary;
use rljob_tests::process::{run, wait_until};

use super::{LIMIT, LocalRun, baseline, evaluations};

const JOB: [&str; 6] =
    ["--job", "practise", "--name", "again", "--model", "baseline/default/practise/export"];

#[test]
fn an_evaluation_job_survives_its_coordinator_and_repeats_the_last_evaluation_of_training() {
    let folder = &baseline().folder;
    let local = LocalRun::start_command("evaluate", folder, "evaluated", &JOB, &[]);
    wait_until("a coordinator", LIMIT, || Ok(local.find("rljob-coordinator", "").is_some()))
        .unwrap();
    local.kill("rljob-coordinator");
    assert!(local.find("rljob-supervisor", "").is_none(), "an evaluation has no trainers");
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");
    let again = evaluations(&folder.join("evaluated/default/again"));
    let trained = evaluations(&folder.join("baseline/default/practise"));
    assert_eq!(again.len(), 1, "{output}");
    let numbers = |evaluation: &rljob_protocol::status::EvaluationMetrics| {
        (evaluation.prompts, evaluation.greedy.map(f64::to_bits))
    };
    assert_eq!(numbers(&again[0]), numbers(trained.last().unwrap()), "{output}");

    let (code, output) = LocalRun::start_command("evaluate", folder, "evaluated", &JOB, &[]).end();
    assert!(code == Some(0) && output.contains("again: already finished; to run it"), "{output}");

    let mut compare = Command::new(binary("rljob").unwrap());
    let runs = ["baseline/default/practise", "evaluated/default/again"];
    let text = run(compare.args(["compare", "--output=json"]).args(runs).current_dir(folder));
    let found: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
    let greedy = &found["differences"][0]["metrics"][1];
    let expected = serde_json::json!({
        "metric": "greedy", "mean": 0.0, "low": 0.0, "high": 0.0, "prompts": 32,
        "resamples": 10_000,
    });
    assert_eq!(greedy, &expected, "{found}");
}
