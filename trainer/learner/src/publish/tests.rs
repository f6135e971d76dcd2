//! Published folders and exports; broadcasts are tested in their module.

use std::path::Path;
use std::rc::Rc;

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Sharding;
use rljob_protocol::version::Version;
use tch::{Kind, Tensor};

use super::adapters::{AdapterConfig, StagedAdapters};
use super::{PublishError, Staged, disk};
use crate::fsdp::{
    AdaptedParameters, Base, Passes, ShardedParameters, TrainedParameters, shard_of,
};
use crate::model::lora::Lora;
use crate::model::{Model, ModelConfig, ModelLayout, hugging_face, random};
use crate::ranks::Ranks;

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 11, "hidden_size": 4,
    "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64, "rope_theta": 10000.0, "eos_token_id": 2}"#;

pub fn source() -> (tempfile::TempDir, ModelLayout, Vec<Tensor>) {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [
        ("config.json", CONFIG),
        ("tokenizer.json", "{}"),
        ("chat_template.jinja", "x"),
        ("README.md", "no"),
    ] {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    let config = ModelConfig::from_folder(folder.path()).unwrap();
    let layout = ModelLayout::new(&config);
    let blocks = random::random(&layout, &config, 7).unwrap();
    (folder, layout, blocks)
}

pub fn staged(layout: &ModelLayout, blocks: &[Tensor], compute: Kind) -> Staged {
    let numels: Vec<i64> = layout.blocks().iter().map(crate::model::Layout::numel).collect();
    let masters = blocks.iter().map(|block| shard_of(block, 0, 1)).collect();
    let parameters =
        ShardedParameters::new(Ranks::alone(), Passes::full(compute), &numels, masters).unwrap();
    let mut parameters = TrainedParameters::All(Box::new(parameters));
    Staged::gather(&mut parameters, layout, true).unwrap().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn an_export_has_the_tokenizer_and_a_marker_with_its_version() {
    let (source, layout, blocks) = source();
    let path = source.path().join("export");
    for step in [1, 2] {
        disk::write_export(
            &path,
            source.path(),
            &staged(&layout, &blocks, Kind::Float),
            Version { step, attempt: 0 },
            || Ok(()),
        )
        .unwrap();
    }
    assert_eq!(
        names(&path),
        [
            "chat_template.jinja",
            "complete.json",
            "config.json",
            "model.safetensors",
            "tokenizer.json"
        ]
    );
    let complete: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path.join("complete.json")).unwrap()).unwrap();
    assert_eq!(complete, serde_json::json!({"version": "step-2.attempt-0"}));
    assert_eq!(hugging_face::read_tensors(&path, &layout, Kind::Float).unwrap(), blocks);
}

#[test]
fn an_export_of_adapters_has_the_merged_model_and_the_folder_of_peft() {
    let (source, layout, blocks) = source();
    let spec: RLJobSpec = serde_json::from_value(serde_json::json!({
        "model": {"huggingFace": {"repo": "a/b", "revision": "c"}},
        "storage": {"hostPath": {"path": "/runs"}},
        "dataset": {"train": {"path": "/train.jsonl", "prompt": "{{q}}"}},
        "algorithm": {"sft": {}}, "training": {"steps": 1},
        "lora": {"rank": 2, "alpha": 3.0, "targets": ["QProj", "UpProj"]},
    }))
    .unwrap();
    let model = Model::new(ModelConfig::from_folder(source.path()).unwrap());
    let lora = Lora::new(&model, spec.lora.as_ref().unwrap());
    let base = Base::new(Ranks::alone(), Kind::BFloat16, blocks.iter().map(|b| Ok(b.copy())));
    let wave = |block: Result<Tensor, _>| block.unwrap() + 0.01;
    let masters: Vec<Tensor> = lora.initial(1).map(wave).collect();
    let expected = lora.merged(0, &blocks[1].to_kind(Kind::BFloat16), &masters[0]).unwrap();
    let adapted = AdaptedParameters::new(
        Ranks::alone(),
        Sharding::Full,
        (lora, base.unwrap()),
        masters.iter().map(Tensor::copy).collect(),
    )
    .unwrap();
    let mut parameters = TrainedParameters::Adapters(Box::new(adapted));
    let config = AdapterConfig::of(&spec, Path::new("/models/a"));
    let adapters = StagedAdapters::gather(&mut parameters, config, true).unwrap();
    let staged = Staged::gather(&mut parameters, &layout, true).unwrap().unwrap();
    let (path, version) = (source.path().join("export"), Version { step: 1, attempt: 0 });
    let staged = staged.with_adapters(adapters);
    disk::write_export(&path, source.path(), &staged, version, || Ok(())).unwrap();
    let read = hugging_face::read_tensors(&path, &layout, Kind::BFloat16).unwrap();
    assert_eq!(read[1], expected);
    let adapter = path.join("adapter");
    assert_eq!(names(&adapter), ["adapter_config.json", "adapter_model.safetensors"]);
    let config = std::fs::read(adapter.join("adapter_config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(
        config,
        serde_json::json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "a/b",
            "revision": "c", "r": 2, "lora_alpha": 3, "lora_dropout": 0.0,
            "target_modules": ["q_proj", "up_proj"], "bias": "none", "fan_in_fan_out": false,
            "inference_mode": true, "init_lora_weights": true, "use_dora": false,
            "use_rslora": false,
        })
    );
    let mut tensors = Tensor::read_safetensors(adapter.join("adapter_model.safetensors")).unwrap();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let shapes: Vec<_> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.size())).collect();
    let name = "base_model.model.model.layers.0";
    assert_eq!(
        shapes,
        [
            (format!("{name}.mlp.up_proj.lora_A.weight").as_str(), vec![2, 4]),
            (format!("{name}.mlp.up_proj.lora_B.weight").as_str(), vec![6, 2]),
            (format!("{name}.self_attn.q_proj.lora_A.weight").as_str(), vec![2, 4]),
            (format!("{name}.self_attn.q_proj.lora_B.weight").as_str(), vec![4, 2]),
        ]
    );
    assert_eq!(tensors[2].1.reshape([-1]), masters[0].narrow(0, 0, 8));
}

