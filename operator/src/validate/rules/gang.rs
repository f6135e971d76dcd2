//! Rules of gangs.

use rljob_crds::RLJobSpec;
use rljob_crds::template::PodTemplate;

use super::common::check_union;
use crate::validate::{Policy, Problem};

const PATH: &str = "spec.scheduling.gang";

pub(super) fn check_gang(spec: &RLJobSpec, policy: Policy, problems: &mut Vec<Problem>) {
    let Some(gang) = &spec.scheduling.gang else { return };
    check_union(PATH, gang, problems);
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
    let engines = spec.engine_sets().filter(|set| set.engines.replicas > 0);
    let engines = engines.map(|set| (set.field, &set.engines.template));
    let group = spec.frozen_group().map(|group| ("trainer.groups".to_owned(), &group.template));
    let others: Vec<(String, &Option<PodTemplate>)> = engines.chain(group).collect();
    for (field, default) in [
        ("schedulerName", None),
        ("priorityClassName", spec.scheduling.priority_class_name.as_deref()),
    ] {
        let of = |template: &Option<PodTemplate>| {
            let own = template.as_ref().and_then(|template| template.spec.get(field)?.as_str());
            own.or(default).map(ToOwned::to_owned)
        };
        let differs = |template: &Option<PodTemplate>| of(template) != of(&spec.trainer.template);
        for (other, _) in others.iter().filter(|(_, template)| differs(template)) {
            let message = format!(
                "needs the same template.spec.{field} in {other} and trainer: a gang has one"
            );
            problems.push(Problem::new(PATH, message));
        }
    }
}
