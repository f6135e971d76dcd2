//! Commands on one machine, run as printed in the order of the pages, beside runs of tiny jobs.
//!
//! Job files with the names of the pages are the quick start's job, smaller; `rljob init` replaces
//! them by presets until a command needs data again.

use std::fs;
use std::path::Path;

use rljob_tests::files::workspace;
use rljob_tests::quickstart;
use serde::Deserialize;
use serde_json::{Value, json};

use super::commands::{Place, commands_of};
use super::user::User;
use crate::control_plane::merge;

/// Folder of the quick start's data.
const DATA: &str = "manifests/samples/quickstart/data";
/// Rows of each file of data.
const ROWS: usize = 8;
/// Steps of the job: checkpoints of steps 20 and 40 exist.
const STEPS: u32 = 41;
/// Smaller numbers in samples that run.
const SMALLER: [(&str, &str); 7] = [
    ("warmupSteps: 20", "warmupSteps: 0"),
    ("warmupSteps: 5", "warmupSteps: 0"),
    ("steps: 600", "steps: 1"),
    ("steps: 60\n", "steps: 1\n"),
    ("steps: 30", "steps: 1"),
    ("batchSize: 64", "batchSize: 2"),
    ("batchSize: 128", "batchSize: 2"),
];
/// Shape of Qwen2.5-1.5B, of which a memory plan needs no weights.
const QWEN: &str = r#"{
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936,
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "max_position_embeddings": 131072,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "tie_word_embeddings": true
}"#;

/// The jobs of the quick start, with few steps and paths from the user's folder.
fn jobs() -> [Value; 2] {
    let text = fs::read_to_string(workspace().join("manifests/samples/quickstart.yaml")).unwrap();
    let text = text.replace("quickstart/data/", &format!("{DATA}/"));
    let documents = serde_yaml::Deserializer::from_str(&text);
    let jobs: Vec<Value> = documents.map(|job| Value::deserialize(job).unwrap()).collect();
    let [mut first, mut second] = <[Value; 2]>::try_from(jobs).unwrap();
    let one = json!({"training": {"steps": 1}, "optimizer": {"warmupSteps": 0}});
    merge(&mut first, &json!({ "spec": one }));
    let changes = json!({
        "metadata": {"name": "gsm8k"},
        "spec": {
            "algorithm": {"grpo": {"groupSize": 2}},
            "rollout": {"batchSize": 2},
            "training": {"steps": STEPS},
            "optimizer": {"warmupSteps": 0},
            "dataset": {"evaluation": {"everySteps": 20, "limit": ROWS}},
            "checkpoint": {"keepLast": 3},
        },
    });
    merge(&mut second, &changes);
    [first, second]
}

/// Keeps the first rows of each file of data in a folder.
fn shorten(folder: &Path) {
    for file in fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "jsonl") {
            let text = fs::read_to_string(&file).unwrap();
            let kept: String = text.split_inclusive('\n').take(ROWS).collect();
            fs::write(&file, kept).unwrap();
        }
    }
}

fn make_smaller(file: &Path) {
    let text = fs::read_to_string(file).unwrap();
    let text = SMALLER.iter().fold(text, |text, (from, to)| text.replace(from, to));
    fs::write(file, text).unwrap();
}

/// A user with data, a model, and a run of the job of which the quick start's one begins.
fn user() -> User {
    let user = User::new();
    quickstart::generate(&user.path(DATA), ROWS).unwrap();
    shorten(&user.path(DATA));
    fs::copy(user.path(DATA).join("train.jsonl"), user.path("train.jsonl")).unwrap();
    make_smaller(&user.path("manifests/samples/ab.yaml"));
    user.write("Qwen2.5-1.5B/config.json", QWEN);
    user.add_kubeconform();
    user.write("sft.json", &jobs()[0].to_string());
    user.shell("rljob run -f sft.json --dir runs").unwrap();
    user
}

/// Continues the run to its last step, for the pages after README.md.
fn complete(user: &User) {
    user.shell("rljob run -f job.yaml --dir runs").unwrap();
    for name in ["quickstart", "first", "second"] {
        user.shell(&format!("cp -r runs/default/gsm8k runs/default/{name}")).unwrap();
    }
}

/// Runs a command, between what a user would do before and after it.
fn follow(user: &User, command: &str) -> Result<(), String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let file = words.windows(2).find(|pair| pair[0] == "--file").map(|pair| user.path(pair[1]));
    let is_preset = words.starts_with(&["rljob", "init"]);
    if let Some(file) = file.as_ref().filter(|_| is_preset) {
        // `init` never overwrites a file.
        let _ = fs::remove_file(file);
    }
    let reads_data = ["run", "evaluate", "--local"].iter().any(|word| words.contains(word));
    if reads_data && words.contains(&"job.yaml") {
        user.write("job.yaml", &jobs()[1].to_string());
    }
    if words.contains(&"dashboard") {
        return user.serve(command);
    }
    let is_question = words.contains(&"restore") && !words.contains(&"--discard");
    match user.shell(command) {
        Err(error) if is_question && error.contains("pass --discard") => {}
        Ok(_) if is_question => return Err(format!("{command} discards without a question")),
        result => drop(result?),
    }
    if words.contains(&"--discard") {
        user.write("job.yaml", &jobs()[1].to_string());
        user.shell("rljob run -f job.yaml --dir runs")?;
    }
    if command.ends_with(" ~/sums") {
        shorten(&user.path("sums"));
    }
    if let Some(file) = file.filter(|_| words.contains(&"quickstart")) {
        make_smaller(&file);
    }
    Ok(())
}

#[test]
fn commands_on_one_machine_run_as_printed() {
    let user = user();
    let (mut problems, mut is_complete) = (Vec::new(), false);
    for command in commands_of(Place::Machine) {
        if command.page != "README.md" && !is_complete {
            complete(&user);
            is_complete = true;
        }
        let result = follow(&user, &command.text);
        problems.extend(result.err().map(|error| format!("{}: {error}", command.page)));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
