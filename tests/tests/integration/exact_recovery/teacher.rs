//! Served teacher: kills do not change the log-probabilities that a run learns.

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
