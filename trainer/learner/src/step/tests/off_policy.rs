//! Off-policy distillation: a policy learns the distribution of a teacher in a folder, on several
//! ranks and after a restart; its calls are those of its plan.

use std::fs;
use std::path::{Path, PathBuf};

use rljob_crds::RLJobSpec;
use rljob_crds::dataflow::{Phase, plan};
use rljob_crds::lora::LoraSpec;
use rljob_protocol::metrics;
use serde_json::json;

use super::fixture::{assert_ranks_agree, batch, small_model, spec, train, trainer, weights};
use super::resume::assert_equal_after_a_restart;
use crate::publish::{Staged, disk};
use crate::ranks::Ranks;

/// A folder with the policy's configuration and tokenizer, and a teacher with other weights: those
/// of a policy after some steps of SFT at a high rate.
fn with_teacher() -> (tempfile::TempDir, PathBuf) {
    let folder = small_model();
    let tokens = json!({"model": {"vocab": {"a": 0, "b": 1}}});
    fs::write(folder.path().join("tokenizer.json"), tokens.to_string()).unwrap();
    let mut sft = spec(&json!({"sft": {}}), "Random", 1);
    (sft.optimizer.learning_rate, sft.training.seed) = (1e-2, 5);
    let mut taught = trainer(sft, folder.path(), Ranks::alone());
    train(&mut taught, 1..=20, 1);
    let policy = &mut taught.models.policy;
    let staged = Staged::gather(&mut policy.parameters, policy.model.layout(), true).unwrap();
    let teacher = folder.path().join("teacher");
    disk::write_weights(&teacher, folder.path(), &staged.unwrap()).unwrap();
    fs::copy(folder.path().join("tokenizer.json"), teacher.join("tokenizer.json")).unwrap();
    (folder, teacher)
}

fn distillation(teacher: &Path, top_k: u32, minibatches: u32) -> RLJobSpec {
    let off_policy = json!({"topK": top_k, "temperature": 1.5, "batchSize": 6});
    let algorithm =
        json!({"distillation": {"teacher": {"path": teacher}, "offPolicy": off_policy}});
    let mut spec = spec(&algorithm, "Random", minibatches);
    spec.optimizer.learning_rate = 5e-3;
    spec
}

#[test]
fn the_policy_learns_the_probabilities_of_the_teachers_tokens() {
    let (folder, teacher) = with_teacher();
    let mut trainer = trainer(distillation(&teacher, 8, 1), folder.path(), Ranks::alone());
    let steps = train(&mut trainer, 1..=20, 1);
    let of = |index: usize, name: &str| steps[index].get(name).unwrap();
    let [first, last] = [0, 19].map(|step| of(step, metrics::TEACHER_KL));
    assert!(first > 0.01 && last < 0.5 * first, "{first}, then {last}");
    let mass = of(0, metrics::TEACHER_MASS);
    assert!(mass > 8.0 / 97.0 && mass < 1.0, "{mass}");
    // T² = 2.25; the loss is the mean over the tokens of the step.
    let (loss, kl) = (of(0, metrics::LOSS), of(0, metrics::TEACHER_KL));
    assert!((loss - 2.25 * kl).abs() < 1e-5 * loss, "{loss} and {kl}");
    assert_eq!(steps[0].get(metrics::REFERENCE_KL), None);
}

#[test]
fn adapters_have_the_first_step_of_all_weights_and_learn_from_the_teacher() {
    let (folder, teacher) = with_teacher();
    let on_policy = json!({"distillation": {"teacher": {"path": teacher}}});
    for all in [distillation(&teacher, 8, 1), spec(&on_policy, "Random", 1)] {
        let lora = Some(LoraSpec { rank: 4, alpha: 8.0, ..LoraSpec::default() });
        let adapters = RLJobSpec { lora, ..all.clone() };
        let first = |spec| {
            let step = train(&mut trainer(spec, folder.path(), Ranks::alone()), 1..=1, 1).remove(0);
            let names = [metrics::LOSS, metrics::TEACHER_KL, metrics::REFERENCE_KL];
            names.map(|name| step.get(name).map(f64::to_bits))
        };
        assert_eq!(first(adapters), first(all));
    }
    let lora = Some(LoraSpec { rank: 4, alpha: 8.0, ..LoraSpec::default() });
    let mut adapters = RLJobSpec { lora, ..distillation(&teacher, 8, 1) };
    adapters.optimizer.learning_rate = 2e-2;
    let steps = train(&mut trainer(adapters, folder.path(), Ranks::alone()), 1..=20, 1);
    let [first, last] = [0, 19].map(|step| steps[step].get(metrics::TEACHER_KL).unwrap());
    // Most of the difference is in the embedding, which has no adapter.
    assert!(last < 0.97 * first, "{first}, then {last}");
}

#[test]
fn more_tokens_than_the_vocabulary_has_are_all_of_them() {
    let (folder, teacher) = with_teacher();
    let mut trainer = trainer(distillation(&teacher, 200, 1), folder.path(), Ranks::alone());
    let step = train(&mut trainer, 1..=1, 1).remove(0);
    let mass = step.get(metrics::TEACHER_MASS).unwrap();
    assert!((mass - 1.0).abs() < 1e-5, "{mass}");
}

#[test]
fn two_ranks_have_the_metrics_of_one_and_repeat_bit_for_bit() {
    let (folder, teacher) = with_teacher();
    for minibatches in [1, 2] {
        assert_ranks_agree(|ranks| {
            let spec = distillation(&teacher, 8, minibatches);
            let mut trainer = trainer(spec, folder.path(), ranks);
            let steps = train(&mut trainer, 1..=4, minibatches);
            (steps, weights(&trainer))
        });
    }
}

#[test]
fn a_restored_run_has_the_bits_of_an_uninterrupted_one() {
    let (folder, teacher) = with_teacher();
    let mut spec = distillation(&teacher, 8, 2);
    spec.training.deterministic = true;
    assert_equal_after_a_restart(&spec, folder.path(), 0, train, |_| ());
}

#[test]
fn a_step_makes_the_calls_of_its_plan_and_a_validation_has_its_loss() {
    let (folder, teacher) = with_teacher();
    let spec = distillation(&teacher, 8, 1);
    let plan = plan(&spec).unwrap();
    let training = plan.calls().filter(|call| call.phase == Phase::Training);
    let planned: Vec<&str> = training.map(|call| call.seconds.unwrap()).collect();
    assert_eq!(planned, ["referenceSeconds", "advantageSeconds", "policySeconds"]);
    let mut trainer = trainer(spec, folder.path(), Ranks::alone());
    let before = trainer.validate(1, &batch(1, 1, 0, 1)).unwrap();
    let step = trainer.step(1, &batch(1, 1, 0, 1)).unwrap();
    let calls: Vec<&str> = trainer.calls.0.iter().map(|(call, _)| call.seconds()).collect();
    assert_eq!(calls, planned);
    let loss = step.get(metrics::LOSS).unwrap();
    assert!((before.loss - loss).abs() < 1e-6 * loss, "{} and {loss}", before.loss);
    assert!(before.is_divergence);
}
