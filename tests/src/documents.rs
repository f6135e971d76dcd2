//! Code blocks of README.md and of the pages below folders of the checkout.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::files::workspace;

/// A code block.
#[derive(Debug)]
pub struct Block {
    /// Path of its page below the checkout.
    pub page: String,
    /// Its lines.
    pub text: String,
}

fn below(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            below(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(())
}

/// Blocks of a language in a text. Those of lists are indented.
pub fn blocks_in(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1).filter_map(|rest| rest.split("```").next());
    blocks.map(str::to_owned).collect()
}

/// The commands of a shell block. A command ends with its line, unless a quote is open or the line
/// ends with a backslash.
///
/// # Panics
/// A quote of the block does not end.
pub fn commands(block: &str) -> Vec<String> {
    let (mut found, mut pending) = (Vec::new(), String::new());
    for line in block.lines() {
        pending.push_str(line);
        match shlex::split(&pending) {
            None => pending.push('\n'),
            Some(words) => {
                let command = std::mem::take(&mut pending);
                found.extend((!words.is_empty()).then(|| command.trim_start().to_owned()));
            }
        }
    }
    assert_eq!(pending, "", "{block}");
    found
}

/// Blocks of a language in README.md and in all pages below these folders.
///
/// # Errors
/// A folder or a page cannot be read.
pub fn blocks(folders: &[&str], language: &str) -> Result<Vec<Block>> {
    let root = workspace();
    let mut pages = vec![root.join("README.md")];
    for folder in folders {
        below(&root.join(folder), &mut pages)?;
    }
    pages.sort();
    let mut found = Vec::new();
    for path in pages {
        let page = path.strip_prefix(&root)?.display().to_string();
        let text = fs::read_to_string(&path).with_context(|| format!("no {page}"))?;
        let texts = blocks_in(&text, language).into_iter();
        found.extend(texts.map(|text| Block { page: page.clone(), text }));
    }
    Ok(found)
}
