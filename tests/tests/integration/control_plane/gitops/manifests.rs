//! Manifests of `manifests/gitops`: accepted strictly by the API server with the CRDs of Argo CD
//! and Flux, built by kustomize, and applied to the ConfigMap of Argo CD.

use std::fs;
use std::process::Command;

use rljob_tests::files::{self, binary, workspace};
use rljob_tests::gitops::ARGOCD_CM;
use rljob_tests::process::run;
use rljob_tests::{Helm, Kubectl, Namespace};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{PREREQUISITES, blocks, read, user};
use crate::control_plane::{cluster, merge};

fn path(file: &str) -> String {
    workspace().join(file).display().to_string()
}

fn install_crds(kubectl: &Kubectl) {
    for (file, crd) in [
        ("applications.yaml", "applications.argoproj.io"),
        ("kustomizations.yaml", "kustomizations.kustomize.toolkit.fluxcd.io"),
        ("gitrepositories.yaml", "gitrepositories.source.toolkit.fluxcd.io"),
        ("helmreleases.yaml", "helmreleases.helm.toolkit.fluxcd.io"),
    ] {
        let file = files::gitops(file).unwrap().display().to_string();
        kubectl.run(&["apply", "--server-side", "--filename", &file]).unwrap();
        kubectl.wait_for_definition(crd).unwrap();
    }
}

/// The one command of docs/gitops.md that contains a text.
fn block(text: &str) -> String {
    let mut found = blocks();
    found.retain(|block| block.contains(text));
    let [command] = found.as_slice() else { panic!("{found:?}") };
    command.clone()
}

#[test]
fn applications_and_kustomizations_are_accepted_strictly() {
    let namespace = Namespace::create(cluster(), "gitops").unwrap();
    install_crds(&namespace.kubectl);
    let files = [
        "argocd/operator",
        "argocd/jobs",
        "flux/source",
        "flux/operator",
        "flux/operator/release",
        "flux/jobs",
        "flux/until-succeeded",
    ];
    for file in files {
        let text = read(&format!("manifests/gitops/{file}.yaml"));
        // The namespaces of Argo CD and Flux do not exist here.
        let text =
            text.replace("  namespace: argocd\n", "").replace("  namespace: flux-system\n", "");
        let dry_run = ["apply", "--dry-run=server", "--validate=strict", "--filename=-"];
        let output = namespace.kubectl.run_with_input(&dry_run, &text).unwrap();
        assert!(
            !output.is_empty() && output.lines().all(|line| line.contains(" created")),
            "{output}"
        );
    }
}

#[test]
fn flux_installs_the_chart_of_this_tree_with_values_that_it_accepts() {
    let text = read("manifests/gitops/flux/operator/release.yaml");
    let release = serde_yaml::Deserializer::from_str(&text).last().unwrap();
    let release = Value::deserialize(release).unwrap();
    let chart = path(release["spec"]["chart"]["spec"]["chart"].as_str().unwrap());
    let namespace = release["spec"]["targetNamespace"].as_str().unwrap();
    let template = ["template", "rljob", &chart, "--values=-"];
    let helm = Helm::offline(namespace).unwrap();
    let objects = helm.run_with_input(&template, &release["spec"]["values"].to_string()).unwrap();
    assert!(objects.contains("image: \"registry.example/rljob:0.1.0\"\n"), "{objects}");
}

/// The job of an overlay, after the API server and `rljob validate` have accepted it.
fn build(overlay: &str) -> Value {
    let kubectl = cluster().kubectl();
    let built = kubectl.run(&["kustomize", &path(&format!("manifests/gitops/jobs/{overlay}"))]);
    let text = built.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.yaml");
    fs::write(&file, &text).unwrap();
    run(Command::new(binary("rljob").unwrap()).args(["validate", "--file"]).arg(&file)).unwrap();
    let mut documents = serde_yaml::Deserializer::from_str(&text);
    let job = Value::deserialize(documents.next().unwrap()).unwrap();
    assert!(documents.next().is_none(), "{text}");
    let dry_run = ["apply", "--dry-run=server", "--validate=strict", "--filename=-"];
    let output = kubectl.run_with_input(&dry_run, &text);
    assert_eq!(output.unwrap(), "rljob.rljob.dev/gsm8k created (server dry run)\n");
    job
}

