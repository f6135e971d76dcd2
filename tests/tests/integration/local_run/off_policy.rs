//! Off-policy distillation: a run without engines approaches the distribution of its teacher.

use std::fs;

use rljob_crds::names::METRICS_FILE;
use rljob_protocol::metrics::{PERPLEXITY, StepMetrics, TEACHER_KL, TEACHER_MASS};

use super::{LocalRun, evaluations, folder_with};

#[test]
fn a_policy_learns_the_distribution_of_a_teacher_from_given_completions() {
    let folder = folder_with(include_str!("off_policy.yaml"));
    let (code, output) = LocalRun::start(folder.path(), "runs").end();
    assert_eq!(code, Some(0), "{output}");
    let run = folder.path().join("runs/default/learn");
    let lines = fs::read_to_string(run.join(METRICS_FILE)).unwrap();
    let steps: Vec<StepMetrics> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(steps.len(), 40);
    let mean = |name: &str, steps: &[StepMetrics]| {
        steps.iter().map(|step| step.get(name).unwrap()).sum::<f64>() / steps.len() as f64
    };
    let [first, last] = [&steps[..4], &steps[36..]].map(|steps| mean(TEACHER_KL, steps));
    assert!(last < 0.5 * first, "the divergence from the teacher: {first}, then {last}");
    let mass = mean(TEACHER_MASS, &steps);
    assert!(mass > 0.3 && mass <= 1.0, "{mass}");
    let evaluations = evaluations(&run);
    let losses: Vec<f64> = evaluations.iter().map(|evaluation| evaluation.loss.unwrap()).collect();
    assert!(evaluations.iter().all(|own| own.scalars.get(PERPLEXITY).is_none()));
    assert_eq!(losses.len(), 3);
    assert!(losses[2] < 0.5 * losses[0], "held-out completions: {losses:?}");
}
