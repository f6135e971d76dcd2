//! Code blocks of README.md and of the pages below docs/ and charts/: the objects in them, and the
//! tests that run their commands as printed.

use rljob_tests::documents::blocks;

pub(crate) mod commands;
mod machine;
pub(crate) mod user;

/// Folders of the pages.
pub(crate) const PAGES: [&str; 2] = ["docs", "charts"];

/// YAML blocks with objects of an `apiVersion`.
pub(crate) fn objects_of(version: &str) -> Vec<String> {
    let line = format!("apiVersion: {version}\n");
    let texts = blocks(&PAGES, "yaml").unwrap().into_iter().map(|block| block.text);
    texts.filter(|text| text.trim_start().starts_with(&line)).collect()
}
