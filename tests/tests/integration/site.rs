//! Documents as a site: every page is a chapter, and every relative link and anchor resolves, in
//! the sources and in the pages that mdBook renders. Links to other sites are not followed: they
//! must lead to known ones.

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

/// Sites that pages link to.
const SITES: [&str; 14] = [
    "https://arxiv.org/",
    "https://docs.nvidia.com/",
    "https://docs.ray.io/",
    "https://fengyao.notion.site/",
    "https://github.com/",
    "http://joschu.net/",
    "https://keepachangelog.com/",
    "https://krew.sigs.k8s.io",
    "https://kueue.sigs.k8s.io",
    "https://ringtech.notion.site/",
    "https://semver.org/",
    "https://ui.perfetto.dev",
    "https://verl.readthedocs.io/",
    "https://www.kubeflow.org/",
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

/// Targets of links.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Targets of relative links.
fn links(text: &str) -> Vec<String> {
    let links = targets(text).filter(|link| !link.contains("://") && !link.starts_with("mailto:"));
    links.map(ToOwned::to_owned).collect()
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
fn links_to_other_sites_are_well_formed_and_their_sites_known() {
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::<&str>::new());
    for page in pages() {
        for link in targets(&prose(&page)).filter(|link| link.contains("://")) {
            let site = SITES.iter().find(|site| link.starts_with(*site));
            used.extend(site);
            let has_form = !link.ends_with(['.', ',', ';', ':'])
                && !link.contains(|letter: char| letter.is_whitespace() || letter == '<');
            let is_right = site.is_some() && has_form;
            wrong.extend((!is_right).then(|| format!("{}: {link}", page.display())));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(used.len(), SITES.len(), "{used:?}");
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
