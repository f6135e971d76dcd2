//! `kubectl rljob` and `rljob --cluster` with the real kubectl on the API server.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use rljob_tests::Namespace;
use rljob_tests::files::{binary, workspace};
use rljob_tests::process::{run, wait_until};
use serde_json::{Value, json};

use super::operator::{
    LIMIT, Operator, account_config, namespace_with, wait_for_condition, wait_for_pods,
};
use super::simulated_pods::SimulatedPods;
use super::{cluster, job};

pub(super) use self::plugin::Plugin;
use self::plugin::kubectl_with;

mod plugin;

fn set_status(namespace: &Namespace, status: &Value) {
    let path =
        format!("/apis/rljob.dev/v1alpha1/namespaces/{}/rljobs/sample/status", namespace.name);
    cluster().api().unwrap().patch(&path, &json!({ "status": status })).unwrap();
}

#[test]
fn kubectl_finds_the_plugin_and_completes_its_command_lines() {
    let namespace = Namespace::create(cluster(), "plugin").unwrap();
    namespace.kubectl.apply(&job().to_string()).unwrap();
    let plugin = Plugin::install();
    let help = run(&mut plugin.kubectl(&["rljob", "status", "--help"])).unwrap();
    assert!(help.contains("Usage: kubectl rljob status [OPTIONS] [NAME]"), "{help}");
    let script = run(&mut plugin.kubectl(&["rljob", "completion", "kubectl"])).unwrap();
    let path = plugin.0.path().join("kubectl_complete-rljob");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let complete = |words: &[&str]| {
        let arguments = [&["__complete", "rljob"], words].concat();
        run(&mut plugin.kubectl(&arguments)).unwrap()
    };
    assert_eq!(complete(&["stat"]), "status\n:4\n");
    assert_eq!(complete(&["status", "-n", &namespace.name, ""]), "sample\n:4\n");

    let none = plugin.run(&namespace, &["checkpoints", "list", "sample"]).unwrap_err();
    assert!(none.contains("RLJob sample has no complete checkpoint yet"), "{none}");
    let checkpoint = json!({"step": 2, "path": "checkpoints/step-2"});
    set_status(&namespace, &json!({ "checkpoint": checkpoint }));
    let newest = plugin.run(&namespace, &["checkpoints", "list", "sample"]).unwrap();
    let expected = "NAME    STEP  AGE  FOLDER\nsample  2     -    checkpoints/step-2\n";
    assert_eq!(newest, expected);
    let list = ["checkpoints", "list", "sample", "--output=json"];
    let rows: Value = serde_json::from_str(&plugin.run(&namespace, &list).unwrap()).unwrap();
    let row = json!({"name": "sample", "step": 2, "time": null, "folder": "checkpoints/step-2"});
    assert_eq!(rows, json!([row]));
    let verify = plugin.run(&namespace, &["checkpoints", "verify", "sample"]).unwrap_err();
    assert!(verify.contains("failed to run a program in pod sample-coordinator-0"), "{verify}");

    let context = plugin.run(&namespace, &["status", "--context", "other"]).unwrap_err();
    assert!(context.contains("failed to use the context other of the kubeconfig"), "{context}");
    for (arguments, other) in [
        (&["trace"][..], "use `rljob trace`"),
        (&["pass-rates"], "use `rljob pass-rates`"),
        (&["evaluate"], "use `rljob evaluate`"),
    ] {
        let local = run(&mut plugin.kubectl(&[&["rljob"], arguments].concat())).unwrap_err();
        assert!(local.to_string().contains(other), "{local}");
    }
    let starting = plugin.run(&namespace, &["report", "sample"]).unwrap_err();
    let pod = "failed to forward a port of pod sample-coordinator-0 in namespace";
    assert!(starting.contains(pod) && starting.contains("it does not exist"), "{starting}");
}

