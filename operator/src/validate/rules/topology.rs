//! Rules of topology hints.

use rljob_crds::RLJobSpec;
use rljob_crds::template::PodTemplate;
use rljob_crds::topology::topology_annotation;

use super::common::check_union;
use crate::validate::Problem;

const PATH: &str = "spec.scheduling.topology";

pub(super) fn check_topology(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let Some(topology) = &spec.scheduling.topology else { return };
    if let Some(trainer) = &topology.trainer {
        let path = format!("{PATH}.trainer");
        check_union(&path, trainer, problems);
        if !spec.algorithm.has_learners() {
            let message = "must not be set: the algorithm has no trainer";
            problems.push(Problem::new(&path, message));
        }
        let group = spec.frozen_group().and_then(|group| group.template.as_ref());
        check_annotations(&path, "trainer", spec.trainer.template.as_ref(), problems);
        check_annotations(&path, "trainer.groups", group, problems);
    }
    if topology.inference.is_some() {
        let path = format!("{PATH}.inference");
        check_annotations(&path, "inference", spec.inference.template.as_ref(), problems);
    }
}

/// A template must not request another topology of Kueue than the hint.
fn check_annotations(
    path: &str,
    role: &str,
    template: Option<&PodTemplate>,
    problems: &mut Vec<Problem>,
) {
    let Some(template) = template else { return };
    let requests = ["required", "preferred", "unconstrained"].map(topology_annotation);
    let is_set = |name: &&String| template.metadata.annotations.contains_key(*name);
    for name in requests.iter().filter(is_set) {
        let message =
            format!("conflicts with the annotation {name} of {role}.template: remove one");
        problems.push(Problem::new(path, message));
    }
}
