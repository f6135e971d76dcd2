//! Rewards that reject most samples: the run fails unless that is allowed, and counts them.

use std::fs;

use rljob_crds::names::METRICS_FILE;

use super::functions::cause;
use super::{LocalRun, folder_with};
use crate::exact_recovery::untimed_lines;

/// Scores every fourth completion.
const REWARD: &str = "calls = 0\n\n\ndef own(prompt, completion, answer):\n    global calls\n    \
    calls += 1\n    if calls % 4:\n        raise ValueError('no reward')\n    \
    return len(completion)\n";

#[test]
fn a_run_whose_reward_rejects_most_samples_fails_unless_the_job_allows_it() {
    let jobs = include_str!("../async_rollouts/ahead.yaml").replace("steps: 10", "steps: 4");
    let reward = "{name: own, python: {path: own.py, function: own}}";
    let folder = folder_with(&jobs.replace("{name: correct, exactMatch: {}}", reward));
    fs::write(folder.path().join("own.py"), REWARD).unwrap();

    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(1), "{output}");
    let cause = cause(&output, folder.path());
    let (rejected, cause) = cause.split_once(' ').unwrap();
    assert!((256..512).contains(&rejected.parse::<u32>().unwrap()), "{rejected}");
    let expected = "of the newest 512 samples were rejected, more than rollout.maxRejectedShare = \
        0.5: mend what rejects them, or raise the share, and run the job again; the last cause is: \
        reward own (python own of FOLDER/own.py) failed 1 times for a completion; last error: the \
        function raised ValueError: no reward (line 8 of own.py)";
    assert_eq!(cause, expected);

    let allowed = ["--set", "ahead:spec.rollout.maxRejectedShare=1"];
    let run = LocalRun::start_with(folder.path(), "allowed", &allowed);
    let metrics = run.runs.join("default/ahead").join(METRICS_FILE);
    let (code, output) = run.end();
    assert_eq!(code, Some(0), "{output}");
    let rejected: Vec<u64> = untimed_lines(&metrics)
        .iter()
        .map(|step| step["rejectedSamples"].as_u64().unwrap())
        .collect();
    assert!(rejected.len() == 4 && rejected.iter().all(|samples| *samples > 0), "{rejected:?}");
    for (step, samples) in rejected.iter().enumerate() {
        let (start, end) =
            (format!("step {}/4", step + 1), format!("  {samples} samples rejected"));
        let is_line = |line: &str| line.starts_with(&start) && line.ends_with(&end);
        assert!(output.lines().any(is_line), "{start}: {output}");
    }
    let all = format!(", {} samples rejected, ", rejected.iter().sum::<u64>());
    assert!(output.lines().any(|line| line.contains(&all)), "{all}: {output}");
}
