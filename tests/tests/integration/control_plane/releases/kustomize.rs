//! The kustomize base and its components, built by kubectl.

use std::fs;
use std::process::Command;

use rljob_tests::files::workspace;
use rljob_tests::process::run;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::control_plane::{as_floats, cluster};
use crate::documents::objects_of;

/// The objects of an overlay beside a copy of `manifests`.
fn build(overlay: &str) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let manifests = workspace().join("manifests");
    run(Command::new("cp").arg("--recursive").arg(manifests).arg(folder.path())).unwrap();
    let path = folder.path().join("overlay");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("kustomization.yaml"), overlay).unwrap();
    objects(&cluster().kubectl().run(&["kustomize", &path.display().to_string()]).unwrap())
}

/// The objects of a YAML stream, in the order of their kinds and names.
fn objects(text: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(text);
    // kubectl writes 1.0 as 1.
    let mut objects: Vec<Value> =
        documents.map(|document| as_floats(Value::deserialize(document).unwrap())).collect();
    objects.sort_by_key(order);
    objects
}

fn order(object: &Value) -> String {
    format!("{} {}", object["kind"], object["metadata"]["name"])
}

fn read(file: &str) -> Vec<Value> {
    objects(&fs::read_to_string(workspace().join(file)).unwrap())
}

fn deployment(objects: &[Value]) -> &Value {
    objects.iter().find(|object| object["kind"] == "Deployment").unwrap()
}

#[test]
fn the_base_has_the_objects_of_install_yaml() {
    assert_eq!(build("resources: [../manifests]\n"), read("manifests/install.yaml"));
}

#[test]
fn the_overlay_of_the_documentation_sets_both_images() {
    let overlays = objects_of("kustomize.config.k8s.io/v1beta1");
    assert_eq!(overlays.len(), 1);
    let mut built = build(&overlays[0]);
    let image = "registry.example/rljob:0.1.0";
    let mut expected = read("manifests/install.yaml");
    for object in expected.iter_mut().filter(|object| object["kind"] == "Deployment") {
        object["spec"]["replicas"] = json!(3.0);
        let container = &mut object["spec"]["template"]["spec"]["containers"][0];
        container["image"] = json!(image);
        container["command"][1] = json!(format!("--image={image}"));
    }
    built.retain(|object| object["kind"] != "PodMonitor");
    assert_eq!(built, expected);
}

#[test]
fn components_match_the_values_of_the_chart() {
    let template = |values: &Value| -> Vec<Value> {
        crate::chart::render(values).into_iter().map(as_floats).collect()
    };
    let with = |components: &str| {
        let folder = |name: &str| format!("../manifests/components/{name}");
        let folders: Vec<String> = components.split(' ').map(folder).collect();
        let folders = folders.join(", ");
        build(&format!("resources: [../manifests]\ncomponents: [{folders}]\n"))
    };
    let sorted = |mut objects: Vec<Value>| {
        objects.retain(|object| object["kind"] != "Namespace");
        objects.sort_by_key(order);
        objects
    };
    let monitoring = json!({"kubernetes.io/metadata.name": "monitoring"});
    for (component, mut value) in [
        ("pod-monitor", json!({"podMonitor": {"enabled": true}})),
        (
            "pod-monitor-jobs scrapers",
            json!({
                "podMonitor": {"jobs": true},
                "jobs": {"scrapers": {"namespaceSelector": monitoring}},
            }),
        ),
        ("prometheus-rule", json!({"prometheusRule": {"enabled": true}})),
        ("dashboards", json!({"dashboards": {"enabled": true}})),
        ("kueue", json!({"kueue": {"enabled": true}})),
        ("gang-native", json!({"gangSchedulers": ["native"]})),
        ("gang-coscheduling", json!({"gangSchedulers": ["coscheduling"]})),
        ("gang-volcano", json!({"gangSchedulers": ["volcano"]})),
        ("scrapers", json!({"jobs": {"scrapers": {"namespaceSelector": monitoring}}})),
    ] {
        value["crd"] = json!({"keep": false});
        assert_eq!(sorted(with(component)), sorted(template(&value)), "{component}");
    }
    let ids = json!({
        "runAsUser": null, "runAsGroup": null, "fsGroup": null, "fsGroupChangePolicy": null,
    });
    let rendered = template(&json!({ "podSecurityContext": ids }));
    assert_eq!(deployment(&with("openshift")), deployment(&rendered));
}

#[test]
fn the_component_of_another_namespace_changes_all_references_to_it() {
    let built = build(
        "resources: [../manifests]\n\
         components: [../manifests/components/pod-monitor, ../manifests/components/namespace]\n",
    );
    let (monitors, mut others): (Vec<_>, Vec<_>) =
        built.into_iter().partition(|object| object["kind"] == "PodMonitor");
    assert_eq!(monitors[0]["metadata"]["namespace"], "rljob");
    let text = fs::read_to_string(workspace().join("manifests/install.yaml")).unwrap();
    let mut expected = objects(&text.replace("rljob-system", "rljob"));
    for list in [&mut others, &mut expected] {
        list.iter_mut().for_each(trim_expressions);
    }
    assert_eq!(others, expected);
}

/// Folds white space in expressions: kustomize writes their lines in another way.
fn trim_expressions(object: &mut Value) {
    match object {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "expression" => {
                        *text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                    }
                    value => trim_expressions(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(trim_expressions),
        _ => {}
    }
}

#[test]
fn the_component_cuda_sets_the_image_of_the_trainers_of_jobs() {
    let jobs = "resources: [../manifests/gitops/jobs/base]\n";
    let built = build(&format!("{jobs}components: [../manifests/components/cuda]\n"));
    let mut expected = build(jobs);
    for job in &mut expected {
        job["spec"]["trainer"]["image"] = json!("rljob-cuda:0.1.0");
    }
    assert_eq!(built, expected);
}