#[test]
fn overlays_differ_from_the_base_in_their_own_fields_and_find_their_prerequisites() {
    let user = user("default");
    user.shell(&block(PREREQUISITES)).unwrap();
    let base: Value = serde_yaml::from_str(&read("manifests/gitops/jobs/base/job.yaml")).unwrap();
    let mut staging = base.clone();
    staging["metadata"]["namespace"] = json!("training-staging");
    staging["spec"]["activeDeadlineSeconds"] = json!(7200);
    staging["spec"]["startupDeadlineSeconds"] = json!(1800);
    assert_eq!(build("staging"), staging);

    let mut production = base;
    production["metadata"]["namespace"] = json!("training");
    let own: Value =
        serde_yaml::from_str(&read("manifests/gitops/jobs/production/job.yaml")).unwrap();
    merge(&mut production, &own);
    assert_eq!(build("production"), production);
    has_prerequisites(&staging);
    has_prerequisites(&production);
    user.add_kubeconform();
    let output = user.shell(&block("kubeconform")).unwrap();
    assert!(
        output.lines().count() > 5
            && output.lines().all(|line| line.ends_with(" created (server dry run)")),
        "{output}"
    );
    let file = path(PREREQUISITES);
    cluster().kubectl().run(&["delete", "--wait=false", "--filename", &file]).unwrap();
}

/// Checks that the cluster has the objects that the job of an overlay names.
fn has_prerequisites(job: &Value) {
    let kubectl = cluster().kubectl();
    let namespace = job["metadata"]["namespace"].as_str().unwrap();
    let found = kubectl.get(&["namespace", namespace]).unwrap();
    let level = &found["metadata"]["labels"]["pod-security.kubernetes.io/enforce"];
    assert_eq!(level, "restricted", "{namespace}");
    let claim = job["spec"]["storage"]["persistentVolumeClaim"]["claimName"].as_str().unwrap();
    let claim = kubectl.in_namespace(namespace).get(&["persistentvolumeclaim", claim]).unwrap();
    assert_eq!(claim["spec"]["accessModes"], json!(["ReadWriteMany"]), "{namespace}");
    if let Some(class) = job["spec"]["scheduling"]["priorityClassName"].as_str() {
        let class = cluster().kubectl().get(&["priorityclass", class]).unwrap();
        assert_eq!(class["value"], 1000);
    }
}

#[test]
fn the_check_of_pull_requests_accepts_the_overlays() {
    let output = user("default").shell(&block("rljob validate")).unwrap();
    assert_eq!(output.lines().count(), 2, "{output}");
}

#[test]
fn the_patch_of_argo_cds_config_map_keeps_other_settings() {
    let kubectl = cluster().kubectl().in_namespace("argocd");
    kubectl.run(&["create", "namespace", "argocd"]).unwrap();
    let existing = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-cm"},
        "data": {"url": "https://argocd.example.com"},
    });
    kubectl.apply(&existing.to_string()).unwrap();
    user("default").shell(&block("argocd-cm")).unwrap();
    let data = kubectl.get(&["configmap/argocd-cm"]).unwrap()["data"].take();
    let patch: Value = serde_yaml::from_str(&read(ARGOCD_CM)).unwrap();
    let mut expected = json!({"url": "https://argocd.example.com"});
    merge(&mut expected, &patch["data"]);
    assert_eq!(data, expected);
    let health = "resource.customizations.health.rljob.dev_RLJob";
    assert_eq!(data[health], read("manifests/gitops/argocd/health.lua"));
}
