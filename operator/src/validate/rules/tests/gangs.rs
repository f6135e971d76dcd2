//! Rules of gangs.

use serde_json::{Value, json};

use super::super::super::Policy;
use super::super::super::test_support::{merge, minimal};
use super::super::problems;

#[test]
fn a_gang_has_one_scheduler_that_the_operator_knows_and_one_priority() {
    let rejected = |spec: Value, policy| -> Vec<String> {
        let mut job = serde_json::to_value(minimal()).unwrap();
        merge(&mut job["spec"], &spec);
        let job = serde_json::from_value(job).unwrap();
        problems(&job, policy).into_iter().map(|problem| problem.to_string()).collect()
    };
    let gang = |gang: Value| json!({"scheduling": {"gang": gang, "priorityClassName": "high"}});
    let native = || gang(json!({"native": {}}));
    assert_eq!(rejected(native(), Policy::LOCAL), Vec::<String>::new());
    let knows = |names: &str| Policy::of_operator(false).with_gangs(names.parse().unwrap());
    assert_eq!(rejected(native(), knows("native")), Vec::<String>::new());
    assert_eq!(
        rejected(native(), knows("volcano,coscheduling")),
        ["spec.scheduling.gang.native: needs an operator with --gang-schedulers=native, \
                gangSchedulers of its chart"]
    );
    assert_eq!(
        rejected(gang(json!({"native": {}, "volcano": {}})), Policy::LOCAL),
        ["spec.scheduling.gang: set exactly one of native, coscheduling and volcano, found \
                native and volcano"]
    );
    let with = |template: Value| {
        let mut spec = native();
        merge(&mut spec, &json!({"trainer": {"template": {"spec": template}}}));
        rejected(spec, Policy::LOCAL)
    };
    assert_eq!(with(json!({"priorityClassName": "high"})), Vec::<String>::new());
    for field in ["priorityClassName", "schedulerName"] {
        let message = format!(
            "spec.scheduling.gang: needs the same template.spec.{field} in inference and trainer: \
                a gang has one"
        );
        assert_eq!(with(json!({ field: "other" })), [message]);
    }
}
