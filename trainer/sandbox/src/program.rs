//! The program in a completion: its last fenced code block.

use serde::{Deserialize, Serialize};

/// Language of a program.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Python,
    Cpp,
}

/// A fenced code block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// First word after the fence, for example `python`; possibly empty.
    pub tag: &'a str,
    /// The lines between the fences.
    pub text: &'a str,
}

impl Block<'_> {
    /// Language that the tag names.
    pub fn language(&self) -> Option<Language> {
        match self.tag.to_ascii_lowercase().as_str() {
            "python" | "python3" | "py" => Some(Language::Python),
            "cpp" | "c++" | "cc" | "cxx" => Some(Language::Cpp),
            _ => None,
        }
    }
}

/// The last code block that is fenced by lines that start with three or more backticks or tildes,
/// as in CommonMark. A block without an end is ignored: the completion was truncated.
pub fn last_block(text: &str) -> Option<Block<'_>> {
    let mut last = None;
    let mut open: Option<(&str, &str, usize)> = None;
    let mut offset = 0_usize;
    for line in text.split_inclusive('\n') {
        let end = offset.saturating_add(line.len());
        match open {
            None => {
                open = fence(line).map(|(fence, tag)| (fence, tag, end));
            }
            Some((opening, tag, start)) => {
                let closes = fence(line)
                    .is_some_and(|(fence, rest)| rest.is_empty() && fence.starts_with(opening));
                if closes {
                    last = text.get(start..offset).map(|text| Block { tag, text });
                    open = None;
                }
            }
        }
        offset = end;
    }
    last
}

/// The fence that a line starts with, and the first word after it.
fn fence(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start_matches(' ');
    let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let rest = line.trim_start_matches(mark);
    let fence = line.get(..line.len().checked_sub(rest.len())?)?;
    (fence.len() >= 3).then(|| (fence, rest.split_whitespace().next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_complete_block_is_the_program() {
        let text = "First:\n```python\nprint(1)\n```\nBetter:\n~~~~ c++ title\nint x;\n~~~\n~~~~\n";
        assert_eq!(last_block(text), Some(Block { tag: "c++", text: "int x;\n~~~\n" }));
        let truncated = "```py\nprint(1)\n```\n```py\nprint(";
        assert_eq!(last_block(truncated), Some(Block { tag: "py", text: "print(1)\n" }));
        assert_eq!(last_block("print(1)"), None);
        assert_eq!(last_block("use ``x`` and ```y```"), None);
        assert_eq!(last_block("```\n```"), Some(Block { tag: "", text: "" }));
    }

    #[test]
    fn tags_name_languages_in_any_case() {
        let language = |tag| Block { tag, text: "" }.language();
        for tag in ["python", "Python3", "py"] {
            assert_eq!(language(tag), Some(Language::Python), "{tag}");
        }
        for tag in ["cpp", "C++", "cc", "cxx"] {
            assert_eq!(language(tag), Some(Language::Cpp), "{tag}");
        }
        assert_eq!((language(""), language("rust")), (None, None));
    }
}
