//! Names of resources that look like those of GPUs, and roles that lack them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rljob_crds::gpus::is_gpu;
use rljob_crds::{EnginePurpose, RLJobSpec};

use crate::quantity::thousandths;
use crate::validate::Problem;

/// Names that are misspelled most.
const NAMES: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];
/// Most edits of a misspelled name. Other resources of the vendors' domains differ by more.
const EDITS: usize = 2;
/// Bytes below which no role starts.
const LEAST_MEMORY: i128 = 16 << 20;

/// Resources whose name is almost that of a GPU: no node has them.
pub(super) fn check_devices(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let engines = spec.engine_sets().map(|set| (set.field, &set.engines.resources));
    let trainer = ("trainer".to_owned(), &spec.trainer.resources);
    for (role, resources) in engines.chain([trainer]) {
        for (kind, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
            for name in amounts.iter().flat_map(|amounts| amounts.keys()) {
                let Some(meant) = misspelled(name) else { continue };
                let message = format!("is no GPU that rljob knows: {meant} is one");
                let path = format!("spec.{role}.resources.{kind}.{name}");
                warnings.push(Problem::new(path, message));
            }
        }
    }
}

/// Roles without GPUs whose models another role has on GPUs: nothing is inherited.
pub(super) fn check_cpus(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let mut warn = |path: String, other: &str| {
        let message = format!(
            "has no GPUs, while {other} has: its model runs on CPUs, with the default requests if \
                none are set; resources are not inherited"
        );
        warnings.push(Problem::new(path, message));
    };
    let further = spec.engine_sets().filter(|set| set.purpose != EnginePurpose::Rollouts);
    for set in further.filter(|set| spec.inference.gpus() > 0 && set.engines.gpus() == 0) {
        warn(format!("spec.{}.resources.limits", set.field), "inference");
    }
    let groups = spec.trainer.groups.iter().enumerate();
    for (index, _) in groups.filter(|(_, group)| spec.trainer.of_group(group).gpus() == 0) {
        if spec.trainer.gpus() > 0 {
            warn(format!("spec.trainer.groups[{index}].resources.limits"), "trainer");
        }
    }
}

/// Roles with GPUs that reserve no memory: the default request is far below what a model needs.
pub(super) fn check_memory(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let engines = spec.engine_sets().filter(|set| set.engines.gpus() > 0);
    let engines = engines.map(|set| (set.field, &set.engines.resources));
    let trainer =
        (spec.trainer.gpus() > 0).then(|| ("trainer".to_owned(), &spec.trainer.resources));
    let groups = spec.trainer.groups.iter().enumerate();
    let groups = groups.filter(|(_, group)| spec.trainer.of_group(group).gpus() > 0);
    let groups = groups.map(|(index, own)| (format!("trainer.groups[{index}]"), &own.resources));
    for (role, resources) in engines.chain(trainer).chain(groups) {
        let has_memory = |amounts: &Option<BTreeMap<String, Quantity>>| {
            amounts.as_ref().is_some_and(|amounts| amounts.contains_key("memory"))
        };
        if !has_memory(&resources.requests) && !has_memory(&resources.limits) {
            let message = "has no memory, while the role has GPUs: the scheduler reserves 1Gi, \
                and pods that use more are evicted first when memory of their node is short";
            warnings.push(Problem::new(format!("spec.{role}.resources.requests"), message));
        }
    }
}

/// Memory without a unit, or with a small one: the pods could not start.
pub(super) fn check_units(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let engines = spec.engine_sets().map(|set| (set.field, &set.engines.resources));
    let trainer = ("trainer".to_owned(), &spec.trainer.resources);
    let coordinator = ("coordinator".to_owned(), &spec.coordinator.resources);
    for (role, resources) in engines.chain([trainer, coordinator]) {
        for (kind, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
            let Some(memory) = amounts.as_ref().and_then(|amounts| amounts.get("memory")) else {
                continue;
            };
            if thousandths(memory).is_some_and(|found| found < LEAST_MEMORY * 1000) {
                let text = &memory.0;
                let message = format!("is {text}, less than 16Mi: a number without unit is bytes");
                let path = format!("spec.{role}.resources.{kind}.memory");
                warnings.push(Problem::new(path, message));
            }
        }
    }
}

/// The name of a GPU that a name of a resource probably means.
fn misspelled(name: &str) -> Option<&'static str> {
    if is_gpu(name) || !name.contains('/') {
        return None;
    }
    let lower = name.to_lowercase();
    NAMES.into_iter().find(|known| edits(&lower, known) <= EDITS)
}

