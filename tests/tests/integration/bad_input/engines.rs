//! Engines that answer an error, garbage, half a stream or nothing, and one that hangs. Each is
//! said in one line, and the run loses nothing but time.

use std::fs;

use rljob_tests::files::{binary, workspace};

use crate::exact_recovery::{Struck, Victim, assert_same, practise};

/// Real engines behind a door that spoils answers; the run takes them for the user's own.
fn with_faults(runs: &str) -> Struck {
    let door = workspace().join("tests/tests/integration/bad_input/faulty_engine.py");
    let command =
        format!("python3 {} {}", door.display(), binary("rljob-engine").unwrap().display());
    practise(
        runs,
        &["practise:spec.inference.engine=SGLang", "practise:spec.weightSync.method=Disk"],
        &["--engine-command", &command],
    )
}

#[test]
fn an_engine_that_answers_errors_garbage_half_a_stream_or_nothing_is_named_and_its_samples_are_made_again_with_the_same_bits()
 {
    let struck = with_faults("faulty-engines");
    let log = struck.log("coordinator");
    assert_same(struck);
    let log = fs::read_to_string(log).unwrap();
    let sample = |cause: &str| (" a sample is interrupted engine=", format!(" error={cause}"));
    let update = |cause: &str| {
        (
            " an engine stays out of routing error=failed to update inference-",
            format!(": the engine answered /update_weights_from_disk with {cause}"),
        )
    };
    let fire = "500 Internal Server Error: {\"error\": {\"message\": \"the disk of this machine is on fire\"}}";
    for (what, cause) in [
        sample(&format!("the engine answered /generate with {fire}")),
        sample(
            "the engine's answer to /generate is unusable: key must be a string at line 1 column 2",
        ),
        sample(
            "the engine's answer to /generate is unusable: token id 1000000000 outside the vocabulary of 16",
        ),
        sample(
            "failed to reach the engine at /generate: the connection failed: error reading a body from connection: end of file before message length reached",
        ),
        sample(
            "failed to reach the engine at /generate: the connection failed: connection closed before message completed",
        ),
        update(fire),
        update("200 OK: no such weights here"),
    ] {
        assert!(
            log.lines().any(|line| line.contains(what) && line.contains(&cause)),
            "nobody says {cause:?}:\n{log}"
        );
    }
}

#[test]
fn an_engine_that_hangs_is_done_without_and_used_again_when_it_answers() {
    let mut struck = practise("hanging-engine", &[], &[]);
    struck.wait_for_steps(3);
    let hanging = struck.freeze(Victim::Engine);
    struck.wait_for_steps(6);
    hanging.thaw();
    assert_same(struck);
}