#[test]
fn the_kubeconfig_and_its_context_select_cluster_and_namespace() {
    let namespace = Namespace::create(cluster(), "context").unwrap();
    namespace.kubectl.apply(&job().to_string()).unwrap();
    let text = fs::read_to_string(cluster().kubeconfig()).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let context = json!({
        "name": "here",
        "context": {"cluster": "test", "user": "admin", "namespace": namespace.name},
    });
    config["contexts"].as_array_mut().unwrap().push(context);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config");
    fs::write(&path, config.to_string()).unwrap();
    let path = path.display().to_string();
    let status = |more: &[&str]| {
        let mut command = Command::new(binary("rljob").unwrap());
        command.args(["status", "--cluster", "--output=json", "--kubeconfig", &path]).args(more);
        serde_json::from_str::<Value>(&run(&mut command).unwrap()).unwrap()
    };
    let expected = json!([{
        "name": format!("{}/sample", namespace.name), "status": "Unknown", "step": 0,
        "totalSteps": 3, "reward": null, "message": "",
    }]);
    assert_eq!(status(&["--context", "here"]), expected);
    assert_eq!(status(&["--namespace", &namespace.name]), expected);
    assert_eq!(status(&["--namespace", "kube-system"]), json!([]));
}

#[test]
fn the_krew_manifest_describes_an_archive_with_the_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let script = workspace().join("scripts/krew.sh");
    let mut command = Command::new(script);
    command.arg(binary("rljob").unwrap()).arg(folder.path());
    let path = run(&mut command).unwrap();
    let text = fs::read_to_string(path.trim()).unwrap();
    let manifest: Value = serde_yaml::from_str(&text).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let archive = format!("rljob-{version}-linux-amd64.tar.gz");
    let sum = run(Command::new("sha256sum").arg(folder.path().join(&archive))).unwrap();
    let spec = &manifest["spec"];
    assert_eq!(
        (&manifest["kind"], &manifest["metadata"]["name"], &spec["version"]),
        (&json!("Plugin"), &json!("rljob"), &json!(format!("v{version}")))
    );
    let expected = json!([{
        "selector": {"matchLabels": {"os": "linux", "arch": "amd64"}},
        "uri": format!("https://github.com/rljob/rljob/releases/download/v{version}/{archive}"),
        "sha256": sum.split(' ').next().unwrap(),
        "files": [{"from": "rljob", "to": "."}, {"from": "LICENSE", "to": "."}],
        "bin": "rljob",
    }]);
    assert_eq!(spec["platforms"], expected);
    // krew unpacks the archive and links the program under the plugin's name.
    run(Command::new("tar").args(["-xzf", &archive]).current_dir(folder.path())).unwrap();
    let plugins = folder.path().join("bin");
    fs::create_dir(&plugins).unwrap();
    symlink(folder.path().join("rljob"), plugins.join("kubectl-rljob")).unwrap();
    let answer = run(&mut kubectl_with(&plugins, &["rljob", "--version"])).unwrap();
    assert_eq!(answer, format!("kubectl rljob {version}\n"));
}

#[test]
fn status_shows_a_job_with_pods_engines_and_what_it_waits_for() {
    let patch = json!({"spec": {"trainer": {"replicas": 1}}});
    let namespace = namespace_with("tree", &patch);
    let plugin = Plugin::install();
    let unseen = plugin.run(&namespace, &["status", "sample"]).unwrap();
    assert!(unseen.contains("the operator has not seen this RLJob"), "{unseen}");

    let _operator = Operator::start(&namespace, "rljob:a");
    wait_for_pods(&namespace, 3);
    let waiting = plugin.run(&namespace, &["status", "sample"]).unwrap();
    assert!(waiting.contains("0 of 1 ready"), "{waiting}");
    assert!(waiting.contains("waits for"), "{waiting}");

    let simulated = SimulatedPods::start(&namespace);
    simulated.run.lock().step = 1;
    wait_for_condition(&namespace, "Ready");
    let text = plugin.run(&namespace, &["status", "sample", "--output=yaml"]).unwrap();
    let view: Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!(view["status"], "Running", "{text}");
    assert_eq!(view["progress"]["totalSteps"], 3, "{text}");
    let pods = |role: &str| {
        let roles = view["roles"].as_array().unwrap();
        roles.iter().find(|view| view["role"] == role).unwrap()["pods"].clone()
    };
    let engine = json!([{
        "name": "sample-inference-0", "node": null, "state": "Ready", "restarts": 0,
        "engine": "Ready", "weights": "step-0.attempt-0",
    }]);
    assert_eq!(pods("inference"), engine, "{text}");
    let tree = plugin.run(&namespace, &["status", "sample"]).unwrap();
    let line = "│  └─ sample-inference-0  Ready  -  engine Ready, weights step-0.attempt-0\n";
    assert!(tree.contains(line), "{tree}");

    // Without a terminal, it is printed once.
    let top = plugin.run(&namespace, &["top", "sample"]).unwrap();
    assert!(top.contains(line), "{top}");

    // In a terminal, it is drawn until the job has ended.
    let finish = || simulated.run.lock().end = Some("Finished");
    let frames = plugin.frames(&namespace, "top sample", finish);
    assert!(frames[..2].iter().all(|frame| frame.contains(line)), "{frames:#?}");
    assert!(frames.last().unwrap().contains("Completed"), "{frames:#?}");
    let watched = plugin.run(&namespace, &["status", "sample", "--watch"]).unwrap();
    assert!(watched.trim_end().lines().any(|line| line.contains("Completed")), "{watched}");
    let missing = plugin.run(&namespace, &["status", "none"]).unwrap_err();
    assert!(missing.contains("failed to get RLJob none in namespace"), "{missing}");
    assert!(missing.contains("it does not exist"), "{missing}");
}