/// Levenshtein distance: insertions, deletions and replacements of characters.
fn edits(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.chars().count()).collect();
    for (index, own) in left.chars().enumerate() {
        let mut diagonal = index;
        let mut before = index.saturating_add(1);
        let mut next = vec![before];
        for (other, &above) in right.chars().zip(row.iter().skip(1)) {
            let replaced = diagonal.saturating_add(usize::from(own != other));
            before = replaced.min(above.saturating_add(1)).min(before.saturating_add(1));
            next.push(before);
            diagonal = above;
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validate::test_support::with_spec;

    #[test]
    fn memory_without_a_unit_is_named() {
        let of = |memory: Value| {
            let resources = json!({"requests": {"memory": memory}});
            let spec = &with_spec(&json!({"inference": {"resources": resources}})).spec;
            let mut warnings = Vec::new();
            check_units(spec, &mut warnings);
            warnings.into_iter().map(|warning| warning.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            of(json!("4")),
            ["spec.inference.resources.requests.memory: is 4, less than 16Mi: a number without \
              unit is bytes"]
        );
        assert_eq!(of(json!("2Mi")).len(), 1);
        assert_eq!((of(json!("4Gi")), of(json!("16Mi"))), (vec![], vec![]));
    }

    #[test]
    fn roles_on_cpus_beside_others_on_gpus_are_named() {
        let of = |gpus: u32| {
            let limits = json!({"limits": {"nvidia.com/gpu": gpus}});
            let spec = &with_spec(&json!({
                "algorithm": {"grpo": {"klCoefficient": 0.1}},
                "dataset": {"evaluation": {
                    "path": "/data/test.jsonl", "prompt": "{{ question }}", "answer": "answer",
                }},
                "inference": {"sglang": {}, "resources": {"limits": {"nvidia.com/gpu": 1}}},
                "evaluation": {"engines": {"sglang": {}, "resources": limits}},
                "trainer": {
                    "processesPerReplica": null, "resources": {"limits": {"nvidia.com/gpu": 1}},
                    "groups": [{"name": "frozen", "roles": ["Reference"], "resources": limits}],
                },
            }))
            .spec;
            let mut warnings = Vec::new();
            check_cpus(spec, &mut warnings);
            warnings.into_iter().map(|warning| warning.path).collect::<Vec<_>>()
        };
        let paths =
            ["spec.evaluation.engines.resources.limits", "spec.trainer.groups[0].resources.limits"];
        assert_eq!(of(0), paths);
        assert_eq!(of(1), [""; 0]);
    }

    #[test]
    fn roles_on_gpus_that_reserve_no_memory_are_named() {
        let of = |resources: Value| {
            let spec = &with_spec(&json!({
                "algorithm": {"grpo": {"klCoefficient": 0.1}},
                "inference": {"sglang": {}, "resources": resources},
                "trainer": {
                    "processesPerReplica": null, "resources": resources,
                    "groups": [{"name": "frozen", "roles": ["Reference"], "resources": resources}],
                },
            }))
            .spec;
            let mut warnings = Vec::new();
            check_memory(spec, &mut warnings);
            warnings.into_iter().map(|warning| warning.path).collect::<Vec<_>>()
        };
        let gpus = json!({"limits": {"nvidia.com/gpu": 1}});
        let paths = [
            "spec.inference.resources.requests",
            "spec.trainer.resources.requests",
            "spec.trainer.groups[0].resources.requests",
        ];
        assert_eq!(of(gpus), paths);
        let limit = json!({"limits": {"nvidia.com/gpu": 1, "memory": "64Gi"}});
        let request = json!({"limits": {"nvidia.com/gpu": 1}, "requests": {"memory": "64Gi"}});
        for reserved in [limit, request, json!({"requests": {"cpu": 1}})] {
            assert_eq!(of(reserved), [""; 0]);
        }
    }

    #[test]
    fn misspelled_names_of_gpus_differ_from_other_resources() {
        for (name, meant) in [
            ("nvidia.com/gpus", Some("nvidia.com/gpu")),
            ("nvidia.com/GPU", Some("nvidia.com/gpu")),
            ("nvidia.com/gup", Some("nvidia.com/gpu")),
            ("nvidia/gpu", None),
            ("amd.com/gpus", Some("amd.com/gpu")),
            ("nvidia.com/gpu", None),
            ("nvidia.com/gpu.shared", None),
            ("nvidia.com/gpumem", None),
            ("nvidia.com/hostdev", None),
            ("rdma/hca_a", None),
            ("gpus", None),
        ] {
            assert_eq!(misspelled(name), meant, "{name}");
        }
        let job = with_spec(&json!({
            "trainer": {"resources": {"limits": {"nvidia.com/gpus": 1, "cpu": 2}}},
        }));
        let mut warnings = Vec::new();
        check_devices(&job.spec, &mut warnings);
        let expected = "spec.trainer.resources.limits.nvidia.com/gpus: is no GPU that rljob knows: \
            nvidia.com/gpu is one";
        let found: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(found, [expected]);
    }
}
