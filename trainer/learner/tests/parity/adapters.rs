//! Comparison of adapters with those of PyTorch: the low-rank path of a linear layer,
//! differentiated by autograd.

use std::path::Path;

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::Sharding;
use rljob_learner::fsdp::{AdaptedParameters, Base, TrainedParameters};
use rljob_learner::model::lora::Lora;
use rljob_learner::model::{Model, hugging_face};
use rljob_learner::publish::adapters::{AdapterConfig, StagedAdapters};
use rljob_learner::ranks::Ranks;
use serde_json::json;
use tch::{Kind, Tensor};

use crate::comparison::{Compared, compare};

impl Compared for TrainedParameters {
    fn zero_gradients(&mut self) {
        self.trained_mut().end_update().unwrap();
    }

    fn named_gradients(&self, _: &Model) -> Vec<(String, Tensor)> {
        let Self::Adapters(adapted) = self else { return Vec::new() };
        let gradients: Vec<Tensor> =
            self.shards().iter().map(|shard| shard.gradient.shallow_clone()).collect();
        hugging_face::named_tensors(adapted.lora().layout(), &gradients)
    }
}

/// Compares logits, log-probabilities, losses and gradients of adapters of the model in `folder`,
/// which PyTorch reads in PEFT's format, with dropout of their inputs, if a probability is given;
/// returns the differences of [`crate::comparison::compare_model`].
pub fn compare_adapters(python: &Path, folder: &Path, dropout: Option<f64>) -> [f64; 3] {
    let adapter = folder.join("adapter");
    compare(python, folder, (Some(&adapter), dropout), |model, blocks| {
        let (parameters, staged) = adapted(model, folder, blocks, dropout.unwrap_or_default());
        staged.write(&adapter).unwrap();
        parameters
    })
}

/// Adapters with values everywhere over the weights of the model in `folder`, and the block that is
/// trained whole with a scalar head, with their export.
pub fn adapted(
    model: &Model,
    folder: &Path,
    blocks: Vec<Tensor>,
    dropout: f64,
) -> (TrainedParameters, StagedAdapters) {
    let last = blocks.last().map(Tensor::copy).map(Ok);
    let spec: RLJobSpec = serde_json::from_value(json!({
        "model": {"path": folder},
        "storage": {"hostPath": {"path": "/runs"}},
        "dataset": {"train": {"path": "/train.jsonl", "prompt": "{{q}}"}},
        "algorithm": {"sft": {}}, "training": {"steps": 1},
        "lora": {"rank": 5, "alpha": 8, "dropout": dropout},
    }))
    .unwrap();
    let lora = Lora::new(model, spec.lora.as_ref().unwrap());
    let base = Base::new(Ranks::alone(), Kind::Float, blocks.into_iter().map(Ok)).unwrap();
    let wave = |block: Tensor| {
        let numel = block.numel() as i64;
        block + (Tensor::arange(numel, (Kind::Float, tch::Device::Cpu)) * 0.37).sin() * 0.1
    };
    let whole = lora.whole().and(last);
    let masters = lora.initial(3).chain(whole).map(|block| wave(block.unwrap())).collect();
    let adapted =
        AdaptedParameters::new(Ranks::alone(), Sharding::Full, (lora, base), masters).unwrap();
    let mut parameters = TrainedParameters::Adapters(Box::new(adapted));
    let config = AdapterConfig::of(&spec, folder);
    let staged = StagedAdapters::gather(&mut parameters, config, true).unwrap().unwrap();
    (parameters, staged)
}
