//! Notes of a release: warnings about values that make a release or its alerts useless; rules of
//! alerts that can fire.

use rljob_tests::Helm;
use serde_json::{Value, json};

use super::NAMESPACE;
use super::values::part;

const WARNING: &str = "WARNING: ";

/// The warnings that Helm prints after an installation with these values, as one line each.
fn warnings(values: &Value) -> Vec<String> {
    let helm = Helm::offline(NAMESPACE).unwrap();
    let install = ["install", "rljob", &Helm::chart(), "--dry-run=client", "--values=-"];
    let output = helm.run_with_input(&install, &values.to_string()).unwrap();
    let (_, notes) = output.split_once("NOTES:\n").unwrap();
    let paragraphs = notes.split("\n\n").filter_map(|text| text.strip_prefix(WARNING));
    paragraphs.map(|text| text.trim().replace('\n', " ")).collect()
}

#[test]
fn a_release_warns_of_an_image_and_of_alerts_that_do_not_exist() {
    let image = json!({"repository": "registry.example/rljob"});
    let no_image = "image.repository is not set. No registry has the image rljob:0.1.0: build it, \
        push it and name it in the values of each upgrade (docs/install.md).";
    let no_scrape = "the alert RLJobOperatorDown fires unless a Prometheus scrapes port 8082 of \
        the operator pods. podMonitor.enabled creates a PodMonitor of them.";
    let no_metrics = "alerts on jobs are left out: jobs.metrics is false.";
    let (on, off) = (json!({"enabled": true}), json!({"metrics": false}));
    for (values, expected) in [
        (json!({}), vec![no_image]),
        (json!({"image": image}), vec![]),
        (json!({"image": image, "jobs": off}), vec![]),
        (json!({"image": image, "prometheusRule": on}), vec![no_scrape]),
        (json!({"image": image, "prometheusRule": on, "podMonitor": on}), vec![]),
        (
            json!({"image": image, "prometheusRule": on, "podMonitor": on, "jobs": off}),
            vec![no_metrics],
        ),
    ] {
        assert_eq!(warnings(&values), expected, "{values}");
    }
}

#[test]
fn alerts_on_metrics_that_the_operator_does_not_serve_are_left_out() {
    let values = json!({"prometheusRule": {"enabled": true}, "jobs": {"metrics": false}});
    let rule = "PrometheusRule rljob-system/rljob-operator";
    let names = |group: u8| {
        let Value::Array(rules) = part(&values, rule, &format!("/spec/groups/{group}/rules"))
        else {
            panic!("group {group} has no rules");
        };
        rules.iter().map(|rule| rule["alert"].clone()).collect::<Vec<Value>>()
    };
    assert_eq!(names(0), ["RLJobOperatorDown", "RLJobOperatorWatchFailing"]);
    assert_eq!(names(1), ["RLJobGpusIdle"]);
}
