//! `rljob dashboard --cluster`: the page of a coordinator on a real node, in a real browser, over a
//! forwarded port.

use std::path::Path;
use std::process::Command;

use rljob_tests::Namespace;
use rljob_tests::files::binary;
use serde_json::json;

use super::{NODES, Run, cluster};
use crate::dashboard::{Dashboard, open, points};

#[test]
fn a_running_job_is_followed_over_a_forwarded_port() {
    let _nodes = NODES.read();
    let cluster = cluster();
    let namespace = Namespace::create(cluster, "watched").unwrap();
    let text = include_str!("suspend.yaml").replace("name: pause", "name: watched");
    let run = Run::start(cluster, &namespace, &text, "watched");
    run.wait_for_steps(2);
    let kubeconfig = cluster.kubeconfig();
    let target = |job| of_cluster(kubeconfig.as_ref(), &namespace.name, job);

    let dashboard = Dashboard::of(&target("watched"));
    let mut browser = open(&dashboard.url);
    let steps = |browser: &mut rljob_tests::browser::Browser| {
        points(browser, "Loss")[0].as_u64().unwrap_or_default()
    };
    let first = steps(&mut browser);
    assert!(first >= 2, "{first}");
    let moved =
        format!("Number(document.querySelector('#state').innerText.split(' ')[1]) > {first}");
    browser.wait_for(&moved).unwrap();
    let title = browser.evaluate("document.querySelector('h1').textContent").unwrap();
    assert_eq!(title, json!(format!("{}/watched", namespace.name)));
    let trainers = "[...document.querySelectorAll('#now tbody th')].map((it) => it.textContent)";
    assert_eq!(browser.evaluate(trainers).unwrap(), json!(["watched-trainer-0"]));

    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let output = format!("--output={}", page.display());
    let report = ["report"].iter().map(ToString::to_string).chain(target("watched").split_off(1));
    let mut command = Command::new(binary("rljob").unwrap());
    let written = command.args(report).arg(output).output().unwrap();
    assert!(written.status.success(), "{written:?}");
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains(&format!("\"name\":\"{}/watched\"", namespace.name)), "{text:.2000}");

    // A new pod is reached without a restart of the command.
    run.lose_pod("coordinator");
    let seen = steps(&mut browser);
    browser.wait_for(&moved.replace(&first.to_string(), &(seen + 2).to_string())).unwrap();

    let missing = Command::new(binary("rljob").unwrap()).args(target("absent")).output().unwrap();
    let error = String::from_utf8(missing.stderr).unwrap();
    assert!(error.contains("failed to get RLJob absent"), "{error}");
    namespace.kubectl.run(&["delete", "rljob/watched"]).unwrap();
}

/// Arguments of `rljob` for a job of a cluster.
fn of_cluster(kubeconfig: &Path, namespace: &str, job: &str) -> Vec<String> {
    let kubeconfig = kubeconfig.display().to_string();
    ["dashboard", "--cluster", "--kubeconfig", &kubeconfig, "--namespace", namespace, job]
        .map(ToOwned::to_owned)
        .to_vec()
}
