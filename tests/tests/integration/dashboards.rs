//! Grafana dashboards of the chart. `control_plane::alerts` and `e2e::monitors` run their queries.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use rljob_tests::Prometheus;
use rljob_tests::files::workspace;
use rljob_tests::metric_types::documented;
use rljob_tests::process::{run, wait_until};
use serde_json::{Value, json};

use crate::chart::render;

/// Label of a pod's metrics that names its job.
const JOB_LABEL: &str = "rljob_dev_job";
const NAMES: [&str; 3] = ["fleet", "job", "operator"];

fn read(name: &str) -> String {
    fs::read_to_string(workspace().join(format!("charts/rljob/files/dashboards/{name}.json")))
        .unwrap()
}

fn dashboard(name: &str) -> Value {
    serde_json::from_str(&read(name)).unwrap()
}

fn panels(name: &str) -> Vec<Value> {
    dashboard(name)["panels"].as_array().unwrap().clone()
}

/// Selector and label of `label_values(selector, label)`.
fn arguments(definition: &str) -> (&str, &str) {
    let inner = definition.strip_prefix("label_values(").and_then(|it| it.strip_suffix(')'));
    inner.and_then(|it| it.rsplit_once(", ")).unwrap_or_else(|| panic!("{definition}"))
}

/// Asserts that the choices of the variables of a dashboard have the values of a job.
fn check_variables(prometheus: &Prometheus, name: &str, (namespace, job): (&str, &str)) {
    for variable in dashboard(name)["templating"]["list"].as_array().unwrap() {
        let Some(definition) = variable["definition"].as_str() else {
            assert_eq!(variable["type"], "datasource", "{name}: {variable}");
            continue;
        };
        let (selector, label) = arguments(definition);
        let selector = selector.replace("$namespace", namespace);
        let values = prometheus.label_values(&selector, label).unwrap();
        let expected = if variable["name"] == "job" { job } else { namespace };
        assert!(values.as_array().unwrap().contains(&json!(expected)), "{definition}: {values}");
    }
}

/// Waits until every query of a dashboard has data in this Prometheus, for a job, and checks its
/// variables.
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
    check_variables(prometheus, name, (namespace, job));
}

/// A query whose default is 0 has data whatever its metric is called.
#[test]
fn queries_are_of_metrics_that_exist() {
    let tables =
        ["Metric", "Metric of the coordinator"].map(|heading| documented(heading).unwrap());
    let is_known = |metric: &str| tables.iter().any(|table| table.contains_key(metric));
    let is_name = |symbol: char| symbol.is_ascii_alphanumeric() || symbol == '_';
    for name in NAMES {
        for panel in panels(name) {
            for target in panel["targets"].as_array().unwrap() {
                let query = target["expr"].as_str().unwrap();
                let words = query.split(|symbol| !is_name(symbol));
                for metric in words.filter(|it| it.starts_with("rljob_") && *it != JOB_LABEL) {
                    let series = ["_bucket", "_count", "_sum"];
                    let histogram = series.iter().find_map(|suffix| metric.strip_suffix(suffix));
                    let exists = is_known(metric) || histogram.is_some_and(is_known);
                    assert!(exists, "{name}: {query}");
                }
            }
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
