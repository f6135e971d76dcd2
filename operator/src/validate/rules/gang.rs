//! Rules of gangs.

use rljob_crds::RLJobSpec;
use rljob_crds::template::PodTemplate;

use super::common::exactly_one;
use crate::validate::{Policy, Problem};

const PATH: &str = "spec.scheduling.gang";

pub(super) fn check_gang(spec: &RLJobSpec, policy: Policy, problems: &mut Vec<Problem>) {
    let Some(gang) = &spec.scheduling.gang else { return };
    let members = [
        ("native", gang.native.is_some()),
        ("coscheduling", gang.coscheduling.is_some()),
        ("volcano", gang.volcano.is_some()),
    ];
    exactly_one(PATH, &members, problems);
    let unknown = gang.scheduler().filter(|kind| !policy.gang_schedulers.contains(*kind));
    if let Some(kind) = unknown {
        let name = kind.name();
        let message =
            format!("needs an operator with --gang-schedulers={name}, gangSchedulers of its chart");
        problems.push(Problem::new(format!("{PATH}.{name}"), message));
    }
    if !spec.algorithm.has_learners() {
        return;
    }
    let inference = Some(&spec.inference).filter(|inference| inference.replicas > 0);
    let engines = [("inference", inference), ("evaluation.engines", spec.evaluation_engines())];
    for (field, default) in [
        ("schedulerName", None),
        ("priorityClassName", spec.scheduling.priority_class_name.as_deref()),
    ] {
        let of = |template: &Option<PodTemplate>| {
            let own = template.as_ref().and_then(|template| template.spec.get(field)?.as_str());
            own.or(default).map(ToOwned::to_owned)
        };
        for (name, own) in engines {
            if own.is_some_and(|own| of(&own.template) != of(&spec.trainer.template)) {
                let message = format!(
                    "needs the same template.spec.{field} in {name} and trainer: a gang has one"
                );
                problems.push(Problem::new(PATH, message));
            }
        }
    }
}
