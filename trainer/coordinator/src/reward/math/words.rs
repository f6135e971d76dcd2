//! Answers in words: choices (`(C)`), and plain text (`\text{even}`).

/// Maximum length of an answer in words, in characters.
const MAX_LENGTH: usize = 64;
/// Commands that only change the font.
const STYLES: [&str; 8] = [
    "\\text{",
    "\\textbf{",
    "\\textit{",
    "\\textrm{",
    "\\mathrm{",
    "\\mathbf{",
    "\\mbox{",
    "\\operatorname{",
];

/// The words of an answer without formatting, in lower case; the case of a single letter is kept.
/// `None` if the text contains anything else.
pub fn words(text: &str) -> Option<String> {
    let mut plain = text.trim().to_owned();
    for style in STYLES {
        plain = plain.replace(style, "{");
    }
    let is_decoration = |character: char| {
        character.is_whitespace() || matches!(character, '$' | '{' | '}' | '*' | '.' | '"' | '~')
    };
    let plain = plain.trim_matches(is_decoration);
    let plain = plain.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(plain);
    let plain = plain.trim_matches(is_decoration);
    let is_allowed =
        |character: char| character.is_alphabetic() || matches!(character, ' ' | '-' | '\'');
    let has_letter = plain.contains(char::is_alphabetic);
    if !has_letter || plain.chars().count() > MAX_LENGTH || !plain.chars().all(is_allowed) {
        return None;
    }
    let words: Vec<&str> = plain.split_whitespace().collect();
    let joined = words.join(" ");
    Some(if joined.chars().count() == 1 { joined } else { joined.to_lowercase() })
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn formatting_does_not_change_words() {
        for text in ["(C)", "C", r"\text{(C)}", r"\textbf{C}", "$C$", " C."] {
            assert_eq!(words(text).as_deref(), Some("C"), "{text}");
        }
        assert_eq!(words(r"\text{Even}").as_deref(), Some("even"));
        assert_eq!(words("not  even").as_deref(), Some("not even"));
        for text in ["", "5", "x+1", "C1", "(C) 5", r"\alpha", "####"] {
            assert_eq!(words(text), None, "{text}");
        }
    }
}
