//! Code and python rewards with the real runner and the real sandbox.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::float_cmp, reason = "rewards are exact")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rljob_coordinator::reward::{Question, RewardError, Rewards, Runner};
use rljob_tests::files::{binary, workspace};
use serde_json::{Value, json};

fn rewards(kind: &Value) -> Rewards {
    // The runner starts the sandbox that is beside it.
    binary("rljob-sandbox").unwrap();
    let runner = Runner::Program(binary("rljob-reward-runner").unwrap());
    let mut spec = json!({"name": "tests"});
    spec.as_object_mut().unwrap().extend(kind.as_object().unwrap().clone());
    Rewards::new(&[serde_json::from_value(spec).unwrap()], &runner, None).unwrap()
}

fn question<'a>(completion: &'a str, answer: &'a str) -> Question<'a> {
    Question { prompt: "Add.", completion, answer: Some(answer), fields: None }
}

#[tokio::test]
async fn known_completions_get_the_reward_of_their_tests() {
    let tests = r#"{"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}"#;
    let right = "Sum:\n```python\nprint(sum(map(int, input().split())))\n```";
    let half = "```python\nprint(3)\n```";
    let cpp = "```cpp\n#include <iostream>\nint main() { int a, b; std::cin >> a >> b; \
               std::cout << a + b; }\n```";
    let rewards = rewards(&json!({"code": {"language": "FromFence", "verdict": "Share"}}));
    let mut found = Vec::new();
    for completion in [right, half, cpp, "print(3)", "```rust\nfn main() {}\n```"] {
        let reward = rewards.score(question(completion, tests)).await.unwrap();
        found.push((reward.value, reward.components["tests/program"]));
    }
    assert_eq!(found, [(1.0, 1.0), (0.5, 1.0), (1.0, 1.0), (0.0, 0.0), (0.0, 0.0)]);
    let reward = rewards.score(question(half, tests)).await.unwrap();
    assert_eq!(reward.details["tests"], json!(["Passed", "Wrong"]));
    assert!(rewards.check_answer("4", false).is_err());
}

