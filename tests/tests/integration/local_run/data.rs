//! `rljob validate --data`: counts of rows, and rows whose reference answers no reward can compare;
//! `--local`: tokenizer and weights; `--gpu-memory`: the memory plan of learners.

use std::fs;
use std::path::Path;
use std::process::Command;

use rljob_tests::files::binary;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};

use crate::local_run::folder_with;

/// Exit code and output of `rljob validate` with an option.
pub(super) fn validate(folder: &Path, option: &str) -> (Option<i32>, String) {
    let output = Command::new(binary("rljob").unwrap())
        .args(["validate", option, "--file", "jobs.yaml"])
        .current_dir(folder)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    (output.status.code(), text.replace(folder.to_str().unwrap(), "FOLDER"))
}

#[test]
fn validate_reads_the_data_and_names_unusable_rows() {
    let jobs = include_str!("../async_rollouts/ahead.yaml").replace("exactMatch", "math");
    let folder = folder_with(&jobs);
    let rows = "{\"question\": \"1+1=\", \"answer\": \"2\"}\n".repeat(30);
    let unusable = "{\"question\": \"x?\", \"answer\": \"1/2x\"}\n";
    fs::write(folder.path().join("train.jsonl"), format!("{rows}{unusable}")).unwrap();
    let reason = "line 31: reward correct does not support the answer `1/2x`: the divisor \
                  of a product is ambiguous\n";
    let at = "jobs.yaml: rljob ahead";
    let expected = format!(
        "{at} is valid\n{at}: training data: 30 rows are used; 1 dropped: unusable reference \
         answers\n{at}:   FOLDER/train.jsonl {reason}{at}: evaluation data: 16 rows are used\n"
    );
    assert_eq!(validate(folder.path(), "--data"), (Some(0), expected.clone()));
    let of_epochs = jobs.replace("steps: 10", "epochs: 2");
    fs::write(folder.path().join("jobs.yaml"), of_epochs).unwrap();
    let line = format!("{at}: training.epochs: 2 is 4 steps of this data\n");
    assert_eq!(validate(folder.path(), "--data"), (Some(0), expected + &line));
    let strict = jobs.replace("  rewards:", "    maxUnusableShare: 0.03\n  rewards:");
    fs::write(folder.path().join("jobs.yaml"), strict).unwrap();
    let expected = format!(
        "error: {at}: 1 of 31 rows of the data at FOLDER/train.jsonl have unusable reference \
         answers, more than dataset.maxUnusableShare = 0.03; the first is in FOLDER/train.jsonl \
         {reason}"
    );
    assert_eq!(validate(folder.path(), "--data"), (Some(1), expected));
}

#[test]
fn validate_checks_tokenizer_and_weights_against_the_model() {
    let jobs = include_str!("../async_rollouts/ahead.yaml");
    let folder = folder_with(jobs);
    let (at, model) = ("jobs.yaml: rljob ahead", folder.path().join("model"));
    let scored = ["train", "test"].map(|name| {
        format!("rewards[0] (exactMatch): the reference answer of FOLDER/{name}.jsonl line 1")
    });
    let expected =
        format!("{at} is valid\n{at}: {} scores 1.0\n{at}: {} scores 1.0\n", scored[0], scored[1]);
    assert_eq!(validate(folder.path(), "--local"), (Some(0), expected));

    let pretrained = jobs.replace("weights: Random", "weights: Pretrained");
    fs::write(folder.path().join("jobs.yaml"), pretrained).unwrap();
    let tensor = TensorView::new(Dtype::F32, vec![2, 2], &[0; 16]).unwrap();
    let weights = [("model.embed_tokens.weight", tensor)];
    serialize_to_file(weights, None, &model.join("model.safetensors")).unwrap();
    let (code, text) = validate(folder.path(), "--local");
    let start = format!(
        "error: {at}: the weights in FOLDER/model do not fit its config.json: \
         `model.embed_tokens.weight` in model.safetensors is [2, 2], expected ["
    );
    let end = " more; use the config.json and the weights of one model\n";
    assert!(code == Some(1) && text.contains(&start) && text.ends_with(end), "{text}");

    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["vocab_size"] = json!(4);
    fs::write(&path, config.to_string()).unwrap();
    let (code, text) = validate(folder.path(), "--local");
    let start = format!("error: {at}: the tokenizer in FOLDER/model has token ids up to ");
    assert!(code == Some(1) && text.contains(&start), "{text}");
    assert!(text.contains("a vocab_size of 4: one of the two is another model's"), "{text}");
}