/// Values of the job's spec and of the manager of a field's last change.
fn suspended(namespace: &Namespace) -> Value {
    namespace.kubectl.get(&["rljob/sample"]).unwrap()["spec"]["suspend"].take()
}

/// Field managers by operation.
fn managers(namespace: &Namespace) -> Vec<String> {
    let job = namespace.kubectl.get(&["rljob/sample", "--show-managed-fields"]).unwrap();
    let entries = job["metadata"]["managedFields"].as_array().unwrap().iter();
    let mut names: Vec<String> =
        entries.map(|entry| format!("{} {}", entry["manager"], entry["operation"])).collect();
    names.sort();
    names
}

#[test]
fn a_file_of_kubectl_apply_reverts_a_suspension_only_if_it_has_the_field() {
    let namespace = Namespace::create(cluster(), "applied").unwrap();
    let plugin = Plugin::install();
    let done = "rljob sample suspended: it completes its step, writes a checkpoint and deletes \
                its pods\n";
    let warning = "warning: kubectl-client-side-apply sets spec.suspend and may revert this\n";
    let suspended_after = |source: &Value| {
        namespace.kubectl.apply(&source.to_string()).unwrap();
        let answer = plugin.run(&namespace, &["suspend", "sample"]).unwrap();
        namespace.kubectl.run(&["delete", "rljob/sample", "--wait"]).unwrap();
        answer
    };
    let mut source = job();
    assert_eq!(suspended_after(&source), done);
    source["spec"]["suspend"] = json!(false);
    assert_eq!(suspended_after(&source), format!("{done}{warning}"));
}

#[test]
fn jobs_are_suspended_resumed_and_scaled_and_tools_that_may_revert_it_are_named() {
    let namespace = Namespace::create(cluster(), "change").unwrap();
    let mut source = job();
    source["spec"]["suspend"] = json!(false);
    let apply = ["apply", "--server-side", "--field-manager=gitops", "--filename=-"];
    namespace.kubectl.run_with_input(&apply, &source.to_string()).unwrap();
    let plugin = Plugin::install();
    let answer = plugin.run(&namespace, &["suspend", "sample"]).unwrap();
    assert_eq!(
        answer,
        "rljob sample suspended: it completes its step, writes a checkpoint and deletes its pods\n\
         warning: gitops sets spec.suspend and may revert this\n"
    );
    assert_eq!(suspended(&namespace), true);
    assert!(managers(&namespace).contains(&"\"rljob-cli\" \"Update\"".to_owned()));
    let again = plugin.run(&namespace, &["suspend", "sample"]).unwrap_err();
    assert!(again.contains("RLJob sample is already suspended"), "{again}");
    let answer = plugin.run(&namespace, &["resume", "sample"]).unwrap();
    // The first command took the field from `gitops`, whose next apply takes it back.
    assert_eq!(answer, "rljob sample resumed: it continues from its newest checkpoint\n");
    assert_eq!(suspended(&namespace), false);

    let answer = plugin.run(&namespace, &["scale", "sample", "--replicas=3"]).unwrap();
    assert_eq!(answer, "rljob sample scaled from 1 to 3 engines\n");
    let again = plugin.run(&namespace, &["scale", "sample", "--replicas=3"]).unwrap_err();
    assert!(again.contains("already has spec.inference.replicas 3"), "{again}");
    let rejected = plugin.run(&namespace, &["scale", "sample", "--replicas=100000"]).unwrap_err();
    assert!(rejected.contains("spec.inference.replicas"), "{rejected}");
    let missing = plugin.run(&namespace, &["resume", "none"]).unwrap_err();
    assert!(missing.contains("it does not exist"), "{missing}");
}

