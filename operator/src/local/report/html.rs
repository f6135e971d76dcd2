//! HTML escaping.

use crate::terminal::{REPLACEMENT, is_hidden};

/// Escapes text for elements and double-quoted attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters are invalid in HTML and would hide a model's output.
            c if is_hidden(c) => escaped.push(REPLACEMENT),
            c => escaped.push(c),
        }
    }
    escaped
}