#[test]
fn validate_checks_the_family_and_the_weights_of_a_reward_model_on_embedded_engines() {
    let reward = "{name: scored, model: {path: judge, engines: {embedded: {}}, \
        text: '{{completion}}'}}";
    let jobs = include_str!("../async_rollouts/ahead.yaml");
    let folder = folder_with(&jobs.replace("{name: correct, exactMatch: {}}", reward));
    let (at, model, judge) =
        ("jobs.yaml: rljob ahead", folder.path().join("model"), folder.path().join("judge"));
    fs::create_dir(&judge).unwrap();
    fs::copy(model.join("tokenizer.json"), judge.join("tokenizer.json")).unwrap();
    let tensor = TensorView::new(Dtype::F32, vec![2, 2], &[0; 16]).unwrap();
    let weights = [("model.embed_tokens.weight", tensor)];
    serialize_to_file(weights, None, &judge.join("model.safetensors")).unwrap();
    let mut config: Value =
        serde_json::from_slice(&fs::read(model.join("config.json")).unwrap()).unwrap();
    config["num_labels"] = json!(1);
    for (architecture, expected) in [
        ("LlamaForSequenceClassification", "the weights in FOLDER/judge do not fit"),
        ("BertForSequenceClassification", "BertForSequenceClassification"),
    ] {
        config["architectures"] = json!([architecture]);
        config["model_type"] = json!(architecture.split_once("For").unwrap().0.to_lowercase());
        fs::write(judge.join("config.json"), config.to_string()).unwrap();
        let (code, text) = validate(folder.path(), "--local");
        let start = format!("error: {at}: ");
        assert!(code == Some(1) && text.starts_with(&start) && text.contains(expected), "{text}");
    }
}

/// Creates the folder of a model of the shape of Qwen2.5-7B, without weights.
fn folder_of_shape() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "vocab_size": 152_064, "hidden_size": 3584,
        "intermediate_size": 18_944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0, "max_position_embeddings": 32_768,
        "tie_word_embeddings": false, "eos_token_id": 2,
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

/// Exit code and output of `rljob validate --gpu-memory`, without warnings of a job for this
/// machine.
fn plan(folder: &Path, gib: u32) -> (Option<i32>, String) {
    let (code, text) = validate(folder, &format!("--gpu-memory={gib}"));
    let lines = text.split_inclusive('\n');
    (code, lines.filter(|line| !line.starts_with("jobs.yaml: warning: ")).collect())
}

