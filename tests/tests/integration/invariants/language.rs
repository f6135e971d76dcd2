//! Language of the tree: no phrase of phrases.txt in code and documents, no line of Rust over 100
//! columns.

use std::fs;
use std::path::Path;

use rljob_tests::files::workspace;

use super::sources;

const PHRASES: &str = include_str!("../phrases.txt");
const MAX_COLUMNS: usize = 100;
/// Methods of `Option`, whose names contain a phrase.
const METHODS: [&str; 2] = [".is_none()", ".is_none_or("];

/// The words of a text, in lower case, each with its line number. Comment prefixes are removed,
/// and `_` separates words, so that identifiers are checked too.
fn words(text: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = METHODS.iter().fold(line.to_lowercase(), |line, name| line.replace(name, " "));
        let line = line.trim_start();
        let line = ["///", "//!", "//", "#", ">"]
            .iter()
            .find_map(|prefix| line.strip_prefix(prefix))
            .unwrap_or(line);
        let separated = line.split(|c: char| c.is_whitespace() || c == '_');
        found.extend(
            separated.filter(|word| !word.is_empty()).map(|word| (word.to_owned(), number)),
        );
    }
    found
}

/// Whether the phrase starts at the first of these words, ignoring punctuation around it.
fn starts_with(words: &[(String, usize)], phrase: &[&str]) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '\'';
    let last = phrase.len() - 1;
    words.len() >= phrase.len()
        && phrase.iter().zip(words).enumerate().all(|(index, (expected, (word, _)))| {
            let word = if index == 0 { word.trim_start_matches(|c| !is_part(c)) } else { word };
            let word = if index == last {
                word.split(|c| !is_part(c)).next().unwrap_or_default()
            } else {
                word
            };
            word == *expected || (index == last && word.strip_suffix("'s") == Some(expected))
        })
}

/// Uses of the phrases in a text, as `line: phrase`.
fn uses(text: &str) -> Vec<String> {
    let phrases: Vec<Vec<&str>> = PHRASES.lines().map(|line| line.split(' ').collect()).collect();
    let words = words(text);
    let mut found = Vec::new();
    for start in 0..words.len() {
        for phrase in &phrases {
            if starts_with(&words[start..], phrase) {
                found.push(format!("{}: {}", words[start].1, phrase.join(" ")));
            }
        }
    }
    found
}

fn name(file: &Path) -> String {
    file.strip_prefix(workspace()).unwrap().display().to_string()
}

#[test]
fn phrases_are_found_across_lines_in_comments_and_in_identifiers() {
    let phrase = PHRASES.lines().next().unwrap();
    let (first, second) = phrase.split_once(' ').unwrap();
    let text = format!(
        "/// The job {first}\n/// {second}.\nfn job_{first}_{second}() {{}}\nif x.is_none() {{}}\n\
        // other{first} {second}"
    );
    assert_eq!(uses(&text), [format!("1: {phrase}"), format!("3: {phrase}")]);
}

#[test]
fn no_file_contains_a_phrase_of_the_list() {
    let mut found = Vec::new();
    for file in sources(&workspace(), &["rs", "md", "yaml"]) {
        let text = fs::read_to_string(&file).unwrap();
        found.extend(uses(&text).iter().map(|line| format!("{}:{line}", name(&file))));
    }
    assert!(found.is_empty(), "{} uses:\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_line_of_rust_exceeds_100_columns() {
    let mut found = Vec::new();
    for file in sources(&workspace(), &["rs"]) {
        let text = fs::read_to_string(&file).unwrap();
        let long = text.lines().zip(1..).filter(|(line, _)| line.chars().count() > MAX_COLUMNS);
        found.extend(long.map(|(_, number)| format!("{}:{number}", name(&file))));
    }
    assert!(found.is_empty(), "{} lines:\n{}", found.len(), found.join("\n"));
}
