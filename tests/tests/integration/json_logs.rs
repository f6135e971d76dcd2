//! Logs of processes in pods: JSON lines with the fields that the operator sets in the environment,
//! here of processes that fail at once; without them, text.

use std::process::Command;

use rljob_tests::files::binary;
use serde_json::{Value, json};

/// Programs with arguments that name a missing run configuration, which of the reward runner is its
/// socket or folder, and the fields that they add.
fn programs() -> [(&'static str, Vec<&'static str>, Value); 5] {
    let common = ["--config=/missing/run.json", "--tokens=/missing"];
    let of = |more: &[&'static str]| [&common[..], more].concat();
    let peers = ["--coordinator=https://localhost:1", "--address=127.0.0.1"];
    let rank = ["--rank=3", "--world-size=4", "--local-world-size=2", "--attempt=5"];
    [
        ("rljob-coordinator", of(&["--listen=127.0.0.1:0"]), json!({})),
        (
            "rljob-supervisor",
            of(&[&peers[..], &["--name=t", "--group=frozen"]].concat()),
            json!({
                "group": "frozen",
            }),
        ),
        (
            "rljob-learner",
            of(&[&peers[..], &rank, &["--rendezvous=localhost:1"]].concat()),
            json!({"rank": 3, "attempt": 5}),
        ),
        ("rljob-reward-runner", vec!["serve", "--socket=/missing/run.json"], json!({})),
        ("rljob-reward-runner", vec!["copy", "--folder=/missing/run.json"], json!({})),
    ]
}

/// The last line of standard error of a program that fails.
fn last_line(program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(binary(program).unwrap());
    let output = command.args(arguments).envs(variables.iter().copied()).output().unwrap();
    assert!(!output.status.success(), "{program}");
    let text = String::from_utf8(output.stderr).unwrap();
    text.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn the_error_of_a_process_in_a_pod_is_a_json_line_with_job_role_and_rank() {
    let fields = json!({"namespace": "team-a", "job": "sums", "role": "r", "pod": "sums-r-0"});
    let text = fields.to_string();
    let variables = [("RLJOB_LOG_FORMAT", "json"), ("RLJOB_LOG_FIELDS", text.as_str())];
    for (program, arguments, more) in programs() {
        let line = last_line(program, &arguments, &variables);
        let mut found: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        let message = found["message"].take();
        assert!(message.as_str().unwrap().contains("/missing/run.json"), "{program}: {message}");
        assert!(found["timestamp"].take().is_string());
        let mut expected = json!({"timestamp": null, "level": "ERROR", "message": null});
        for part in [&fields, &more] {
            expected.as_object_mut().unwrap().extend(part.as_object().unwrap().clone());
        }
        assert_eq!(found, expected, "{program}");
    }
}

#[test]
fn the_error_of_a_local_process_is_text() {
    for (program, arguments, _) in programs() {
        let line = last_line(program, &arguments, &[]);
        assert!(line.starts_with("error: ") && line.contains("/missing/run.json"), "{line}");
    }
}