#[test]
fn validate_plans_the_memory_of_a_model_and_says_what_fits() {
    let folder = folder_of_shape();
    let job = json!({
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "large"},
        "spec": {
            "model": {"path": "."},
            "storage": {"hostPath": {"path": "/runs"}},
            "dataset": {"train": {"path": "/d.jsonl", "prompt": "{{q}}", "completion": "{{a}}"}},
            "algorithm": {"sft": {}},
            "training": {"steps": 1},
            "inference": {"replicas": 0},
            "trainer": {"replicas": 2, "resources": {"limits": {"nvidia.com/gpu": 1}}},
        },
    });
    fs::write(folder.path().join("jobs.yaml"), job.to_string()).unwrap();
    let at = "jobs.yaml: rljob large";
    let expected = format!(
        "{at} is valid\n{at}: memory of each of 2 learners: 132.4 GiB = weights 14.2 GiB + \
         gradients 14.2 GiB + optimizer states 28.4 GiB + buffers of whole blocks 9.7 GiB + the \
         copy for engines and exports 14.2 GiB + activations 48.4 GiB + temporaries 3.3 GiB; 0 \
         layers are computed again, and the norms of 15; sharding Full; 132.5 GiB of 141.0 GiB \
         that are free can be used\n"
    );
    assert_eq!(plan(folder.path(), 141), (Some(0), expected));
    let error = format!(
        "error: {at}: the model does not fit: of 79.0 GiB on the GPU, 74.3 GiB can be used, and \
         80.6 GiB are needed without activations (optimizer states 28.4 GiB, weights 14.2 GiB, \
         gradients 14.2 GiB, the copy for engines and exports 14.2 GiB, buffers of whole blocks \
         9.7 GiB): set optimizer.offload to true, or use at least 3 GPUs (now 2)\n"
    );
    assert_eq!(plan(folder.path(), 79), (Some(1), error));
    let on_cpus = job.to_string().replace("nvidia.com/gpu", "cpu");
    fs::write(folder.path().join("jobs.yaml"), on_cpus).unwrap();
    let none = format!(
        "{at} is valid\n{at}: its learners have no GPUs, and no memory plan; set \
         trainer.resources.limits to plan for them\n"
    );
    assert_eq!(plan(folder.path(), 79), (Some(0), none));
}

#[test]
fn validate_plans_the_memory_of_a_group_beside_that_of_the_trainer() {
    let folder = folder_of_shape();
    let gpus = |count: u32| json!({"limits": {"nvidia.com/gpu": count}});
    let mut job = json!({
        "apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "large"},
        "spec": {
            "model": {"path": "."},
            "storage": {"hostPath": {"path": "/runs"}},
            "dataset": {"train": {
                "path": "/d.jsonl", "prompt": "{{q}}", "chosen": "{{a}}", "rejected": "{{b}}",
            }},
            "algorithm": {"dpo": {}},
            "training": {"steps": 1},
            "inference": {"replicas": 0},
            "trainer": {
                "replicas": 2, "resources": gpus(2),
                "groups": [{"name": "frozen", "roles": ["Reference"], "resources": gpus(2)}],
            },
        },
    });
    let planned = |job: &Value, gib: u32| {
        fs::write(folder.path().join("jobs.yaml"), job.to_string()).unwrap();
        let (code, text) = plan(folder.path(), gib);
        let at = "jobs.yaml: rljob large: ";
        let lines = text.lines().filter_map(|line| line.split_once(at));
        (code, lines.map(|(_, line)| line.to_owned()).collect::<Vec<_>>())
    };
    let of_group = "memory of each of 2 learners of group frozen: 12.5 GiB = the reference model \
        10.0 GiB + temporaries 2.5 GiB; sharding Full; 75.2 GiB of 80.0 GiB that are free can be \
        used";
    let (code, lines) = planned(&job, 80);
    assert_eq!((code, lines.len()), (Some(0), 2), "{lines:?}");
    assert!(lines[0].starts_with("memory of each of 4 learners: "), "{lines:?}");
    assert!(!lines[0].contains("reference"), "{lines:?}");
    assert_eq!(lines[1], of_group);

    job["spec"]["trainer"]["groups"][0]["resources"] = json!({});
    let without = "its group frozen has no GPUs, and no memory plan; set resources.limits of the \
        group to plan for it";
    assert_eq!(planned(&job, 80).1[1], without);
    job["spec"]["trainer"]["groups"][0]["resources"] = gpus(1);
    job["spec"]["trainer"]["resources"] = json!({});
    let (code, lines) = planned(&job, 12);
    assert_eq!((code, lines.len()), (Some(1), 1), "{lines:?}");
    let message = "group frozen: the model does not fit: of 12.0 GiB on the GPU, 11.3 GiB can be \
        used, and 14.2 GiB are needed without activations (the reference model 14.2 GiB): use at \
        least 2 GPUs (now 1)";
    assert_eq!(lines[0], message);
}
