//! The GPUs of this machine, and which engine gets which.

use std::fs;

use crate::validate::ValidatedJob;

/// Names of the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` takes them.
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

/// What engine `index` may use of the GPUs: its own share, nothing where engines run on the CPU.
pub fn share(gpus: &[String], per_replica: u32, index: i32) -> String {
    let per_replica = per_replica as usize;
    let first = per_replica * index.max(0) as usize;
    gpus.get(first..first + per_replica).unwrap_or_default().join(",")
}

/// What is wrong with the GPUs that a job asks for.
pub fn missing(job: &ValidatedJob, available: usize) -> Option<String> {
    let inference = &job.spec.inference;
    let wanted = inference.replicas.max(0) as usize * inference.gpus() as usize;
    (wanted > available).then(|| {
        let (replicas, each) = (inference.replicas, inference.gpus());
        format!("spec.inference.resources.limits: {replicas} engines need {each} GPUs each, and this machine has {available} GPUs; remove the GPUs to run engines on the CPU")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::test_support::validated;

    #[test]
    fn gpus_that_are_not_there_are_a_problem() {
        let mut job = validated();
        assert_eq!(missing(&job, 0), None);
        job.spec.inference.resources =
            serde_json::from_value(serde_json::json!({"limits": {"nvidia.com/gpu": 2}})).unwrap();
        let message = "spec.inference.resources.limits: 2 engines need 2 GPUs each, and this machine has 3 GPUs; remove the GPUs to run engines on the CPU";
        assert_eq!(missing(&job, 3).as_deref(), Some(message));
        assert_eq!(missing(&job, 4), None);
    }

    #[test]
    fn every_engine_has_gpus_of_its_own() {
        let gpus = ["4", "5", "6", "7"].map(ToOwned::to_owned);
        assert_eq!(
            [share(&gpus, 2, 0), share(&gpus, 2, 1), share(&gpus, 0, 1)],
            ["4,5", "6,7", ""]
        );
    }
}
