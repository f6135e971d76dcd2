//! Steps of GSPO, CISPO, REINFORCE++ and PPO compared with an implementation in PyTorch, from the
//! samples to the weights; skipped if transformers is not installed.
//!
//! After several updates beyond the bounds of ratios and values, the first moment of AdamW is the
//! mean of all their gradients.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use rljob_crds::algorithm::ModelRole;
use rljob_protocol::metrics;
use rljob_tests::files::{python, required};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::fixture::{Sample, samples, small_model, spec, train, trainer};
use crate::model::{Model, ModelConfig, hugging_face, random};
use crate::models::TrainedModel;
use crate::ranks::Ranks;
use crate::trainer::Trainer;

const STEPS: u32 = 2;
const EPOCHS: u32 = 2;
const MINIBATCHES: u32 = 2;
const LEARNING_RATE: f64 = 5e-4;
/// Of losses, norms and gradients.
const TOLERANCE: f64 = 1e-4;
/// AdamW divides a moment by its size: an element whose gradient is the error of rounding moves as
/// far as any other.
const TOLERANCE_OF_CHANGES: f64 = 1e-3;

/// Writes a model with random weights, norms and biases.
fn model(folder: &Path) {
    let source = small_model();
    let config = ModelConfig::from_folder(source.path()).unwrap();
    let model = Model::new(config);
    let wave = |block: &Tensor| {
        let numel = block.numel() as i64;
        block + (Tensor::arange(numel, (Kind::Float, Device::Cpu)) * 0.37).sin() * 0.1
    };
    let blocks = random::random(model.layout(), model.config(), 3).unwrap();
    let blocks: Vec<Tensor> = blocks.iter().map(wave).collect();
    hugging_face::write_folder(folder, source.path(), model.layout(), &blocks, Kind::Float)
        .unwrap();
}

