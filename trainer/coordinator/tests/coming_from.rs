//! The reward functions of docs/coming-from.md, called with its rows by the real sandbox.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::float_cmp, reason = "rewards are exact")]

use std::fs;
use std::path::Path;

use rljob_coordinator::reward::{Question, Rewards, Runner};
use rljob_tests::files::binary;
use serde_json::{Value, json};

/// Writes the blocks of the page that are files.
fn write_files(folder: &Path) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/coming-from.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```python\n# ").skip(1).filter_map(|rest| rest.split("```").next());
    let mut written = Vec::new();
    for (name, text) in blocks.filter_map(|block| block.split_once('\n')) {
        fs::write(folder.join(name), text).unwrap();
        written.push(name);
    }
    assert_eq!(written, ["from_verl.py", "compute_score.py", "from_trl.py", "trl_rewards.py"]);
}

async fn rewards(path: &Path) -> Rewards {
    binary("rljob-sandbox").unwrap();
    let runner = Runner::Program(binary("rljob-reward-runner").unwrap());
    let spec = json!({"name": "score", "python": {"path": path, "function": "reward"}});
    let spec = serde_json::from_value(spec).unwrap();
    let rewards = Rewards::new(&[spec], &runner, None).unwrap();
    rewards.check().await.unwrap();
    rewards
}

fn question<'a>(completion: &'a str, fields: &'a Value) -> Question<'a> {
    Question { prompt: "2 + 3?", completion, answer: Some("5"), fields: fields.as_object() }
}

#[tokio::test]
async fn functions_of_verl_and_trl_score_through_their_wrappers() {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path());
    let verl = rewards(&folder.path().join("from_verl.py")).await;
    let row = json!({
        "data_source": "openai/gsm8k", "extra_info": {"split": "train", "index": 0},
    });
    for (completion, expected) in [("2 + 3 = 5\n#### 5", 1.0), ("#### 6", 0.1), ("5", 0.0)] {
        let scored = verl.score(question(completion, &row)).await.unwrap();
        assert_eq!(scored.value, expected, "{completion}");
    }
    let best = verl.score_statements(question("5", &row), false).await.unwrap();
    assert_eq!((best.completion.as_str(), best.value), ("#### 5", 1.0));
    let trl = rewards(&folder.path().join("from_trl.py")).await;
    let row = json!({"ground_truth": "5"});
    for (completion, expected) in [("\\boxed{5}", 1.0), ("\\boxed{6}", 0.0), ("5", 0.0)] {
        let scored = trl.score(question(completion, &row)).await.unwrap();
        assert_eq!(scored.value, expected, "{completion}");
    }
    let best = trl.score_statements(question("5", &row), false).await.unwrap();
    assert_eq!((best.completion.as_str(), best.value), ("\\boxed{5}", 1.0));
}
