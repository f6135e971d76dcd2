//! The tables of Prometheus metrics in docs/operations.md: every metric that the operator and the
//! coordinator register has a row, and every row is of a metric that they register.

use std::collections::BTreeSet;
use std::fs;

use rljob_tests::files::workspace;

use super::sources;

/// Names of metrics in the files of a folder that register them.
fn names_below(folder: &str) -> BTreeSet<String> {
    let files = sources(&workspace().join(folder), &["rs"]).into_iter();
    let code = files.filter(|file| !file.ends_with("tests.rs"));
    code.flat_map(|file| names_in(&fs::read_to_string(file).unwrap())).collect()
}

/// String literals `"rljob_…"` of a file, without those of its tests.
fn names_in(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let literals = code.split('"').skip(1).step_by(2);
    literals.filter(|text| is_name(text)).map(ToOwned::to_owned).collect()
}

fn is_name(text: &str) -> bool {
    text.starts_with("rljob_")
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Names in the first cells of the tables, without labels.
pub(crate) fn documented() -> BTreeSet<String> {
    let page = fs::read_to_string(workspace().join("docs/operations.md")).unwrap();
    let mut names = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| `rljob_")) {
        let cell = row.split(" | ").next().unwrap_or_default();
        for code in cell.split('`').skip(1).step_by(2) {
            let name = code.split('{').next().unwrap_or_default();
            assert!(names.insert(name.to_owned()), "{name} has two rows");
        }
    }
    names
}

#[test]
fn the_tables_have_every_metric_and_no_others() {
    let mut expected = names_below("operator/src/metrics");
    expected.append(&mut names_below("trainer/coordinator/src/telemetry"));
    let file = workspace().join("trainer/coordinator/src/telemetry.rs");
    expected.append(&mut names_in(&fs::read_to_string(file).unwrap()));
    assert_eq!(documented(), expected);
}
