//! Text from outside for terminals and reports: output of models, messages of pods, names. Control
//! characters could move the cursor or change the terminal; bidirectional ones show a text in
//! another order than it has.

use std::borrow::Cow;

/// Shown in place of a character.
pub const REPLACEMENT: char = '\u{fffd}';

/// Whether a character is replaced: control characters except line feeds and tabs, and characters
/// that change the direction or the lines of a text.
pub fn is_hidden(c: char) -> bool {
    let is_control = c.is_control() && c != '\n' && c != '\t';
    let changes_order = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    is_control || changes_order
}

/// The text without characters that act on a terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.contains(is_hidden) {
        let replaced = |c| if is_hidden(c) { REPLACEMENT } else { c };
        Cow::Owned(text.chars().map(replaced).collect())
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn characters_that_act_on_a_terminal_are_replaced() {
        let harmless = "a\tb\n漢字 – é 🙂 ‍";
        assert_eq!(printable(harmless), harmless);
        let hostile = "\u{1b}[2J\u{1b}]0;title\u{7}\r\u{8}\u{9b}31m\u{7f}\u{0}";
        assert_eq!(
            printable(hostile),
            "\u{fffd}[2J\u{fffd}]0;title\u{fffd}\u{fffd}\u{fffd}\u{fffd}31m\u{fffd}\u{fffd}"
        );
        for c in ['\u{202e}', '\u{2066}', '\u{2069}', '\u{200f}', '\u{61c}', '\u{2028}'] {
            assert_eq!(printable(&format!("a{c}b")), "a\u{fffd}b");
        }
    }
}
