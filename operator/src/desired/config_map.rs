//! ConfigMap with `run.json`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rljob_crds::names::{ANNOTATION_DIGEST, EXPORT_DIR, RUN_CONFIG_FILE, S3_KEYS_MOUNT};
use rljob_crds::{BucketConfig, RunConfig, run_config};

use super::{Pinned, meta, pin};
use crate::validate::ValidatedJob;

/// The run configuration of a job in a cluster.
pub fn run_config(job: &ValidatedJob) -> RunConfig {
    let (model, run_directory) = (&job.spec.model, meta::run_directory(job, &job.name));
    let model_directory = match model.job() {
        Some(other) => meta::run_directory(job, other).join(EXPORT_DIR),
        None => RunConfig::hub_model(&run_directory, &job.spec)
            .unwrap_or_else(|| model.path.clone().unwrap_or_default().into()),
    };
    let bucket = job.spec.storage.s3.as_ref().map(|source| {
        let keys = source.credentials_secret_ref.as_ref().map(|_| S3_KEYS_MOUNT.into());
        BucketConfig::of(source, &job.namespace, &job.name, keys)
    });
    RunConfig {
        protocol: run_config::protocol(&job.spec),
        bucket,
        namespace: job.namespace.clone(),
        name: job.name.clone(),
        uid: job.uid.clone(),
        run_directory,
        model_directory,
        model_identity: None,
        spec: job.spec.clone(),
    }
}

pub(super) fn build_config_map(job: &ValidatedJob, pinned: &Pinned) -> ConfigMap {
    // Serialization of plain data with text keys cannot fail.
    let text = serde_json::to_string_pretty(&run_config(job)).unwrap_or_default();
    let text = pin::unless_pinned(text, pinned.run_config.as_ref());
    let annotations = Some(BTreeMap::from([(ANNOTATION_DIGEST.to_owned(), pin::digest(&text))]));
    ConfigMap {
        metadata: ObjectMeta { annotations, ..meta::child(job, meta::config_map_name(job), None) },
        data: Some(BTreeMap::from([(RUN_CONFIG_FILE.to_owned(), text)])),
        ..ConfigMap::default()
    }
}
