//! Code blocks of README.md and of the pages below docs/.

use std::fs;
use std::path::{Path, PathBuf};

use rljob_tests::files::workspace;

/// A code block.
pub(crate) struct Block {
    /// Path of its page below the checkout.
    pub(crate) page: String,
    pub(crate) text: String,
}

fn below(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Blocks of a language in a text. Those of lists are indented.
pub(crate) fn blocks_in(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1).filter_map(|rest| rest.split("```").next());
    blocks.map(str::to_owned).collect()
}

/// Blocks of a language in all pages.
pub(crate) fn blocks(language: &str) -> Vec<Block> {
    let root = workspace();
    let mut pages = vec![root.join("README.md")];
    below(&root.join("docs"), &mut pages);
    pages.sort();
    let of_page = |page: PathBuf| {
        let name = page.strip_prefix(&root).unwrap().display().to_string();
        let texts = blocks_in(&fs::read_to_string(&page).unwrap(), language);
        texts.into_iter().map(move |text| Block { page: name.clone(), text })
    };
    pages.into_iter().flat_map(of_page).collect()
}

/// YAML blocks with objects of an `apiVersion`.
pub(crate) fn objects_of(version: &str) -> Vec<String> {
    let line = format!("apiVersion: {version}\n");
    let texts = blocks("yaml").into_iter().map(|block| block.text);
    texts.filter(|text| text.trim_start().starts_with(&line)).collect()
}
