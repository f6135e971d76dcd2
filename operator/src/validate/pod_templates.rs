//! Pod templates of all roles of a job.

use rljob_crds::RLJobSpec;
use rljob_crds::template::PodTemplate;

/// Every template with its path, for example `spec.trainer.template`.
pub(super) fn pod_templates(spec: &RLJobSpec) -> Vec<(String, &PodTemplate)> {
    let engines = spec.engine_sets().map(|set| (set.field.clone(), set.engines.template.as_ref()));
    let groups = spec.trainer.groups.iter().enumerate();
    let groups =
        groups.map(|(index, group)| (format!("trainer.groups[{index}]"), group.template.as_ref()));
    let verifiers = spec.verifiers.as_ref().and_then(|verifiers| verifiers.template.as_ref());
    let others = [
        ("trainer", spec.trainer.template.as_ref()),
        ("coordinator", spec.coordinator.template.as_ref()),
        ("verifiers", verifiers),
    ];
    let others = others.map(|(field, template)| (field.to_owned(), template));
    let all = engines.chain(others).chain(groups);
    all.filter_map(|(field, template)| Some((format!("spec.{field}.template"), template?)))
        .collect()
}