#[test]
fn published_weights_have_the_compute_type_and_are_never_replaced() {
    let (source, layout, blocks) = source();
    let path = source.path().join("weights/step-1.attempt-0");
    disk::write_weights(&path, source.path(), &staged(&layout, &blocks, Kind::BFloat16)).unwrap();
    let rounded: Vec<Tensor> = blocks.iter().map(|block| block.to_kind(Kind::BFloat16)).collect();
    assert_eq!(hugging_face::read_tensors(&path, &layout, Kind::BFloat16).unwrap(), rounded);
    let doubled: Vec<Tensor> = blocks.iter().map(|block| block * 2.0).collect();
    disk::write_weights(&path, source.path(), &staged(&layout, &doubled, Kind::BFloat16)).unwrap();
    assert_eq!(hugging_face::read_tensors(&path, &layout, Kind::BFloat16).unwrap(), rounded);
}

#[test]
fn training_does_not_change_a_staged_copy() {
    let (_source, layout, blocks) = source();
    let numels: Vec<i64> = layout.blocks().iter().map(crate::model::Layout::numel).collect();
    let masters = blocks.iter().map(|block| shard_of(block, 0, 1)).collect();
    let parameters = ShardedParameters::new(
        Rc::clone(&Ranks::alone()),
        Passes::full(Kind::Float),
        &numels,
        masters,
    )
    .unwrap();
    let mut parameters = TrainedParameters::All(Box::new(parameters));
    let staged = Staged::gather(&mut parameters, &layout, true).unwrap().unwrap();
    let _ = parameters.shards()[0].master.shallow_clone().zero_();
    assert_eq!(staged.tensors()[0].1, blocks[0].view([11, 4]));
    let infos: Vec<_> =
        staged.infos().into_iter().map(|info| (info.name, info.dtype, info.shape)).collect();
    assert_eq!(
        infos[0],
        ("model.embed_tokens.weight".to_owned(), "float32".to_owned(), vec![11, 4])
    );
    assert!(Staged::gather(&mut parameters, &layout, false).unwrap().is_none());
}

#[test]
fn the_marker_of_a_replaced_export_is_removed_first() {
    let (source, layout, blocks) = source();
    let path = source.path().join("exports/step-3");
    let export = |attempt| {
        disk::write_export(
            &path,
            source.path(),
            &staged(&layout, &blocks, Kind::Float),
            Version { step: 3, attempt },
            || Ok(()),
        )
    };
    export(0).unwrap();
    // A folder in place of the marker makes the replacement fail at its first step.
    std::fs::remove_file(path.join("complete.json")).unwrap();
    std::fs::create_dir(path.join("complete.json")).unwrap();
    assert!(export(1).is_err());
    assert_eq!(
        names(&path),
        [
            "chat_template.jinja",
            "complete.json",
            "config.json",
            "model.safetensors",
            "tokenizer.json"
        ],
        "other files remain"
    );
    std::fs::remove_dir(path.join("complete.json")).unwrap();
    export(1).unwrap();
    assert_eq!(names(&path).len(), 5);
    assert_eq!(names(path.parent().unwrap()), ["step-3"], "temporary folders are removed");
}

#[test]
fn an_export_of_a_superseded_attempt_does_not_replace_a_newer_one() {
    let (source, layout, blocks) = source();
    let path = source.path().join("export");
    let export = |attempt, confirm: fn() -> Result<(), PublishError>| {
        disk::write_export(
            &path,
            source.path(),
            &staged(&layout, &blocks, Kind::Float),
            Version { step: 3, attempt },
            confirm,
        )
    };
    export(1, || Ok(())).unwrap();
    assert!(export(0, || Err(PublishError::Broadcast("replaced".to_owned()))).is_err());
    let complete = std::fs::read_to_string(path.join("complete.json")).unwrap();
    assert!(complete.contains("step-3.attempt-1"), "{complete}");
}
