//! Fine-tuning compared with transformers and torch.optim.AdamW; skipped if they are not installed.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use rljob_protocol::metrics::LOSS;
use rljob_tests::files::{python, required, sglang};
use serde_json::json;

use super::fixture::{STEPS, Sample, batch, samples, spec, train, trainer};
use crate::ranks::Ranks;

/// PyTorch's loss of every step, and of one more before its update.
fn peer_losses(python: &Path, model: &Path) -> Vec<f64> {
    let sample = |sample: &Sample| json!({"tokens": sample.tokens, "mask": sample.mask});
    let step = |step| samples(step, 1, 1).iter().map(sample).collect::<Vec<_>>();
    let steps: Vec<_> = (1..=STEPS + 1).map(step).collect();
    let job = json!({
        "model": model, "learningRate": 1e-3, "weightDecay": 0.01, "clip": 1.0, "steps": steps,
    });
    let mut child = Command::new(python)
        .args(["-c", include_str!("../adamw_peer.py")])
        .env("OMP_NUM_THREADS", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(job.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn twenty_steps_of_fine_tuning_and_a_validation_have_the_losses_of_pytorch() {
    let Some(python) = required(python()) else { return };
    let Some(installation) = required(sglang()) else { return };
    let model = installation.join("models/tiny-llama");
    let mut trainer = trainer(spec(&json!({"sft": {}}), "Pretrained", 1), &model, Ranks::alone());
    let mut losses: Vec<f64> =
        train(&mut trainer, 1..=STEPS, 1).iter().filter_map(|step| step.get(LOSS)).collect();
    losses.push(trainer.validate(STEPS + 1, &batch(STEPS + 1, 1, 0, 1)).unwrap().loss);
    let expected = peer_losses(&python, &model);
    assert_eq!(expected.len(), losses.len());
    let worst = losses.iter().zip(&expected).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
    assert!(worst <= 1e-4, "{losses:?} is not {expected:?}");
    assert!(losses[STEPS as usize - 1] < losses[0], "{losses:?}");
    eprintln!(
        "loss {:.4} to {:.4}; largest relative difference from PyTorch {worst:.2e}",
        losses[0],
        losses[STEPS as usize - 1]
    );
}
