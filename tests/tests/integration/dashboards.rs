//! Grafana dashboards of the chart. `control_plane::alerts` and `e2e::pods` run their queries.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use rljob_tests::Prometheus;
use rljob_tests::files::workspace;
use rljob_tests::process::{run, wait_until};
use serde_json::{Value, json};

use crate::chart::render;

const NAMES: [&str; 3] = ["fleet", "job", "operator"];

fn read(name: &str) -> String {
    fs::read_to_string(workspace().join(format!("charts/rljob/files/dashboards/{name}.json")))
        .unwrap()
}

fn panels(name: &str) -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(&read(name)).unwrap();
    dashboard["panels"].as_array().unwrap().clone()
}

/// Waits until every query of a dashboard has data in this Prometheus, for a job.
pub(crate) fn wait_for_data(prometheus: &Prometheus, name: &str, (namespace, job): (&str, &str)) {
    let variables =
        [("$namespace", namespace), ("$job", job), ("$__rate_interval", "10s"), ("$__all", ".*")];
    for panel in panels(name) {
        for target in panel["targets"].as_array().unwrap() {
            let query = variables
                .iter()
                .fold(target["expr"].as_str().unwrap().to_owned(), |query, (variable, value)| {
                    query.replace(variable, value)
                });
            let title = format!("{name}: {}: {query}", panel["title"]);
            wait_until(&title, std::time::Duration::from_secs(30), || {
                Ok(prometheus.series(&query)? > 0)
            })
            .unwrap_or_else(|error| panic!("{error:#}\n{}", prometheus.output()));
        }
    }
}

#[test]
fn the_files_are_those_that_the_script_writes() {
    let folder = tempfile::tempdir().unwrap();
    let script = workspace().join("scripts/dashboards.py");
    run(Command::new("python3").arg(script).arg(folder.path())).unwrap();
    for name in NAMES {
        let written = fs::read_to_string(folder.path().join(format!("{name}.json"))).unwrap();
        assert!(written == read(name), "run `make dashboards`: {name}.json is of another script");
    }
}

#[test]
fn the_config_map_has_all_dashboards_and_the_labels_of_the_sidecar() {
    let objects = render(&json!({"dashboards": {"enabled": true}}));
    let map = objects.iter().find(|object| object["kind"] == "ConfigMap").unwrap();
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let expected: serde_json::Map<String, Value> =
        NAMES.iter().map(|name| (format!("rljob-{name}.json"), json!(read(name)))).collect();
    assert_eq!(map["data"], Value::Object(expected));
    assert!(render(&json!({})).iter().all(|object| object["kind"] != "ConfigMap"));
}

#[test]
fn panels_have_queries_and_descriptions_and_do_not_overlap() {
    for name in NAMES {
        let mut cells = BTreeSet::new();
        for panel in panels(name) {
            let size = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            let (x, y) = (size("x"), size("y"));
            assert!(x + size("w") <= 24, "{name}: {panel}");
            for column in x..x + size("w") {
                for row in y..y + size("h") {
                    assert!(cells.insert((column, row)), "{name}: {panel}");
                }
            }
            assert!(!panel["targets"].as_array().unwrap().is_empty(), "{name}: {panel}");
            assert!(panel["description"].as_str().unwrap().ends_with('.'), "{name}: {panel}");
        }
    }
}
