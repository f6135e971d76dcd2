//! Rules of the chart, checked and unit-tested by promtool: each alert fires, does not fire in a
//! neighbouring healthy case, and has a runbook page. `control_plane::alerts` fires them by faults,
//! and `e2e::monitors` on nodes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rljob_tests::files::{prometheus, workspace};
use rljob_tests::process::run;
use serde_json::{Value, json};

use crate::chart::render;
use crate::documents::objects_of;

fn rules_file() -> PathBuf {
    workspace().join("charts/rljob/files/rules.yaml")
}

fn yaml(path: &Path) -> Value {
    serde_yaml::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Elements of a list.
fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The rules with a name of this kind: `alert` or `record`.
fn rules<'a>(file: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    items(&file["groups"])
        .flat_map(|group| items(&group["rules"]))
        .filter(move |rule| rule[kind].is_string())
}

fn names(file: &Value, kind: &str) -> BTreeSet<String> {
    rules(file, kind).map(|rule| text(&rule[kind]).to_owned()).collect()
}

fn promtool(arguments: &[&str]) -> String {
    let mut command = Command::new(prometheus("promtool").unwrap());
    run(command.args(arguments).current_dir(workspace().join("tests/prometheus"))).unwrap()
}

/// Unit tests of rules.
fn test_files() -> Vec<PathBuf> {
    let entries = fs::read_dir(workspace().join("tests/prometheus")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_string_lossy().ends_with("_test.yaml")).collect()
}

#[test]
fn promtool_accepts_the_rules_and_their_style() {
    let output = promtool(&[
        "check",
        "rules",
        "--lint=all",
        "--lint-fatal",
        &rules_file().display().to_string(),
    ]);
    let file = yaml(&rules_file());
    let count = rules(&file, "alert").count() + rules(&file, "record").count();
    assert!(output.contains(&format!("SUCCESS: {count} rules found")), "{output}");
}

#[test]
fn promtool_accepts_the_rules_of_the_documents() {
    let objects = objects_of("monitoring.coreos.com/v1");
    assert!(!objects.is_empty());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    for object in objects {
        let object: Value = serde_yaml::from_str(&object).unwrap();
        assert_eq!(object["kind"], "PrometheusRule");
        // JSON is YAML.
        fs::write(&path, object["spec"].to_string()).unwrap();
        promtool(&["check", "rules", "--lint=all", "--lint-fatal", &path.display().to_string()]);
    }
}

#[test]
fn the_unit_tests_of_the_rules_pass() {
    let files = test_files();
    assert!(!files.is_empty());
    let paths: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let arguments = ["test", "rules"].into_iter().chain(paths.iter().map(String::as_str));
    promtool(&arguments.collect::<Vec<_>>());
}

#[test]
fn each_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not() {
    let (mut fires, mut stays) = (BTreeSet::new(), BTreeSet::new());
    for file in test_files().iter().map(|path| yaml(path)) {
        let tests = items(&file["tests"]).flat_map(|test| items(&test["alert_rule_test"]));
        for test in tests {
            let set = if test["exp_alerts"].is_array() { &mut fires } else { &mut stays };
            set.insert(text(&test["alertname"]).to_owned());
        }
    }
    let alerts = names(&yaml(&rules_file()), "alert");
    assert_eq!((&fires, &stays), (&alerts, &alerts));
}

/// The groups of the chart's PrometheusRule, with a `for` of a second, ten seconds in place of half
/// an hour, and replacements in their expressions.
pub(crate) fn short_rules(replacements: &[(&str, &str)]) -> Value {
    let mut spec = rendered(&json!({}));
    for group in spec["groups"].as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap() {
            if let Some(duration) = rule.get_mut("for") {
                *duration = json!("1s");
            }
            let short = text(&rule["expr"]).replace("[30m]", "[10s]");
            let short = replacements.iter().fold(short, |text, (from, to)| text.replace(from, to));
            rule["expr"] = json!(short);
        }
    }
    spec
}

/// The groups of the chart's PrometheusRule with these values of `prometheusRule`.
fn rendered(values: &Value) -> Value {
    let mut values = json!({ "prometheusRule": values });
    values["prometheusRule"]["enabled"] = json!(true);
    let objects = render(&values);
    let rule = objects.iter().find(|object| object["kind"] == "PrometheusRule").unwrap();
    rule["spec"].clone()
}