#[tokio::test]
async fn functions_and_statements_test_programs_in_cpp() {
    let rewards = rewards(&json!({"code": {"language": "Cpp"}}));
    let program = "```cpp\nint add(int a, int b) { return a + b; }\n```";
    for (tests, expected) in [
        (r#"{"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]}"#, 1.0),
        (r#"["assert(add(1, 2) == 3);", "assert(add(2, 2) == 4);"]"#, 1.0),
        (r#"["assert(add(1, 2) == 3);", "assert(add(2, 2) == 5);"]"#, 0.0),
    ] {
        rewards.check_answer(tests, false).unwrap();
        let reward = rewards.score(question(program, tests)).await.unwrap();
        assert_eq!(reward.value, expected, "{tests}");
    }
    assert!(rewards.check_answer(r#"["assert add(1, 2) == 3"]"#, true).is_err());
}

#[tokio::test]
async fn programs_that_loop_end_and_score_zero() {
    let limits = json!({"testSeconds": 1, "totalSeconds": 3});
    let rewards = rewards(&json!({"code": {"limits": limits}}));
    let reward =
        rewards.score(question("```\nwhile True: pass\n```", r#"["assert True"]"#)).await.unwrap();
    assert_eq!((reward.value, reward.components["tests/timeLimit"]), (0.0, 1.0));
}

#[tokio::test]
async fn a_function_scores_and_its_failure_rejects_the_sample() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.py");
    let source = "def length(prompt, completion, answer):\n    \
                  return len(completion) / float(answer)\n";
    std::fs::write(&path, source).unwrap();
    let rewards = rewards(&json!({"python": {"path": path, "function": "length", "retries": 0}}));
    assert_eq!(rewards.score(question("four", "8")).await.unwrap().value, 0.5);
    let error = rewards.score(question("four", "x")).await.unwrap_err();
    let RewardError::Rejected { source, .. } = error else { panic!("{error}") };
    let expected = "the function raised ValueError: could not convert string to float: 'x' (line 2 \
                    of own.py)";
    assert_eq!(source.to_string(), expected);
    assert_eq!(rewards.score(question("four", "4")).await.unwrap().value, 1.0);
}

#[tokio::test]
async fn a_function_that_takes_fields_gets_those_of_the_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.py");
    let source = "def needed(prompt, completion, answer, fields):\n    return fields['a.b'][1]\n\n\
                  def optional(prompt, completion, answer, fields=None):\n    \
                  return 1 if fields else -1\n\n\
                  def without(prompt, completion, answer):\n    return 3\n";
    std::fs::write(&path, source).unwrap();
    let fields = json!({"a.b": [1, 2.5]});
    let with = Question { fields: fields.as_object(), ..question("four", "8") };
    let of = |function: &str| rewards(&json!({"python": {"path": path, "function": function}}));
    for (function, has, lacks) in [("optional", 1.0, -1.0), ("without", 3.0, 3.0)] {
        let rewards = of(function);
        assert_eq!(rewards.score(with).await.unwrap().value, has, "{function}");
        assert_eq!(rewards.score(question("four", "8")).await.unwrap().value, lacks, "{function}");
    }
    let needed = of("needed");
    needed.check().await.unwrap();
    assert_eq!(needed.score(with).await.unwrap().value, 2.5);
    let error = needed.score(question("four", "8")).await.unwrap_err();
    let RewardError::Rejected { tries: 1, source, .. } = error else { panic!("{error:?}") };
    let expected = "the function takes fields, of which the data have none: set their rewardFields";
    assert_eq!(source.to_string(), expected);
}

const EXPECTED: &str = "; return a number, or {\"reward\": number, \"components\": {name: \
                        number}, \"answer\": text}, for each completion";

#[tokio::test]
async fn results_that_are_no_rewards_are_named_and_not_retried() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.py");
    std::fs::write(&path, "def own(prompt, completion, answer):\n    return eval(completion)\n")
        .unwrap();
    let rewards = rewards(&json!({"python": {"path": path, "function": "own"}}));
    for (result, expected) in [
        ("None", "None"),
        ("[1.0, 2.0]", "[1.0, 2.0] (list)"),
        ("'1'", "'1' (str)"),
        ("float('nan')", "nan (float)"),
        ("{'score': 1}", "{'score': 1} (dict)"),
        ("{'reward': None}", "None as reward"),
        ("{'reward': 1, 'components': {'a': 'b'}}", "'b' (str) as component a"),
        ("{'reward': 1, 'answer': 2}", "2 (int) as answer"),
    ] {
        let error = rewards.score(question(result, "8")).await.unwrap_err();
        let RewardError::Rejected { tries: 1, source, .. } = error else { panic!("{error:?}") };
        assert_eq!(source.to_string(), format!("the function returned {expected}{EXPECTED}"));
    }
    for (completion, expected) in [
        ("1 / 0", "raised ZeroDivisionError: division by zero (line 2 of own.py)"),
        ("exit(3)", "raised SystemExit: 3 (line 2 of own.py)"),
    ] {
        let error = rewards.score(question(completion, "8")).await.unwrap_err();
        let RewardError::Rejected { tries: 1, source, .. } = error else { panic!("{error:?}") };
        assert_eq!(source.to_string(), format!("the function {expected}"));
    }
    let part = rewards.score(question("{'reward': True, 'components': {'a': 2}}", "8")).await;
    let part = part.unwrap();
    assert_eq!((part.value, part.components["tests/a"]), (1.0, 2.0));
}

#[tokio::test]
async fn processes_of_a_function_that_have_too_much_memory_together_end_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.py");
    let source = "import os, time\n\
        def own(prompt, completion, answer):\n    \
            for _ in range(int(answer)):\n        \
                if os.fork() == 0:\n            \
                    x = b'x' * (60 << 20)\n            \
                    time.sleep(1000)\n    \
            return 1.0 if answer == '0' else time.sleep(1000)\n";
    std::fs::write(&path, source).unwrap();
    let function = json!({"path": path, "function": "own", "memoryMebibytes": 128, "retries": 0});
    let rewards = rewards(&json!({ "python": function }));
    let error = rewards.score(question("four", "4")).await.unwrap_err();
    let RewardError::Rejected { source, .. } = error else { panic!("{error}") };
    let cause = "more than 128 MiB of memory in all processes together";
    assert!(source.to_string().contains(cause), "{source}");
    assert_eq!(rewards.score(question("four", "0")).await.unwrap().value, 1.0);
}

#[tokio::test]
async fn a_function_that_scores_no_completion_fails_the_run_without_an_outage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.py");
    std::fs::write(&path, "def own(prompt, completion, answer):\n    completion\n").unwrap();
    let rewards = rewards(&json!({"python": {"path": path, "function": "own"}}));
    for _ in 1..16 {
        let error = rewards.score(question("four", "8")).await.unwrap_err();
        assert!(matches!(error, RewardError::Rejected { .. }), "{error:?}");
    }
    let error = rewards.score(question("four", "8")).await.unwrap_err();
    let RewardError::Faulty { service, completions: 16, .. } = &error else { panic!("{error:?}") };
    assert_eq!(service, &format!("reward tests (python own of {})", path.display()));
    assert_eq!(rewards.outage(), None);
}

#[tokio::test]
async fn a_file_without_a_function_that_takes_the_keywords_fails_before_the_first_completion() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.py");
    let of = |function: &str| {
        rewards(&json!({"python": {"path": path, "function": function, "retries": 0}}))
    };
    let score = "def score(prompt, completion, answer):\n    return 1.0\n";
    let few = "def score(prompt, completion):\n    return 1.0\n";
    let cases = [
        (score, "scoer", "has no function scoer; it has score"),
        ("import absent\n", "score", "cannot be imported: ModuleNotFoundError: No module named"),
        ("def score(\n", "score", "cannot be imported: SyntaxError: "),
        (
            few,
            "score",
            "score(prompt, completion) is called with the keywords prompt, completion and answer: \
             got an unexpected keyword argument 'answer'",
        ),
    ];
    for (source, function, expected) in cases {
        std::fs::write(&path, source).unwrap();
        let rewards = of(function);
        let scored = rewards.score(question("four", "8")).await.map(|_| ());
        for result in [rewards.check().await, scored] {
            let error = result.unwrap_err();
            assert!(matches!(error, RewardError::Unavailable { .. }), "{error:?}");
            assert!(error.is_permanent());
            let text = std::error::Error::source(&error).unwrap().to_string();
            assert!(text.contains(&path.display().to_string()), "{text}");
            assert!(text.contains(expected), "{text}");
        }
    }
    std::fs::write(&path, score).unwrap();
    let rewards = of("score");
    rewards.check().await.unwrap();
    assert_eq!(rewards.score(question("four", "8")).await.unwrap().value, 1.0);
    assert_eq!(rewards.failure(), None);
}

#[tokio::test]
async fn the_rewards_of_the_samples_score() {
    let samples = workspace().join("manifests/samples/rewards");
    let command = json!({"command": ["python3", samples.join("digits.py")]});
    let mut server = Command::new("python3")
        .arg(samples.join("server.py"))
        .arg("0")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut url).unwrap();
    for kind in [json!({ "command": command }), json!({"http": {"url": url.trim()}})] {
        let rewards = rewards(&kind);
        for (completion, expected) in [("085", 1.0), ("045 ", 2.0 / 3.0), ("", 0.0), ("0851", 0.75)]
        {
            let reward = rewards.score(question(completion, "085")).await.unwrap();
            assert_eq!(reward.value, expected, "{completion}");
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    let path = samples.join("brief.py");
    let rewards = rewards(&json!({"python": {"path": path, "function": "brief"}}));
    for (length, expected) in [(800, 0.0), (2000, -0.5), (9000, -1.0)] {
        let completion = "a".repeat(length);
        let reward = rewards.score(question(&completion, "8")).await.unwrap();
        assert_eq!(
            (reward.value, reward.components["tests/characters"]),
            (expected, length as f64)
        );
    }
}
