//! Names of resources that look like those of GPUs.

use rljob_crds::RLJobSpec;
use rljob_crds::gpus::is_gpu;

use crate::validate::Problem;

/// Names that are misspelled most.
const NAMES: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];
/// Most edits of a misspelled name. Other resources of the vendors' domains differ by more.
const EDITS: usize = 2;

/// Resources whose name is almost that of a GPU: no node has them.
pub(super) fn check_devices(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    let evaluation =
        spec.evaluation_engines().map(|engines| ("evaluation.engines", &engines.resources));
    for (role, resources) in
        [("inference", &spec.inference.resources), ("trainer", &spec.trainer.resources)]
            .into_iter()
            .chain(evaluation)
    {
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
    use serde_json::json;

    use super::*;
    use crate::validate::test_support::with_spec;

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