#[test]
fn the_prometheus_rule_has_the_rules_of_the_file() {
    let file = yaml(&rules_file());
    assert_eq!(rendered(&json!({})), file);
    let all: Vec<String> = names(&file, "alert").into_iter().collect();
    let without = rendered(&json!({ "disabled": all }));
    assert_eq!(names(&without, "alert"), BTreeSet::new());
    assert_eq!(names(&without, "record"), names(&file, "record"));
    assert_eq!(items(&without["groups"]).count(), items(&file["groups"]).count());
}

#[test]
fn values_replace_durations_of_alerts_and_the_address_of_runbooks() {
    let mut expected = yaml(&rules_file());
    for group in expected["groups"].as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap() {
            let name = text(&rule["alert"]).to_owned();
            match name.as_str() {
                "" => continue,
                "RLJobNotStarting" => rule["for"] = json!("3h"),
                // This one has no duration in the file.
                "RLJobRestartLoop" => rule["for"] = json!("1m30s"),
                _ => {}
            }
            let page = format!("https://wiki.example.com/rljob/{name}.md");
            rule["annotations"]["runbook_url"] = json!(page);
        }
    }
    let values = json!({
        "for": {"RLJobNotStarting": "3h", "RLJobRestartLoop": "1m30s"},
        "runbookBaseURL": "https://wiki.example.com/rljob/",
    });
    assert_eq!(rendered(&values), expected);
}

#[test]
fn values_replace_thresholds_of_alerts_and_nothing_else() {
    let thresholds = [
        ("RLJobCheckpointTooOld", json!(28_800), "> 4 * 3600", "> 28800"),
        ("RLJobRestartLoop", json!(5), ">= 3", ">= 5"),
        ("RLJobGroupRestartLoop", json!(10), ">= 3", ">= 10"),
        ("RLJobGpusIdle", json!(0.5), "> 0.9", "> 0.5"),
        ("RLJobEnginesIdle", json!(0.75), "> 0.9", "> 0.75"),
    ];
    let mut expected = yaml(&rules_file());
    for group in expected["groups"].as_array_mut().unwrap() {
        for rule in group["rules"].as_array_mut().unwrap() {
            let of_rule = thresholds.iter().find(|(name, ..)| rule["alert"] == *name);
            let Some((name, _, old, new)) = of_rule else { continue };
            let expression = text(&rule["expr"]).to_owned();
            assert_eq!(expression.matches(old).count(), 1, "{name}: {expression}");
            rule["expr"] = json!(expression.replace(old, new));
        }
    }
    let values = thresholds.into_iter().map(|(name, value, ..)| (name.to_owned(), value));
    let values = Value::Object(values.collect());
    assert_eq!(rendered(&json!({ "thresholds": values })), expected);
}

#[test]
fn no_description_has_the_duration_of_its_alert_which_values_change() {
    for rule in rules(&yaml(&rules_file()), "alert") {
        let description = text(&rule["annotations"]["description"]);
        for words in [" for 1 minute", " for 2 minutes", " for 5 minutes", " for 15 minutes"] {
            assert!(!description.contains(words), "{description}");
        }
    }
}

#[test]
fn the_schema_knows_the_names_of_all_alerts() {
    let path = workspace().join("charts/rljob/values.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let values = &schema["properties"]["prometheusRule"]["properties"];
    let disabled = items(&values["disabled"]["items"]["enum"]).map(|name| text(name).to_owned());
    let durations = values["for"]["properties"].as_object().unwrap().keys().cloned();
    let alerts = names(&yaml(&rules_file()), "alert");
    assert_eq!(disabled.collect::<BTreeSet<_>>(), alerts);
    assert_eq!(durations.collect::<BTreeSet<_>>(), alerts);
}

#[test]
fn each_alert_links_to_its_runbook_page_and_there_are_no_others() {
    let file = yaml(&rules_file());
    for rule in rules(&file, "alert") {
        let name = text(&rule["alert"]);
        let url = format!("{}/blob/main/docs/runbooks/{name}.md", env!("CARGO_PKG_REPOSITORY"));
        assert_eq!(rule["annotations"]["runbook_url"], url);
        let page =
            fs::read_to_string(workspace().join(format!("docs/runbooks/{name}.md"))).unwrap();
        let headings: Vec<&str> = page.lines().filter(|line| line.starts_with('#')).collect();
        let title = format!("# {name}");
        assert_eq!(headings, [title.as_str(), "## Impact", "## Look at", "## Do"], "{name}");
    }
    let pages = fs::read_dir(workspace().join("docs/runbooks")).unwrap();
    let pages = pages.map(|page| page.unwrap().file_name().to_string_lossy().replace(".md", ""));
    assert_eq!(pages.collect::<BTreeSet<_>>(), names(&file, "alert"));
}
