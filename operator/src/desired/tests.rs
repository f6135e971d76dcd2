//! Snapshots of all children of a minimal job, and tests of pinning.

use k8s_openapi::api::core::v1::PodSpec;
use rljob_crds::model::JobModelSource;
use rljob_crds::names::RUN_CONFIG_FILE;
use rljob_crds::roles::InferenceSpec;
use serde_json::Value;

use super::pin::LiveSet;
use super::tokens::TokenKey;
use super::*;
use crate::children::children;
use crate::decide::WantedRoles;
use crate::validate::test_support::validated;

mod evaluation;
mod gpus;
mod groups;
mod secrets;
mod sglang_pods;
mod verifiers;
mod without_pods;

fn settings() -> Settings {
    Settings::new("registry.example/rljob:7")
}

fn built(wanted: WantedRoles, pinned: &Pinned) -> Resources {
    let job = validated();
    build(
        &job,
        wanted,
        &settings(),
        &Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), &job.uid),
        pinned,
    )
}

fn pod_of(set: &Value) -> PodSpec {
    serde_json::from_value(set["spec"]["template"]["spec"].clone()).unwrap()
}

fn sglang(gpus: u32, extra_args: &[&str]) -> InferenceSpec {
    let mut spec =
        serde_json::json!({"replicas": 2, "sglang": {"extraArgs": extra_args}, "resources": {}});
    if gpus > 0 {
        spec["resources"] = serde_json::json!({"limits": {"nvidia.com/gpu": gpus}});
    }
    serde_json::from_value(spec).unwrap()
}

#[test]
fn the_children_of_a_minimal_job() {
    let Resources {
        config_map,
        mut secret,
        network_policies,
        disruption_budgets,
        services,
        mut stateful_sets,
    } = built(WantedRoles::Everything, &Pinned::default());
    // The annotation duplicates the template below.
    for set in &mut stateful_sets {
        set["metadata"]["annotations"] = Value::Null;
    }
    for (_, value) in secret.data.iter_mut().flatten().filter(|(key, _)| key.starts_with("tls-")) {
        assert!(value.0.starts_with(b"-----BEGIN CERTIFICATE-----"));
        value.0 = b"certificate and key".to_vec();
    }
    insta::assert_yaml_snapshot!("config_map", config_map);
    insta::assert_yaml_snapshot!("secret", secret);
    insta::assert_yaml_snapshot!("network_policies", network_policies);
    insta::assert_yaml_snapshot!("disruption_budgets", disruption_budgets);
    insta::assert_yaml_snapshot!("services", services);
    insta::assert_yaml_snapshot!("stateful_sets", stateful_sets);
}

#[test]
fn a_stopped_job_keeps_its_children_without_replicas() {
    let mut running = built(WantedRoles::Everything, &Pinned::default());
    for set in &mut running.stateful_sets {
        set["spec"]["replicas"] = 0.into();
    }
    assert_eq!(built(WantedRoles::Nothing, &Pinned::default()), running);
}

#[test]
fn a_model_of_another_job_is_its_export() {
    let mut job = validated();
    job.spec.model.path = None;
    job.spec.model.rljob = Some(JobModelSource { name: "warmup".to_owned() });
    assert_eq!(run_config(&job).model_directory.to_str(), Some("/rljob/runs/lab/warmup/export"));
}

#[test]
fn a_run_with_several_turns_needs_a_coordinator_that_samples_them() {
    let mut job = validated();
    assert_eq!(run_config(&job).protocol, 2);
    let workflow = serde_json::json!({"multiTurn": {"feedback": "Try again."}});
    job.spec.rollout.workflow = serde_json::from_value(workflow).unwrap();
    assert_eq!(run_config(&job).protocol, 3);
}

fn pinned_by(resources: &Resources, wanted: WantedRoles) -> Pinned {
    let live = |set: &Value| LiveSet {
        replicas: set["spec"]["replicas"].as_i64().unwrap() as i32,
        template: pin::template_text(set).map(|text| pin::mark(text).into()),
        ..LiveSet::default()
    };
    let run_config = resources
        .config_map
        .data
        .as_ref()
        .unwrap()
        .get(RUN_CONFIG_FILE)
        .map(|text| pin::mark(text).into());
    Pinned::from_live(
        run_config.as_ref(),
        &Role::of(&validated().spec).zip(resources.stateful_sets.iter().map(live)).collect(),
        wanted,
    )
}

