//! Engines that send errors, invalid JSON, truncated streams or no response, and an engine that
//! hangs. Each is reported in one log line, and the result does not change.

use std::fs;

use rljob_tests::files::{binary, workspace};

use crate::exact_recovery::{RunUnderFaults, Victim, assert_same, practise};

/// Real engines behind a proxy that corrupts responses, started through `--engine-command`.
fn with_faults(runs: &str) -> RunUnderFaults {
    let proxy = workspace().join("tests/tests/integration/bad_input/faulty_engine.py");
    let command =
        format!("python3 {} {}", proxy.display(), binary("rljob-engine").unwrap().display());
    practise(
        runs,
        &["practise:spec.inference.sglang={}", "practise:spec.weightSync.method=Disk"],
        &["--engine-command", &command],
    )
}

#[test]
fn invalid_engine_responses_are_reported_and_the_repeated_samples_have_the_same_bits() {
    let run = with_faults("faulty-engines");
    let log = run.log("coordinator");
    assert_same(run);
    let log = fs::read_to_string(log).unwrap();
    let sample = |cause: &str| (" a sample is interrupted engine=", format!(" error={cause}"));
    let update = |cause: &str| {
        (
            " failed to update weights; the engine stays out of routing error=failed to update \
                inference-",
            format!(": the engine answered /update_weights_from_disk with {cause}"),
        )
    };
    let failure = "500 Internal Server Error: {\"error\": {\"message\": \"disk failure\"}}";
    for (what, cause) in [
        sample(&format!("the engine answered /generate with {failure}")),
        sample(
            "the engine's response to /generate is invalid: key must be a string at line 1 \
                column 2",
        ),
        sample(
            "the engine's response to /generate is invalid: token id 1000000000 outside the \
                vocabulary of 16",
        ),
        sample(
            "failed to reach the engine at /generate: the connection failed: error reading a body \
                from connection: peer closed connection without sending TLS close_notify",
        ),
        sample(
            "failed to reach the engine at /generate: the connection failed: connection error: \
                peer closed connection without sending TLS close_notify",
        ),
        update(failure),
        update("200 OK: weights not found"),
    ] {
        assert!(
            log.lines().any(|line| line.contains(what) && line.contains(&cause)),
            "the log does not contain {cause:?}:\n{log}"
        );
    }
}

#[test]
fn a_hung_engine_is_bypassed_and_used_again_once_it_responds() {
    let mut run = practise("hanging-engine", &[], &[]);
    run.wait_for_steps(3);
    let hanging = run.pause(Victim::Engine);
    run.wait_for_steps(6);
    hanging.resume();
    assert_same(run);
}
