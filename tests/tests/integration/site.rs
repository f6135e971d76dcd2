//! Documents as a site: every page is a chapter, and every relative link and anchor resolves, in
//! the sources and in the pages that mdBook renders.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use rljob_tests::files::workspace;
use rljob_tests::process::run;

/// Pages outside docs/ whose links are checked; those that SUMMARY.md lists are chapters too.
const ROOT_PAGES: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "charts/rljob/README.md",
];

/// Files below a folder with an extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A path without `.` and `..`.
fn normalized(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut found, component| {
        match component {
            Component::ParentDir => drop(found.pop()),
            Component::CurDir => {}
            other => found.push(other),
        }
        found
    })
}

/// The text of a page without code blocks.
fn prose(page: &Path) -> String {
    let text = fs::read_to_string(page).unwrap();
    text.split("\n```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// Targets of relative links.
fn links(text: &str) -> Vec<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
        .map(ToOwned::to_owned)
        .collect()
}

/// Identifiers of the headings of a page, as GitHub and mdBook derive them.
fn anchors(page: &Path) -> BTreeSet<String> {
    let prose = prose(page);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let identifier = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept =
            text.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(identifier).collect()
}

fn pages() -> Vec<PathBuf> {
    let root = workspace();
    let mut pages = files(&root.join("docs"), "md");
    pages.extend(ROOT_PAGES.map(|page| root.join(page)));
    pages
}

#[test]
fn links_of_the_documents_resolve() {
    let (mut broken, mut checked) = (Vec::new(), 0);
    for page in pages() {
        for link in links(&prose(&page)) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => page.clone(),
                path => normalized(&page.parent().unwrap().join(path)),
            };
            let resolves =
                target.exists() && (anchor.is_empty() || anchors(&target).contains(anchor));
            checked += 1;
            broken.extend((!resolves).then(|| format!("{}: {link}", page.display())));
        }
    }
    assert_eq!(broken, Vec::<String>::new());
    assert!(checked > 100, "{checked}");
}

#[test]
fn every_page_is_a_chapter_once() {
    let docs = workspace().join("docs");
    let summary = docs.join("SUMMARY.md");
    let mut chapters = BTreeMap::<PathBuf, usize>::new();
    for link in links(&fs::read_to_string(&summary).unwrap()) {
        *chapters.entry(normalized(&docs.join(link))).or_default() += 1;
    }
    let repeated: Vec<_> = chapters.iter().filter(|(_, count)| **count > 1).collect();
    assert_eq!(repeated, Vec::new());
    let pages = files(&docs, "md").into_iter().filter(|page| *page != summary);
    let missing: Vec<PathBuf> = pages.filter(|page| !chapters.contains_key(page)).collect();
    assert_eq!(missing, Vec::<PathBuf>::new(), "add them to docs/SUMMARY.md");
}

/// Values of an attribute in rendered pages.
fn attributes<'a>(html: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!(" {name}=\"");
    html.split(start.as_str()).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn links_of_the_rendered_site_resolve_and_it_loads_nothing_from_elsewhere() {
    let root = workspace();
    run(Command::new(root.join("scripts/site.sh")).current_dir(&root)).unwrap();
    let site = root.join("target/site");
    let pages: BTreeMap<PathBuf, String> = files(&site, "html")
        .into_iter()
        .map(|page| (page.clone(), fs::read_to_string(&page).unwrap()))
        .collect();
    let (mut broken, mut checked) = (Vec::new(), 0);
    for (page, html) in pages.iter().filter(|(page, _)| !page.ends_with("404.html")) {
        let assets = attributes(html, "src");
        let remote = assets.iter().filter(|asset| asset.contains("//"));
        broken.extend(remote.map(|asset| format!("{}: loads {asset}", page.display())));
        for link in attributes(html, "href").into_iter().chain(assets) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => normalized(&page.parent().unwrap().join(path)),
            };
            let has_anchor = |html: &String| html.contains(&format!(" id=\"{anchor}\""));
            let resolves = target.exists()
                && (anchor.is_empty() || pages.get(&target).is_some_and(has_anchor));
            checked += 1;
            broken.extend((!resolves).then(|| format!("{}: {link}", page.display())));
        }
    }
    assert_eq!(broken, Vec::<String>::new());
    assert!(checked > 1000, "{checked}");
}