#[test]
fn a_job_that_has_ended_is_not_changed_and_its_events_are_in_order() {
    let namespace = namespace_with("ended", &json!({}));
    let _operator = Operator::start(&namespace, "rljob:a");
    let simulated = SimulatedPods::start(&namespace);
    wait_for_condition(&namespace, "Ready");
    simulated.run.lock().end = Some("Finished");
    wait_for_condition(&namespace, "Succeeded");
    let plugin = Plugin::install();
    let error = |arguments: &[&str]| plugin.run(&namespace, arguments).unwrap_err();
    for arguments in [&["suspend", "sample"][..], &["scale", "sample", "--replicas=3"]] {
        let error = error(arguments);
        assert!(error.contains("its run has ended (Completed)"), "{error}");
    }
    let logs = error(&["logs", "sample"]);
    assert!(logs.contains("RLJob sample has no pods (Completed)"), "{logs}");
    let report = error(&["report", "sample"]);
    let place = format!("read its run directory, {}/sample in its storage", namespace.name);
    assert!(report.contains("RLJob sample has ended (Completed)"), "{report}");
    assert!(report.contains(&place), "{report}");
    let events = plugin.run(&namespace, &["events", "sample"]).unwrap();
    let position = |part: &str| events.find(part).unwrap_or_else(|| panic!("{part}: {events}"));
    assert!(events.starts_with("AGE"), "{events}");
    assert!(position("rljob/sample") < position("Completed"), "{events}");
    assert!(events.contains("statefulset/sample-trainer"), "{events}");
}

/// A kubeconfig for a new service account whose Role has these rules.
fn account(namespace: &Namespace, rules: &Value) -> String {
    let metadata = json!({"name": "person"});
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata,
        "rules": rules,
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "person"},
        "subjects": [{
            "kind": "ServiceAccount", "name": "person", "namespace": namespace.name,
        }],
    });
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
    for object in [account, role, binding] {
        namespace.kubectl.apply(&object.to_string()).unwrap();
    }
    account_config(cluster(), (&namespace.name, "person"), &namespace.name, None)
}

#[test]
fn a_missing_permission_is_named() {
    let namespace = namespace_with("forbidden", &json!({}));
    let rules = json!([{"apiGroups": ["rljob.dev"], "resources": ["rljobs"], "verbs": ["get"]}]);
    let config = account(&namespace, &rules);
    let plugin = Plugin::install();
    let person = |arguments: &[&str]| {
        let arguments = [arguments, &["--kubeconfig", &config]].concat();
        plugin.run(&namespace, &arguments)
    };
    wait_until("the Role to be effective", LIMIT, || Ok(person(&["status", "sample"]).is_ok()))
        .unwrap();
    let tree = person(&["status", "sample"]).unwrap();
    assert!(tree.contains("failed to list pods"), "{tree}");
    assert!(tree.contains("cannot list resource \"pods\""), "{tree}");
    let user = format!("User \"system:serviceaccount:{}:person\"", namespace.name);
    let checkpoint = json!({"step": 2, "path": "checkpoints/step-2.attempt-0"});
    set_status(&namespace, &json!({"checkpoints": [checkpoint]}));
    for (arguments, missing) in [
        (&["suspend", "sample"][..], "cannot patch resource \"rljobs\""),
        (&["scale", "sample", "--replicas=2"], "cannot patch resource \"rljobs/scale\""),
        (&["events", "sample"], "cannot list resource \"events\""),
        (&["report", "sample"], "cannot get resource \"pods/portforward\""),
        (&["checkpoints", "copy", "sample", "--to=/nowhere"], "resource \"pods/exec\""),
        (&["logs", "sample"], "cannot list resource \"pods\""),
        (&["status"], "cannot list resource \"rljobs\""),
    ] {
        let error = person(arguments).unwrap_err();
        assert!(error.contains("a permission is missing: "), "{error}");
        assert!(error.contains(&user) && error.contains(missing), "{error}");
    }
}
