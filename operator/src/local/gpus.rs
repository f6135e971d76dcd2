//! GPUs of this machine and their assignment to engines.

use std::fs;

use crate::validate::ValidatedJob;

/// Names of the GPUs that this process may use, in the format of `CUDA_VISIBLE_DEVICES`.
pub fn available() -> Vec<String> {
    if let Some(visible) = std::env::var_os("CUDA_VISIBLE_DEVICES") {
        return visible
            .to_string_lossy()
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty() && *name != "-1")
            .map(ToOwned::to_owned)
            .collect();
    }
    let names = fs::read_dir("/dev")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut numbers: Vec<u32> =
        names.filter_map(|name| name.strip_prefix("nvidia")?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers.iter().map(ToString::to_string).collect()
}

/// `CUDA_VISIBLE_DEVICES` of engine `index`; empty if engines run on CPUs.
pub fn share(gpus: &[String], per_replica: u32, index: i32) -> String {
    let per_replica = per_replica as usize;
    let first = per_replica.saturating_mul(index.max(0) as usize);
    gpus.get(first..first.saturating_add(per_replica)).unwrap_or_default().join(",")
}

/// Problem if the engines of a job request more GPUs than are available.
pub fn shortage(job: &ValidatedJob, available: usize) -> Option<String> {
    let inference = &job.spec.inference;
    let wanted = (inference.replicas.max(0) as usize).saturating_mul(inference.gpus() as usize);
    (wanted > available).then(|| {
        let (replicas, each) = (inference.replicas, inference.gpus());
        format!(
            "spec.inference.resources.limits: {replicas} engines need {each} GPUs each, and this \
                machine has {available} GPUs; remove the GPUs to run engines on the CPU",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::test_support::validated;

    #[test]
    fn too_few_gpus_are_a_problem() {
        let mut job = validated();
        assert_eq!(shortage(&job, 0), None);
        job.spec.inference.resources =
            serde_json::from_value(serde_json::json!({"limits": {"nvidia.com/gpu": 2}})).unwrap();
        let message = "spec.inference.resources.limits: 2 engines need 2 GPUs each, and this \
            machine has 3 GPUs; remove the GPUs to run engines on the CPU";
        assert_eq!(shortage(&job, 3).as_deref(), Some(message));
        assert_eq!(shortage(&job, 4), None);
    }

    #[test]
    fn engines_do_not_share_gpus() {
        let gpus = ["4", "5", "6", "7"].map(ToOwned::to_owned);
        assert_eq!(
            [share(&gpus, 2, 0), share(&gpus, 2, 1), share(&gpus, 0, 1)],
            ["4,5", "6,7", ""]
        );
    }
}
