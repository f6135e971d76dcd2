//! Objects in the code blocks of README.md and of the pages below docs/.

use rljob_tests::documents::blocks;

/// Folders of the pages.
pub(crate) const PAGES: [&str; 1] = ["docs"];

/// YAML blocks with objects of an `apiVersion`.
pub(crate) fn objects_of(version: &str) -> Vec<String> {
    let line = format!("apiVersion: {version}\n");
    let texts = blocks(&PAGES, "yaml").unwrap().into_iter().map(|block| block.text);
    texts.filter(|text| text.trim_start().starts_with(&line)).collect()
}
