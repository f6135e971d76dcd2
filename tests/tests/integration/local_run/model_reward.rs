//! Reward of a reward model: `rljob-engine` serves the export of one job, and another job learns
//! from its scores, whatever the tokenizer of the reward model is.

use std::fs;
use std::path::Path;

use rljob_crds::names::{EXPORT_DIR, METRICS_FILE};
use rljob_protocol::metrics::StepMetrics;
use safetensors::SafeTensors;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::Value;

use super::served_model::ServedModel;
use super::{LocalRun, folder_with};

const JOBS: &str = include_str!("model_reward.yaml");

#[test]
fn a_policy_learns_from_the_scores_of_the_reward_model_of_an_earlier_job() {
    let port = ServedModel::free_port();
    let folder = folder_with(&JOBS.replace("PORT", &port.to_string()));
    let local = LocalRun::start(folder.path(), "runs");
    let runs = folder.path().join("runs/default");
    // The engine waits for the export.
    let judge = runs.join("judge").join(EXPORT_DIR);
    let _engine = ServedModel::start(port, &judge, &["--is-embedding"]);
    let (code, output) = local.end();
    assert_eq!(code, Some(0), "{output}");
    let lines = fs::read_to_string(runs.join("please").join(METRICS_FILE)).unwrap();
    let steps = lines.lines().map(|line| serde_json::from_str::<StepMetrics>(line).unwrap());
    let scores: Vec<f64> = steps.map(|step| step.scalars.get("reward/scored").unwrap()).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let [first, last] = [&scores[..3], &scores[9..]].map(mean);
    let range = scores.iter().fold(0.0_f64, |range, score| range.max((score - first).abs()));
    assert!(last > first + 0.5 * range, "{scores:?}");
}

/// Copies a model and swaps the ids of the digits 1 and 2 in its tokenizer and its embeddings.
fn with_swapped_digits(model: &Path, copy: &Path) {
    fs::create_dir(copy).unwrap();
    for entry in fs::read_dir(model).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    let path = copy.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let vocabulary = &mut tokenizer["model"]["vocab"];
    let ids = ["1", "2"].map(|digit| vocabulary[digit].as_u64().unwrap());
    (vocabulary["1"], vocabulary["2"]) = (ids[1].into(), ids[0].into());
    fs::write(&path, tokenizer.to_string()).unwrap();

    let path = copy.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let embeddings = tensors.tensor("model.embed_tokens.weight").unwrap();
    let mut swapped = embeddings.data().to_vec();
    let row = swapped.len() / embeddings.shape()[0];
    let [low, high] = ids.map(|id| id as usize * row);
    let (low, high) = (low.min(high), low.max(high));
    let (before, after) = swapped.split_at_mut(high);
    before[low..low + row].swap_with_slice(&mut after[..row]);
    let views = tensors.tensors().into_iter().map(|(name, view)| {
        let data = if name == "model.embed_tokens.weight" { &swapped } else { view.data() };
        let view = TensorView::new(view.dtype(), view.shape().to_vec(), data).unwrap();
        (name, view)
    });
    serialize_to_file(views, None, &path).unwrap();
}

#[test]
fn a_reward_model_with_another_tokenizer_than_the_policys_scores_the_same_texts() {
    let ports = [ServedModel::free_port(), ServedModel::free_port()];
    let (judge, please) = JOBS.split_once("---\n").unwrap();
    let folder = folder_with(judge);
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(0), "{output}");
    let model = folder.path().join("runs/default/judge").join(EXPORT_DIR);
    let other = folder.path().join("other");
    with_swapped_digits(&model, &other);
    let _engines = [(&model, ports[0]), (&other, ports[1])]
        .map(|(model, port)| ServedModel::start(port, model, &["--is-embedding"]));
    let scored = "    - name: scored\n      model: {url: \"http://127.0.0.1:PORT\"";
    let both = format!(
        "    - name: other\n      weight: 0\n      model: {{url: \"http://127.0.0.1:{}\", \
         text: \"{{{{prompt}}}}{{{{completion}}}}<eos>\"}}\n{scored}",
        ports[1]
    );
    let jobs = please.replace(scored, &both).replace("PORT", &ports[0].to_string());
    fs::write(folder.path().join("jobs.yaml"), jobs).unwrap();
    let steps = ["--set", "spec.training.steps=3"];
    let (code, output) = LocalRun::start_with(folder.path(), "scored", &steps).end();
    assert_eq!(code, Some(0), "{output}");
    let lines = folder.path().join("scored/default/please").join(METRICS_FILE);
    for line in fs::read_to_string(lines).unwrap().lines() {
        let step: StepMetrics = serde_json::from_str(line).unwrap();
        let [scored, other] = ["reward/scored", "reward/other"].map(|name| step.get(name).unwrap());
        assert!(scored != 0.0 && (scored - other).abs() <= 1e-6, "{scored}, {other}");
    }
}
