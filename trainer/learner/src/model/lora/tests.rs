//! Shapes, initial values, merged weights and gradients of adapters.

use rljob_crds::lora::{LoraSpec, LoraTarget};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::{Lora, TrainedPart};
use crate::model::{Gradient, Head, Model, ModelConfig, random};

/// A Qwen2 of two layers: q has a bias, keys are narrower than queries.
fn model() -> Model {
    let folder = tempfile::tempdir().unwrap();
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "vocab_size": 11, "hidden_size": 8,
        "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "max_position_embeddings": 64, "eos_token_id": 2,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    Model::new(ModelConfig::from_folder(folder.path()).unwrap())
}

fn lora(targets: &[LoraTarget]) -> Lora {
    Lora::new(&model(), &LoraSpec { rank: 3, alpha: 6.0, dropout: 0.0, targets: targets.to_vec() })
}

/// Flat weights of the second layer.
fn layer() -> Tensor {
    let model = model();
    random::random(model.layout(), model.config(), 5).unwrap().remove(2)
}

/// Adapters of a layer with values everywhere.
fn adapters(lora: &Lora) -> Tensor {
    let numel = lora.layout().blocks()[1].numel();
    (Tensor::arange(numel, (Kind::Float, Device::Cpu)) * 0.7).sin() * 0.1
}

#[test]
fn trained_blocks_have_the_names_and_shapes_of_peft() {
    let lora = lora(&[LoraTarget::KProj, LoraTarget::DownProj]);
    let tensors = lora.layout().blocks()[1].tensors().iter();
    let found: Vec<_> = tensors.map(|spec| (spec.name.as_str(), spec.shape.as_slice())).collect();
    let expected: [(&str, &[i64]); 4] = [
        ("base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight", &[3, 8]),
        ("base_model.model.model.layers.1.self_attn.k_proj.lora_B.weight", &[4, 3]),
        ("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", &[3, 12]),
        ("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", &[8, 3]),
    ];
    assert_eq!(found, expected);
    let parts = [0, 1, 2, 3, 4].map(|block| lora.trained(block));
    let [nothing, first, second] =
        [TrainedPart::Nothing, TrainedPart::Adapters(0), TrainedPart::Adapters(1)];
    assert_eq!(parts, [nothing, first, second, nothing, nothing]);
}

#[test]
fn the_last_block_of_a_model_with_a_scalar_head_is_trained_whole() {
    let critic = model().with_head(Head::Scalar);
    let lora = Lora::new(&critic, &LoraSpec::default());
    assert_eq!((lora.trained(3), lora.whole().is_some()), (TrainedPart::Whole(2), true));
    assert_eq!(lora.layout().blocks()[2], critic.layout().blocks()[3]);
}

#[test]
fn new_adapters_are_those_of_peft_and_change_no_bit_of_the_weights() {
    let lora = lora(&LoraTarget::ALL);
    let initial: Vec<Tensor> = lora.initial(7).collect::<Result<_, _>>().unwrap();
    assert_eq!(lora.merged(1, &layer(), &initial[1]).unwrap(), layer());
    let views = lora.layout().blocks()[1].views(&initial[1]);
    for pair in views.chunks(2) {
        let bound = 1.0 / (pair[0].size()[1] as f64).sqrt();
        let [low, high] = [pair[0].min(), pair[0].max()].map(|value| value.double_value(&[]));
        assert!(-bound <= low && low < -0.5 * bound && 0.5 * bound < high && high <= bound);
        assert_eq!(pair[1], pair[1].zeros_like());
    }
    let again: Vec<Tensor> = lora.initial(7).collect::<Result<_, _>>().unwrap();
    assert_eq!(again, initial);
    assert_ne!(lora.initial(8).next().unwrap().unwrap(), initial[0]);
    assert_ne!(initial[0], initial[1]);
}

#[test]
fn gradients_are_those_of_autograd_and_are_written_or_added() {
    let lora = lora(&[LoraTarget::VProj, LoraTarget::OProj, LoraTarget::GateProj]);
    let of_weights = (layer() * 50.0).cos();
    let adapters = adapters(&lora);
    let leaf = adapters.copy().set_requires_grad(true);
    let mut expected = layer();
    // Views of the model's layout: v is the 4th tensor, o the 8th, gate the 10th.
    let layout = model().layout().blocks()[2].clone();
    let views = lora.layout().blocks()[1].views(&leaf);
    let mut product = Tensor::zeros([], (Kind::Float, Device::Cpu));
    for (target, pair) in [3, 7, 9].into_iter().zip(views.chunks(2)) {
        let delta = pair[1].mm(&pair[0]) * 2.0;
        product += (&delta * &layout.views(&of_weights)[target]).sum(Kind::Float);
        let _ = layout.views(&expected)[target].f_add_(&delta.detach()).unwrap();
    }
    product.backward();
    let merged = lora.merged(1, &layer(), &adapters).unwrap();
    assert!(merged.allclose(&expected, 1e-6, 1e-7, false));
    let rounded = lora.merged(1, &layer().to_kind(Kind::BFloat16), &adapters).unwrap();
    expected = lora
        .merged(1, &layer().to_kind(Kind::BFloat16).to_kind(Kind::Float), &adapters)
        .unwrap()
        .to_kind(Kind::BFloat16);
    assert_eq!(rounded, expected, "rounded once");
    let mut out = Gradient::uninitialized(adapters.numel() as i64, Device::Cpu).unwrap();
    for times in [1.0, 2.0] {
        lora.write_gradient(1, &of_weights, &adapters, &out).unwrap();
        assert!(out.flat.allclose(&(leaf.grad() * times), 1e-5, 1e-6, false), "{times}");
        out.has_values = true;
    }
}
