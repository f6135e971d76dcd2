//! Programs of rewards: kills of the judge of a `code` reward, of its runner, of the coordinator
//! and of the process of a `python` reward change no verdict.

use std::fs;
use std::path::Path;

use rljob_crds::names::{EXPORT_DIR, METRICS_FILE};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{RunUnderFaults, Victim, assert_same_result, practise, untimed_lines};
use crate::journal::query;
use crate::local_run::baseline;

/// Scores the sum of a prompt as a whole; slowly, so that a kill is in a call.
const FUNCTION: &str = r#"
import time

def score(prompt, completion, answer):
    time.sleep(0.05)
    terms = prompt.rstrip("=").split("+")
    return float(f"'{sum(map(int, terms)):03}'" in completion)
"#;
/// Rows of the data.
const ROWS: usize = 64;
/// Start of the program that runs the tests in the sandbox.
const DRIVER: &str = "Driver of a sandbox";

/// The digits of a completion become a program that assigns them, since the small model writes
/// nothing but digits.
fn write_model(folder: &Path) {
    let export = baseline().folder.join("baseline/default/imitate").join(EXPORT_DIR);
    fs::create_dir_all(folder).unwrap();
    for entry in fs::read_dir(export).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let replace = |regex: &str, content: &str| {
        let pattern = json!({ "Regex": regex });
        json!({"type": "Replace", "pattern": pattern, "content": content})
    };
    tokenizer["decoder"] = json!({
        "type": "Sequence",
        "decoders": [{"type": "Fuse"}, replace(r"\A", "```\nx = '"), replace(r"\z", "'\n```\n")],
    });
    fs::write(&path, tokenizer.to_string()).unwrap();
}

/// Each digit of the sum is a test.
fn write_rows(file: &Path) {
    let rows = fs::read_to_string(baseline().folder.join("train.jsonl")).unwrap();
    let rows = rows.lines().take(ROWS).map(|line| {
        let row: Value = serde_json::from_str(line).unwrap();
        let digits = row["answer"].as_str().unwrap().chars().enumerate();
        let tests: Vec<_> =
            digits.map(|(place, digit)| format!("assert x[{place}] == '{digit}'")).collect();
        format!("{}\n", json!({"question": row["question"], "tests": tests}))
    });
    fs::write(file, rows.collect::<String>()).unwrap();
}

fn start(runs: &str) -> RunUnderFaults {
    let function = baseline().folder.join("sums.py");
    let sets = [
        "model={path: programs}".to_owned(),
        "dataset.train={path: programs.jsonl, prompt: \"{{question}}\", answer: tests, \
         format: Text}"
            .to_owned(),
        "dataset.evaluation={path: programs.jsonl, prompt: \"{{question}}\", answer: tests, \
         format: Text, limit: 4}"
            .to_owned(),
        format!(
            "rewards=[{{name: digits, code: {{verdict: Share, concurrency: 1}}}}, \
             {{name: sum, weight: 0.5, python: {{path: {}, function: score}}}}]",
            function.display()
        ),
        "algorithm.grpo.groupSize=4".to_owned(),
        "rollout.batchSize=4".to_owned(),
        "training.steps=6".to_owned(),
        "checkpoint.everySteps=2".to_owned(),
    ];
    let sets = sets.map(|set| format!("practise:spec.{set}"));
    practise(runs, &sets.each_ref().map(String::as_str), &[])
}

/// Kills the process that `victim` selects, given the judge, while a program runs. The judge is
/// stopped for the check.
fn kill_while_judging(run: &mut RunUnderFaults, victim: impl Fn(&RunUnderFaults, Pid) -> Pid) {
    loop {
        let judge = run.pause(Victim::Judge);
        if run.local.find("python3", DRIVER).is_none() {
            judge.resume();
            continue;
        }
        let pid = Pid::from_raw(judge.pid()).unwrap();
        kill_process(victim(run, pid), Signal::KILL).unwrap();
        run.wait_for_another(Victim::Judge, pid);
        return;
    }
}

/// The session of the reward runner that started a process.
fn parent(pid: Pid) -> Pid {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let parent = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap();
    Pid::from_raw(parent.parse().unwrap()).unwrap()
}

#[test]
#[ignore = "long: make thorough"]
fn kills_of_judge_runner_coordinator_and_function_change_no_verdict() {
    let folder = &baseline().folder;
    write_model(&folder.join("programs"));
    write_rows(&folder.join("programs.jsonl"));
    fs::write(folder.join("sums.py"), FUNCTION).unwrap();
    let expected = start("programs-expected");
    let directory = expected.local.runs.join("default/practise");
    let (code, output) = expected.local.end();
    assert_eq!(code, Some(0), "{output}");
    let verdicts = |condition: &str| -> u64 {
        let sql = format!("SELECT count(*) FROM samples WHERE {condition}");
        query(&directory, &sql).parse().unwrap()
    };
    let of = |key: &str| format!("json_extract(reward_components, '$.\"{key}\"')");
    let [digits, sum, program] = ["digits", "sum", "digits/program"].map(of);
    assert_eq!(verdicts(&format!("{program} IS NOT 1")), 0, "every completion is a program");
    assert_eq!(verdicts(&format!("{sum} = 1 AND {digits} != 1")), 0, "both agree");
    for passed in 0..3 {
        assert!(verdicts(&format!("round(3 * {digits}) = {passed}")) > 0, "{passed} of 3 tests");
    }

    let mut run = start("programs-killed");
    run.wait_for_steps(1);
    kill_while_judging(&mut run, |_, judge| judge);
    run.wait_for_steps(2);
    kill_while_judging(&mut run, |_, judge| parent(judge));
    run.wait_for_steps(3);
    kill_while_judging(&mut run, |run, _| run.local.find("rljob-coordinator", "").unwrap());
    run.wait_for_steps(4);
    run.kill_when(Victim::Function, |_| true, |_, _| true);
    let killed = run.local.runs.join("default/practise");
    let (code, output) = run.local.end();
    assert_eq!(code, Some(0), "{output}");
    assert_same_result(&killed, &directory);
    let found = "SELECT reward_components, metadata FROM samples WHERE step IS NOT NULL \
        ORDER BY position, sample_index";
    assert_eq!(query(&killed, found), query(&directory, found));
    let [steps, expected] = [&killed, &directory].map(|run| untimed_lines(&run.join(METRICS_FILE)));
    assert_eq!(steps, expected);
}
