//! Programs of rewards and environments with wrong answers: the run fails soon and says what is
//! wrong. A program that ends once is started again.

use std::fs;

use super::functions::{FAULTY, cause_of_any_row};
use super::{LocalRun, folder_with};

const REWARD: &str = "{name: correct, exactMatch: {}}";
const ROLLOUT: &str = "rollout: {";
const OWN: &str = "command: [python3, own.py]";

/// Runs a job with a part of its spec replaced, and `own.py` with this text. Returns its exit code
/// and its output; for a run that failed the cause, without the number of a row.
fn run(replaced: &str, by: &str, program: &str) -> Result<(), String> {
    let jobs = include_str!("../async_rollouts/ahead.yaml").replace("steps: 10", "steps: 1");
    let folder = folder_with(&jobs.replace(replaced, by));
    fs::write(folder.path().join("own.py"), program).unwrap();
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    if code == Some(0) { Ok(()) } else { Err(cause_of_any_row(&output, folder.path())) }
}

fn reward(retries: u32) -> String {
    format!("{{name: own, command: {{{OWN}, retries: {retries}}}}}")
}

#[test]
fn a_reward_program_that_answers_wrongly_or_ends_at_each_request_fails_the_run_soon() {
    for (retries, program, cause) in [
        (
            5,
            "print('ready', flush=True)\ninput()\ninput()",
            "invalid response `ready`, expected {\"reward\": number}: expected value at line 1 \
             column 1",
        ),
        (
            1,
            "raise SystemExit('no model')",
            "the command ended with exit status: 1; last line of stderr: `no model`",
        ),
    ] {
        let expected = format!("reward own (command python3 own.py) {FAULTY}: {cause}");
        assert_eq!(run(REWARD, &reward(retries), program), Err(expected));
    }
}

#[test]
fn an_environment_program_whose_steps_are_wrong_fails_the_run_soon_although_it_resets() {
    let workflow = format!("{ROLLOUT}workflow: {{environment: {{command: {{{OWN}}}}}}}, ");
    let program = "import sys\nfor line in sys.stdin:\n    \
        print('{}' if 'reset' in line else '{\"reward\": NaN}', flush=True)\n";
    let expected = format!(
        "step of the environment (python3 own.py) {FAULTY}: invalid response \
         `{{\"reward\": NaN}}`, expected {{\"reward\": number, \"done\": boolean, \"messages\": \
         [{{\"role\": \"user\" or \"tool\", \"content\": text}}]}}: expected value at line 1 \
         column 12"
    );
    assert_eq!(run(ROLLOUT, &workflow, program), Err(expected));
}

#[test]
fn a_reward_program_that_is_killed_once_is_started_again() {
    let program = "import json, os, sys\nfor line in sys.stdin:\n    \
        if not os.path.exists('/tmp/PLACE'):\n        \
        open('/tmp/PLACE', 'w').close()\n        os.kill(os.getpid(), 9)\n    \
        print(json.dumps({'id': json.loads(line)['id'], 'reward': 1.0}), flush=True)\n";
    let place = tempfile::tempdir().unwrap();
    let place = place.path().join("killed").display().to_string();
    let program = program.replace("/tmp/PLACE", &place);
    assert_eq!(run(REWARD, &reward(5), &program), Ok(()));
    assert!(fs::exists(place).unwrap());
}
