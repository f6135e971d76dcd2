//! Served teacher: kills, also of engines of the job that serve it, do not change the
//! log-probabilities that a run learns.

use std::fs;

use super::{Victim, with_and_without_kills};
use crate::local_run::baseline;
use crate::local_run::served_model::ServedModel;

#[test]
fn kills_do_not_change_what_is_learned_from_a_served_teacher() {
    let port = ServedModel::free_port();
    let teacher = baseline().folder.join("baseline/default/practise/export");
    let _teacher = ServedModel::start(port, &teacher, &[]);
    let algorithm = format!(
        "practise:spec.algorithm={{distillation: {{groupSize: 4, teacher: \
         {{server: {{url: \"http://127.0.0.1:{port}\"}}}}}}}}"
    );
    let kills = [(2, Victim::Coordinator), (4, Victim::Learner(1)), (7, Victim::Coordinator)];
    let (_, steps) = with_and_without_kills("teacher", &[algorithm.as_str()], &kills);
    let divergence = steps[0]["referenceKl"].as_f64().unwrap();
    assert!(divergence > 1e-3, "the teacher is another model: {divergence}");
}

#[test]
fn kills_of_engines_of_the_teacher_do_not_change_the_result() {
    let teacher = baseline().folder.join("baseline/default/practise/export");
    let algorithm = format!(
        "practise:spec.algorithm={{distillation: {{groupSize: 4, teacher: {{path: {}, \
         engines: {{replicas: 2}}}}}}}}",
        teacher.display()
    );
    // First one engine, then both: the run waits.
    let kills = [
        (2, Victim::TeacherEngine(0)),
        (5, Victim::TeacherEngine(0)),
        (5, Victim::TeacherEngine(1)),
        (8, Victim::TeacherEngine(1)),
    ];
    let runs = "teacher-engines";
    let ([_, killed], steps) = with_and_without_kills(runs, &[algorithm.as_str()], &kills);
    let divergence = steps[0]["referenceKl"].as_f64().unwrap();
    assert!(divergence > 1e-3, "the teacher is another model: {divergence}");
    let trainer = fs::read_to_string(killed.join("logs/trainer-0.log")).unwrap();
    assert_eq!(trainer.matches("starting learners").count(), 1, "{trainer}");
}