/// Applied objects: marks are replaced by texts of observed objects.
fn applied(resources: &Resources, live: &Resources) -> Vec<Value> {
    let objects = |resources| children(resources).into_iter().map(|child| child.object);
    objects(resources)
        .zip(objects(live))
        .map(|(wanted, live)| pin::fill(wanted, &live).unwrap())
        .collect()
}

#[test]
fn another_image_or_spec_changes_objects_only_at_a_start_or_a_resume() {
    let mut job = validated();
    job.spec.training.seed = 99;
    let newer = Settings::new("registry.example/rljob:8");
    let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), &job.uid);
    let (running, suspended) = (
        built(WantedRoles::Everything, &Pinned::default()),
        built(WantedRoles::Nothing, &Pinned::default()),
    );
    let mut interrupted = running.clone();
    interrupted.stateful_sets[1]["spec"]["replicas"] = 0.into();
    let new = build(&job, WantedRoles::Everything, &newer, &tokens, &Pinned::default());
    for (case, live, wanted, expected) in [
        ("running", &running, WantedRoles::Everything, &running),
        ("releasing", &running, WantedRoles::Nothing, &suspended),
        ("suspended or finished", &suspended, WantedRoles::Nothing, &suspended),
        ("resumed", &suspended, WantedRoles::Everything, &new),
        ("interrupted resume", &interrupted, WantedRoles::Everything, &new),
    ] {
        let rendered = build(&job, wanted, &newer, &tokens, &pinned_by(live, wanted));
        assert_eq!(applied(&rendered, live), applied(expected, live), "{case}");
        let marks: Vec<bool> =
            children(&rendered).iter().map(|child| pin::has_marks(&child.object)).collect();
        let kept = expected != &new;
        assert_eq!(
            marks,
            [false, kept, false, false, false, false, false, kept, kept, kept],
            "{case}"
        );
    }
}

#[test]
fn objects_rendered_by_the_same_operator_have_no_marks() {
    let running = built(WantedRoles::Everything, &Pinned::default());
    assert_eq!(
        built(WantedRoles::Everything, &pinned_by(&running, WantedRoles::Everything)),
        running
    );
}

#[test]
fn objects_whose_pinned_text_was_deleted_are_not_applied() {
    let running = built(WantedRoles::Everything, &Pinned::default());
    let pinned = Pinned { run_config: Some(pin::mark("of before").into()), ..Pinned::default() };
    let wanted = serde_json::to_value(config_map::build_config_map(&validated(), &pinned)).unwrap();
    assert_eq!(wanted["metadata"]["annotations"]["rljob.dev/sha256"], pin::digest("of before"));
    assert_eq!(pin::fill(wanted.clone(), &serde_json::json!({"data": {}})), None);
    let live = serde_json::to_value(&running.config_map).unwrap();
    assert_eq!(pin::fill(wanted, &live).unwrap()["data"], live["data"]);
}

#[test]
fn a_run_in_a_bucket_has_scratch_volumes_and_keys_only_where_needed() {
    let mut job = validated();
    job.spec.storage = serde_json::from_value(serde_json::json!({
        "s3": {
            "bucket": "runs", "prefix": "team-a", "endpoint": "https://s3.example",
            "credentialsSecretRef": {"name": "bucket-keys"},
        }
    }))
    .unwrap();
    let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), &job.uid);
    let Resources { config_map, stateful_sets, .. } =
        build(&job, WantedRoles::Everything, &settings(), &tokens, &Pinned::default());
    let config: serde_json::Value =
        serde_json::from_str(&config_map.data.unwrap()["run.json"]).unwrap();
    let keys = "/rljob/s3";
    let bucket = serde_json::json!({
        "bucket": "runs", "prefix": "team-a/lab/sums", "endpoint": "https://s3.example",
        "region": "us-east-1", "credentials": keys,
    });
    assert_eq!(config["bucket"], bucket);
    for (set, role) in stateful_sets.into_iter().zip(Role::ALL) {
        let pod = pod_of(&set);
        let volume = |name: &str| pod.volumes.iter().flatten().find(|volume| volume.name == name);
        assert!(volume("rljob-storage").unwrap().empty_dir.is_some(), "{role:?}");
        let secret =
            volume("rljob-s3").and_then(|volume| volume.secret.as_ref()?.secret_name.as_deref());
        let mount = pod.containers[0]
            .volume_mounts
            .iter()
            .flatten()
            .find(|mount| mount.name == "rljob-s3")
            .map(|mount| mount.mount_path.as_str());
        let expected = (role != Role::Inference).then_some(("bucket-keys", keys));
        assert_eq!(secret.zip(mount), expected, "{role:?}");
    }
}

