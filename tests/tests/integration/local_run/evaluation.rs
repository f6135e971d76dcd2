//! `rljob evaluate` and `rljob compare` on the model of a finished run.

use std::fs;
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

/// An evaluation of the export of `practise` with two suites.
const SUITES: &str = r#"
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata:
  name: suites
spec:
  model: {path: baseline/default/practise/export}
  storage:
    hostPath: {path: /unused}
  dataset:
    evaluation:
      prompt: "{{question}}"
      answer: answer
      format: Text
      suites:
        - {name: all, path: test.jsonl, limit: 32}
        - {name: twice, path: train.jsonl, limit: 8, samples: 2}
  rewards:
    - {name: correct, exactMatch: {}}
  algorithm:
    evaluation: {}
  rollout: {maxNewTokens: 6}
  training: {deterministic: true}
  inference: {replicas: 2}
"#;

#[test]
fn suites_are_evaluated_together_and_reported_and_compared_by_name() {
    let folder = &baseline().folder;
    fs::write(folder.join("suites.yaml"), SUITES).unwrap();
    let rljob = || {
        let mut command = Command::new(binary("rljob").unwrap());
        command.current_dir(folder);
        command
    };
    for name in ["suites", "again"] {
        let arguments = ["evaluate", "-f", "suites.yaml", "--dir", "suites", "--name", name];
        let output = run(rljob().args(arguments)).unwrap();
        assert!(output.contains("  twice  accuracy"), "{output}");
    }
    let [evaluation] = &evaluations(&folder.join("suites/default/suites"))[..] else {
        panic!("more than one evaluation")
    };
    let trained = evaluations(&folder.join("baseline/default/practise"));
    let greedy = |own: &rljob_protocol::status::EvaluationMetrics| own.greedy.map(f64::to_bits);
    assert_eq!(greedy(&evaluation.suites["all"]), greedy(trained.last().unwrap()));
    let sizes: Vec<_> =
        evaluation.by_suite().iter().map(|(name, own)| (*name, own.prompts, own.samples)).collect();
    assert_eq!(sizes, [(Some("all"), 32, 1), (Some("twice"), 8, 2)]);
    let text = run(rljob().args(["compare", "--output=json", "suites"])).unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let pairs: Vec<_> = found["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| (&pair["suite"], &pair["metrics"][1]["mean"], &pair["metrics"][1]["prompts"]))
        .collect();
    let (all, twice, zero) = ("all".into(), "twice".into(), 0.0.into());
    assert_eq!(pairs, [(&all, &zero, &32.into()), (&twice, &zero, &8.into())], "{found}");
}
