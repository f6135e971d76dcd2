//! Jinja templates of the spec as text. minijinja's `undeclared_variables` leaves out the sliced
//! expression of `{{hint[:3]}}`, but not that of an item, `{{hint[0]}}`.

/// A template that uses the same variables, without slices. Only for reading its variables: its
/// output is another.
#[must_use]
pub fn without_slices(template: &str) -> String {
    let mut reader = Reader::default();
    template.chars().for_each(|letter| reader.read(letter));
    reader.text
}

#[derive(Default)]
struct Reader {
    text: String,
    /// In `{{ }}` or `{% %}`.
    in_block: bool,
    /// Open brackets of the block.
    brackets: Vec<char>,
    /// Quote of the string that is read, and whether the next letter is escaped.
    quote: Option<(char, bool)>,
    /// The last letter that is no white space.
    previous: Option<char>,
}

impl Reader {
    fn read(&mut self, letter: char) {
        if !self.in_block {
            self.in_block = self.previous == Some('{') && matches!(letter, '{' | '%');
            self.text.push(letter);
        } else if let Some((quote, is_escaped)) = self.quote {
            let is_end = letter == quote && !is_escaped;
            self.quote = (!is_end).then_some((quote, letter == '\\' && !is_escaped));
            self.text.push(letter);
        } else {
            self.read_code(letter);
        }
        // The braces that start a block are adjacent.
        if !self.in_block || !letter.is_whitespace() {
            self.previous = Some(letter);
        }
    }

    fn read_code(&mut self, letter: char) {
        let lacks_operand = |own: &Self| matches!(own.previous, Some('[' | ':'));
        match letter {
            '\'' | '"' => self.quote = Some((letter, false)),
            '[' | '(' | '{' => self.brackets.push(letter),
            // The bounds become one expression: `hint[:3]` is `hint[0~3]`.
            ':' if self.brackets.last() == Some(&'[') => {
                self.text.push_str(if lacks_operand(self) { "0~" } else { "~" });
                return;
            }
            ']' if self.previous == Some(':') => {
                self.brackets.pop();
                self.text.push('0');
            }
            ']' | ')' | '}' => self.in_block = self.brackets.pop().is_some(),
            _ => {}
        }
        self.text.push(letter);
    }
}

#[cfg(test)]
mod tests {
    use super::without_slices;

    #[test]
    fn slices_become_items_with_the_same_variables() {
        for (template, expected) in [
            ("[a:b] {{hint[:3]}}", "[a:b] {{hint[0~3]}}"),
            ("{{turn.completion[-20:]}}", "{{turn.completion[-20~0]}}"),
            ("{{ a[ : ] }}{{a[::2]}}", "{{ a[ 0~ 0] }}{{a[0~0~2]}}"),
            ("{{a[b[c:d]:(e)]}}", "{{a[b[c~d]~(e)]}}"),
            ("{% for x in xs[1:n] %}{{x}}{% endfor %}", "{% for x in xs[1~n] %}{{x}}{% endfor %}"),
            ("{{ {'a': b}['a'] }} it's [c:d]", "{{ {'a': b}['a'] }} it's [c:d]"),
            (r#"{{a["x[\":"]}} {{b[1:]}}"#, r#"{{a["x[\":"]}} {{b[1~0]}}"#),
            ("{{a[{'k': 1}[b:c]:d]}}", "{{a[{'k': 1}[b~c]~d]}}"),
        ] {
            assert_eq!(without_slices(template), expected);
        }
    }
}