/// Losses, moments and changes of weights by PyTorch.
fn peer(python: &Path, model: &Path, algorithm: &str, clip: [f64; 2]) -> HashMap<String, Tensor> {
    let sample = |sample: &Sample| {
        json!({
            "tokens": sample.tokens, "mask": sample.mask, "group": sample.row.group,
            "reward": sample.row.reward, "minibatch": sample.row.minibatch,
            "bootstraps": sample.row.truncated,
        })
    };
    let step = |step| samples(step, MINIBATCHES, 1).iter().map(sample).collect::<Vec<_>>();
    let case = json!({
        "model": model, "algorithm": algorithm, "temperature": 0.7, "clip": clip,
        "klCoefficient": 0.1, "discount": 0.99, "lambda": 0.95, "valueClip": 0.05,
        "learningRate": LEARNING_RATE, "weightDecay": 0.01, "gradientClipping": 1.0,
        "epochs": EPOCHS, "steps": (1..=STEPS).map(step).collect::<Vec<_>>(),
    });
    let (input, output) = (model.join("case.json"), model.join("peer.safetensors"));
    std::fs::write(&input, case.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/step/policy_peer.py");
    let ran = Command::new(python)
        .arg(script)
        .args([&input, &output])
        .env("OMP_NUM_THREADS", "1")
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Tensor::read_safetensors(output).unwrap().into_iter().collect()
}

/// Flat fp32 weights of a model, by block.
fn masters(trained: &TrainedModel) -> Vec<Tensor> {
    trained.parameters.shards().iter().map(|shard| shard.master.copy()).collect()
}

/// Norm of the difference relative to that of the expected value.
fn relative(found: &Tensor, expected: &Tensor) -> f64 {
    let norm = |tensor: Tensor| tensor.to_kind(Kind::Double).norm().double_value(&[]);
    let [found, expected] = [found, expected].map(|tensor| tensor.to_kind(Kind::Double).view([-1]));
    norm(found - &expected) / norm(expected).max(1e-12)
}

/// The largest relative difference of moments and of changes of weights of a model.
fn compare_model(
    role: &str,
    (trained, before): (&TrainedModel, &[Tensor]),
    expected: &HashMap<String, Tensor>,
) -> [f64; 2] {
    let moments = trained.optimizer.moments().iter().map(|[first, _]| first.copy()).collect();
    let changes =
        masters(trained).iter().zip(before).map(|(after, before)| after - before).collect();
    let of = |kind: &str, blocks: Vec<Tensor>| {
        let named = hugging_face::named_tensors(trained.model.layout(), &blocks);
        assert!(!named.is_empty());
        let difference = |(name, found): &(String, Tensor)| {
            relative(found, &expected[&format!("{role}.{kind}.{name}")])
        };
        named.iter().map(difference).fold(0.0, f64::max)
    };
    [of("moment", moments), of("change", changes)]
}

/// Gives the critic's head the values of the peer's, so that all its weights have gradients.
fn set_head(trainer: &mut Trainer) {
    let Some(critic) = trainer.models.trained_mut(ModelRole::Critic) else { return };
    let hidden = critic.model.config().hidden_size;
    let wave = (Tensor::arange(hidden, (Kind::Float, Device::Cpu)) * 0.61).sin();
    let last = &critic.parameters.shards().last().unwrap().master;
    last.narrow(0, hidden, hidden).copy_(&wave);
}

/// Compares two steps of four updates each, whose ratios pass the bounds.
fn compare(name: &str, clip: [f64; 2], algorithm: &Value) {
    let Some(python) = required(python()) else { return };
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    let mut spec = spec(algorithm, "Pretrained", MINIBATCHES);
    spec.optimizer.learning_rate = LEARNING_RATE;
    spec.rollout.max_staleness = 0;
    let mut trainer = trainer(spec, folder.path(), Ranks::alone());
    set_head(&mut trainer);
    let before: Vec<Vec<Tensor>> =
        trainer.models.trained().map(|(_, trained)| masters(trained)).collect();
    let steps = train(&mut trainer, 1..=STEPS, MINIBATCHES);

    let expected = peer(&python, folder.path(), name, clip);
    let has_critic = before.len() == 2;
    assert!(expected["clipped"].int64_value(&[0]) > 0);
    assert_eq!(expected["clipped"].int64_value(&[1]) > 0, has_critic);
    let metric = |name: &str| {
        Tensor::from_slice(&steps.iter().map(|step| step.get(name).unwrap()).collect::<Vec<_>>())
    };
    let mut losses = vec![
        relative(&metric(metrics::LOSS), &expected["losses"]),
        relative(&metric(metrics::GRADIENT_NORM), &expected["norms"].select(1, 0)),
    ];
    if has_critic {
        let norms = expected["norms"].select(1, 1);
        losses.push(relative(&metric(metrics::VALUE_LOSS), &expected["value_losses"]));
        losses.push(relative(&metric(metrics::CRITIC_GRADIENT_NORM), &norms));
    }
    let of_models = trainer.models.trained().zip(&before).map(|((role, trained), before)| {
        let role = if role == ModelRole::Critic { "critic" } else { "policy" };
        compare_model(role, (trained, before), &expected)
    });
    let of_models: Vec<[f64; 2]> = of_models.collect();
    let worst = |index: usize| of_models.iter().map(|model| model[index]).fold(0.0, f64::max);
    let found = [losses.into_iter().fold(0.0, f64::max), worst(0), worst(1)];
    eprintln!(
        "{name}: losses and norms within {:.1e}, gradients {:.1e}, changes of weights {:.1e}",
        found[0], found[1], found[2]
    );
    let bounds = [TOLERANCE, TOLERANCE, TOLERANCE_OF_CHANGES];
    let is_close = found.iter().zip(bounds).all(|(found, bound)| *found <= bound);
    assert!(is_close, "{name}: {found:?}");
}

#[test]
fn steps_of_gspo_have_the_losses_and_gradients_of_pytorch() {
    let algorithm = json!({"grpo": {
        "ratioLevel": "Sequence", "lossAggregation": "Sequence", "epochs": EPOCHS,
        "clipLow": 0.02, "clipHigh": 0.5,
    }});
    compare("GSPO", [0.02, 0.5], &algorithm);
}

#[test]
fn steps_of_cispo_have_the_losses_and_gradients_of_pytorch() {
    let algorithm = json!({"grpo": {
        "surrogate": "CISPO", "epochs": EPOCHS, "clipLow": 0.02, "clipHigh": 0.03,
    }});
    compare("CISPO", [0.02, 0.03], &algorithm);
}

#[test]
fn steps_of_reinforce_plus_plus_have_the_losses_and_gradients_of_pytorch() {
    let algorithm = json!({"grpo": {
        "groupSize": 1, "rewardNormalization": {"mean": "None", "scale": "None"},
        "advantageNormalization": {"mean": "Batch", "scaleLevel": "Batch"},
        "klCoefficient": 0.1, "epochs": EPOCHS, "clipLow": 0.02, "clipHigh": 0.03,
    }});
    compare("REINFORCE++", [0.02, 0.03], &algorithm);
}

#[test]
fn steps_of_ppo_have_the_losses_and_gradients_of_pytorch() {
    let algorithm = json!({"ppo": {
        "discount": 0.99, "gaeLambda": 0.95, "valueClip": 0.05, "klCoefficient": 0.1,
        "epochs": EPOCHS, "clipLow": 0.02, "clipHigh": 0.03,
    }});
    compare("PPO", [0.02, 0.03], &algorithm);
}