/// Token files with their Secrets, and the containers that mount them.
fn hub_tokens_of(pod: &PodSpec) -> (Vec<String>, Vec<String>) {
    let volume = pod.volumes.iter().flatten().find(|volume| volume.name == "rljob-hub");
    let sources = volume.and_then(|volume| volume.projected.as_ref()?.sources.clone());
    let files = sources.into_iter().flatten().flat_map(|source| {
        let secret = source.secret.unwrap();
        let name = secret.name;
        let items = secret.items.unwrap().into_iter();
        items.map(move |item| format!("{}={name}/{}", item.path, item.key))
    });
    let containers = pod.init_containers.iter().flatten().chain(&pod.containers);
    let mounting = containers.filter(|container| {
        container.volume_mounts.iter().flatten().any(|mount| mount.mount_path == "/rljob/hub")
    });
    (files.collect(), mounting.map(|container| container.name.clone()).collect())
}

#[test]
fn hub_tokens_are_mounted_only_into_containers_that_download() {
    let mut job = validated();
    job.spec.model = serde_json::from_value(serde_json::json!({
        "huggingFace": {"repo": "org/model", "tokenSecretRef": {"name": "hf"}},
    }))
    .unwrap();
    job.spec.dataset.train.path = None;
    job.spec.dataset.train.hugging_face = serde_json::from_value(serde_json::json!({
        "repo": "org/data", "tokenSecretRef": {"name": "hf-data", "key": "read"},
    }))
    .unwrap();
    assert_eq!(
        run_config(&job).model_directory.to_str(),
        Some("/rljob/runs/lab/sums/hub/models/org--model@main")
    );
    let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), &job.uid);
    let mounts = |job: &ValidatedJob| {
        build(job, WantedRoles::Everything, &settings(), &tokens, &Pinned::default())
            .stateful_sets
            .iter()
            .map(|set| hub_tokens_of(&pod_of(set)))
            .collect::<Vec<_>>()
    };
    let all = ["model=hf/token", "train=hf-data/read"].map(ToOwned::to_owned).to_vec();
    let of_coordinator = (all.clone(), vec!["coordinator".to_owned()]);
    assert_eq!(mounts(&job), [Default::default(), of_coordinator.clone(), Default::default()]);

    job.spec.storage = serde_json::from_value(serde_json::json!({"s3": {"bucket": "b"}})).unwrap();
    let of_download = (all[..1].to_vec(), vec!["model-download".to_owned()]);
    assert_eq!(mounts(&job), [of_download.clone(), of_coordinator, of_download]);
}

#[test]
fn learners_have_the_grace_period_of_their_pod_minus_the_time_of_a_kill() {
    for (period, expected) in [(60, "--grace-seconds=55"), (i64::MIN, "--grace-seconds=0")] {
        let mut job = validated();
        let template = serde_json::json!({"spec": {"terminationGracePeriodSeconds": period}});
        job.spec.trainer.template = serde_json::from_value(template).unwrap();
        let template = pod::build_template(&job, Role::Trainer, &settings());
        let text = serde_json::to_string(&template).unwrap();
        assert!(text.contains(&format!("\"{expected}\"")), "{text}");
    }
}

#[test]
fn secrets_of_registries_come_before_those_of_the_job() {
    let settings = Settings { image_pull_secrets: vec!["registry".to_owned()], ..settings() };
    let mut job = validated();
    let template = serde_json::json!({"spec": {"imagePullSecrets": [{"name": "own"}]}});
    job.spec.trainer.template = serde_json::from_value(template).unwrap();
    let of = |role| rendered_template(&job, role, &settings)["spec"]["imagePullSecrets"].take();
    let registry = serde_json::json!({"name": "registry"});
    assert_eq!(of(Role::Trainer), serde_json::json!([registry, {"name": "own"}]));
    assert_eq!(of(Role::Coordinator), serde_json::json!([registry]));
}
