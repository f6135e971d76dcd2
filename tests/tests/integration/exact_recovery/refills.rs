//! Refills: a group samples again what a verifier rejects, and kills do not change its samples.

use std::fs;

use super::{Victim, with_and_without_kills};
use crate::journal::query;
use crate::local_run::baseline;

/// Scores sums, and gives no reward to one wrong completion in three, whatever the seed.
const REWARD: &str = r#"
import json, sys, zlib
for line in sys.stdin:
    asked = json.loads(line)
    completion = asked["completion"]
    reward = float(completion.strip() == asked["answer"])
    if not reward and zlib.crc32((asked["prompt"] + completion).encode()) % 3 == 0:
        print("no reward", flush=True)
    else:
        print(json.dumps({"id": asked["id"], "reward": reward}), flush=True)
"#;

/// Rejections of each sample of a group that the journal still has.
const REJECTED: &str = "SELECT json_extract(detail, '$.position') AS position, \
    json_extract(detail, '$.index') AS sample_index, count(*) AS tries FROM events \
    WHERE kind = 'SampleRejected' AND position IN (SELECT position FROM samples) GROUP BY 1, 2";

#[test]
#[ignore = "long: make thorough"]
fn rejected_samples_are_sampled_again_and_kills_do_not_change_the_groups() {
    let program = baseline().folder.join("refuse.py");
    fs::write(&program, REWARD).unwrap();
    let command = format!("{{command: [python3, {}], retries: 0}}", program.display());
    let sets = [
        format!("practise:spec.rewards=[{{name: correct, command: {command}}}]"),
        "practise:spec.training.steps=4".to_owned(),
        "practise:spec.checkpoint.everySteps=1".to_owned(),
    ];
    let kills = [(1, Victim::Coordinator), (2, Victim::Engine)];
    let ([expected, _], steps) =
        with_and_without_kills("refills", &sets.each_ref().map(String::as_str), &kills);
    let rejected = |condition: &str| -> u64 {
        let sql = format!(
            "SELECT count(*) FROM ({REJECTED}) LEFT JOIN samples USING (position, sample_index) \
             WHERE {condition}"
        );
        query(&expected, &sql).parse().unwrap()
    };
    assert!(rejected("tries < 3") > 0);
    // The third rejection is the last one, and each earlier one is followed by another sample.
    assert_eq!(rejected("tries > 3 OR (tries = 3) != (data_row IS NULL)"), 0);
    let counted: u64 = steps.iter().map(|step| step["rejectedSamples"].as_u64().unwrap()).sum();
    let events = "SELECT count(*) FROM events WHERE kind = 'SampleRejected'";
    assert_eq!(query(&expected, events), counted.to_string());
    let missing = "SELECT 8 * count(DISTINCT position) - count(*) FROM samples";
    assert_eq!(query(&expected, missing), rejected("tries = 3").to_string());
}
