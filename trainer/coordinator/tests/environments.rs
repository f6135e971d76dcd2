//! Environments that are programs, with the real runner: the lines of an episode, programs that
//! fail, limits, and the end of an episode.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::{Duration, Instant};

use rljob_coordinator::data::Prompt;
use rljob_coordinator::reward::{RewardError, Runner};
use rljob_coordinator::rollout::request::{Key, Purpose};
use rljob_coordinator::workflow::Environment;
use serde_json::{Value, json};

const KEY: Key = Key { purpose: Purpose::Rollout, step: 1, position: 7, index: 3, turn: 0 };

/// Repeats the seed and the completions so far, and has two turns.
const ECHO: &str = r#"
import json, os, sys
seen = []
for line in sys.stdin:
    [(route, body)] = json.loads(line).items()
    seen.append(body["seed"] if route == "reset" else body["completion"])
    HOOK
    if route == "reset":
        print("{}", flush=True)
    else:
        said = {"role": "user", "content": json.dumps(seen)}
        done = body["turn"] == 2
        print(json.dumps({"reward": body["turn"], "done": done, "messages": [said]}), flush=True)
"#;

fn environment(program: &str, more: &Value) -> Environment {
    let runner = Runner::Program(env!("CARGO_BIN_EXE_rljob-reward-runner").into());
    let command = json!({"command": ["python3", "-c", program], "processes": 2});
    let mut spec = json!({"command": command, "timeoutSeconds": 20, "maxOutageSeconds": 0});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Environment::new(&serde_json::from_value(spec).unwrap(), "run", &runner).unwrap()
}

fn prompt() -> Prompt {
    Prompt {
        position: 7,
        row: 2,
        text: "1+1".to_owned(),
        tokens: vec![1],
        answer: Some("2".to_owned()),
        rewards: [].into(),
        category: None,
        completion_tokens: None,
        later_turns: Vec::new(),
        pair_tokens: None,
        tools: None,
        fields: None,
        reward_fields: None,
        row_digest: None,
    }
}

/// Plays two turns. Returns the answers, for reading.
async fn play(environment: &Environment) -> Result<[String; 2], RewardError> {
    let session = environment.session(KEY);
    session.reset(&prompt(), 91).await?;
    let first = session.step(1, "north").await?;
    let second = session.step(2, "south").await?;
    Ok([first, second].map(|step| format!("{step:?}")))
}

#[tokio::test]
async fn a_reset_may_have_the_first_observation() {
    for (answer, expected) in [
        (r#"{"observation": "A maze."}"#, Some("A maze.")),
        (r#"{"observation": null}"#, None),
        (r#"{"observation": ""}"#, None),
        ("{}", None),
    ] {
        let hook = format!("print('{answer}', flush=True); continue");
        let environment = environment(&ECHO.replace("HOOK", &hook), &json!({}));
        let session = environment.session(KEY);
        assert_eq!(session.reset(&prompt(), 91).await.unwrap().as_deref(), expected, "{answer}");
    }
}

/// The answers of [`ECHO`].
fn check([first, second]: &[String; 2]) {
    assert!(first.contains("reward: 1.0") && first.contains(r#"[91, \"north\"]"#), "{first}");
    assert!(second.contains("reward: 2.0") && second.contains("End"), "{second}");
}

/// The last error and its causes.
async fn error(environment: &Environment) -> String {
    let error = play(environment).await.unwrap_err();
    let (mut text, mut cause) = (error.to_string(), std::error::Error::source(&error));
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn an_episode_has_one_program_with_its_seed_and_completions() {
    let environment = environment(&ECHO.replace("HOOK", "pass"), &json!({}));
    let (one, other) = tokio::join!(play(&environment), play(&environment));
    check(&one.unwrap());
    check(&other.unwrap());
}

#[tokio::test]
async fn a_program_that_fails_is_started_again_with_the_lines_so_far() {
    for failure in ["sys.exit(3)", "os.kill(os.getpid(), 9)"] {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("failed").display().to_string();
        let hook = format!(
            "if len(seen) == 2 and not os.path.exists('{mark}'):\n        \
             open('{mark}', 'w')\n        {failure}"
        );
        let environment = environment(&ECHO.replace("HOOK", &hook), &json!({"retries": 1}));
        check(&play(&environment).await.unwrap());
        assert!(Path::new(&mark).exists(), "{failure}");
    }
}

#[tokio::test]
async fn answers_have_limits_and_errors_name_the_cause() {
    let cases = [
        ("import time; time.sleep(60)", "no response within 2 s"),
        ("while True: sys.stdout.write('x' * 65536)", "longer than 1048576 bytes"),
        ("sys.exit('no maze')", "exit status: 1; last line of stderr: `no maze`"),
        (
            "print('ready', flush=True)",
            "invalid response `ready`, expected {\"observation\": text}",
        ),
    ];
    for (hook, expected) in cases {
        let more = json!({"retries": 0, "timeoutSeconds": 2});
        let environment = environment(&ECHO.replace("HOOK", hook), &more);
        let text = error(&environment).await;
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn wrong_answers_to_steps_are_no_outage_although_each_reset_succeeds() {
    let hook = "if route == 'step': print('north', flush=True)";
    let environment = environment(&ECHO.replace("HOOK", hook), &json!({}));
    for _ in 1..16 {
        let error = play(&environment).await.unwrap_err();
        assert!(matches!(error, RewardError::Rejected { tries: 1, .. }), "{error}");
    }
    let error = play(&environment).await.unwrap_err();
    assert!(matches!(error, RewardError::Faulty { completions: 16, .. }), "{error}");
    assert_eq!(environment.outage(), None);
    let failure = environment.failure().unwrap();
    assert!(failure.reward.starts_with("step of the environment (python3 -c"), "{failure:?}");
    assert!(failure.cause.starts_with("invalid response `north`, expected"), "{failure:?}");
    assert!(!failure.answered);
}

/// Running `sleep` processes with this argument.
fn sleepers(seconds: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines =
        entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.starts_with("sleep\0") && line.contains(seconds)).count()
}

async fn wait_for_sleepers(seconds: &str, count: usize) {
    let start = Instant::now();
    while sleepers(seconds) != count {
        assert!(start.elapsed() < Duration::from_secs(20), "{} remain", sleepers(seconds));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn the_end_of_an_episode_kills_its_program_with_all_descendants() {
    let seconds = format!("96{}", std::process::id());
    let hook = format!(
        "import subprocess\n    if route == 'reset':\n        [subprocess.Popen(['sleep', \
         '{seconds}'], start_new_session=own) for own in (True, False)]"
    );
    let environment = environment(&ECHO.replace("HOOK", &hook), &json!({}));
    let session = environment.session(KEY);
    session.reset(&prompt(), 91).await.unwrap();
    wait_for_sleepers(&seconds, 2).await;
    drop(session);
    wait_for_sleepers(&seconds, 0).await;
}
