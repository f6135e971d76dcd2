//! Served teacher: kills do not change the log-probabilities that a run learns.

use rljob_crds::names::METRICS_FILE;

use super::{Victim, assert_same_result, practise, untimed_lines};
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
    let [expected, found] = ["teacher", "teacher-killed"].map(|runs| {
        let mut run = practise(runs, &[algorithm.as_str()], &[]);
        if runs == "teacher-killed" {
            for (step, victim) in
                [(2, Victim::Coordinator), (4, Victim::Learner(1)), (7, Victim::Coordinator)]
            {
                run.wait_for_steps(step);
                run.kill_after_log_lines(victim, 5);
            }
        }
        let directory = run.local.runs.join("default/practise");
        let (code, output) = run.local.end();
        assert_eq!(code, Some(0), "{output}");
        directory
    });
    assert_same_result(&found, &expected);
    let [steps, expected_steps] =
        [&found, &expected].map(|run| untimed_lines(&run.join(METRICS_FILE)));
    assert_eq!(steps, expected_steps);
    let divergence = steps[0]["referenceKl"].as_f64().unwrap();
    assert!(divergence > 1e-3, "the teacher is another model: {divergence}");
}
