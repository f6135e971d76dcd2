//! Samples in the documents: each row of the README's features links to samples that exist, and a
//! page links to each sample.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rljob_tests::files::workspace;

use super::sources;

const SAMPLES: &str = "manifests/samples";

/// Files below manifests/samples to which a text links from a folder of the checkout.
fn linked(text: &str, folder: &Path) -> BTreeSet<PathBuf> {
    let root = workspace();
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let paths = links.filter_map(|link| folder.join(link).canonicalize().ok());
    paths.filter(|path| path.is_file() && path.starts_with(root.join(SAMPLES))).collect()
}

#[test]
fn each_row_of_features_links_to_a_sample() {
    let page = fs::read_to_string(workspace().join("README.md")).unwrap();
    let (_, rest) = page.split_once("| | Available | Not yet |\n|---|---|---|\n").unwrap();
    let rows: Vec<&str> = rest.lines().take_while(|line| line.starts_with('|')).collect();
    let without = |row: &&&str| {
        let available = row.split(" | ").nth(1).unwrap_or_default();
        linked(available, &workspace()).is_empty()
    };
    assert_eq!(rows.iter().filter(without).collect::<Vec<_>>(), Vec::<&&str>::new());
    assert!(rows.len() > 5, "{rows:?}");
}

#[test]
fn a_page_links_to_each_sample() {
    let root = workspace();
    let mut pages = sources(&root.join("docs"), &["md"]);
    pages.push(root.join("README.md"));
    let mut found = BTreeSet::new();
    for page in pages {
        found.append(&mut linked(&fs::read_to_string(&page).unwrap(), page.parent().unwrap()));
    }
    let samples = sources(&root.join(SAMPLES), &["yaml"]);
    let missing: Vec<&PathBuf> = samples.iter().filter(|file| !found.contains(*file)).collect();
    assert_eq!(missing, Vec::<&PathBuf>::new());
    assert!(samples.len() > 40, "{samples:?}");
}
