//! Lexer: LaTeX or plain text to tokens. Formatting is dropped; unknown commands are errors.
//!
//! ```text
//!  "$x = 2\sqrt{3}\text{ cm}^2$" ─▶ x  =  2  √  {  3  }  ⟨cm⟩  ^  2
//! ```

mod commands;
mod letters;
mod numerals;
mod token;

pub use letters::FUNCTION_NAMES;
pub use token::{Kind, Token};

use crate::limits::{Checked, MAX_BYTES, Unsupported};
use token::Lexer;

/// `\{`.
pub const SET_OPEN: char = '⟦';
/// `\}`.
pub const SET_CLOSE: char = '⟧';
/// `\mid`.
pub const MID: char = '¦';
/// `\\` in a matrix.
pub const ROW: char = '⏎';

/// Tokens of an answer.
pub fn lex(text: &str) -> Checked<Vec<Token>> {
    if text.len() > MAX_BYTES {
        return Err(Unsupported("the answer has more than 2048 bytes"));
    }
    if text.contains("..") {
        return Err(Unsupported("an ellipsis is not supported"));
    }
    let marked = |character: char| character.is_whitespace() || character == '*';
    let text = text.trim_end_matches(|character| marked(character) || character == '.');
    let characters: Vec<char> = text.trim_start_matches(marked).chars().collect();
    let before = std::iter::once(&' ').chain(&characters);
    let bare_dollars = characters.iter().zip(before);
    let bare_dollars = bare_dollars.filter(|&pair| pair.0 == &'$' && pair.1 != &'\\').count();
    let mut lexer = Lexer {
        characters: &characters,
        at: 0,
        out: Vec::new(),
        space: false,
        currency: bare_dollars % 2 == 1,
        depth: 0,
    };
    lexer.run(characters.len(), false)?;
    Ok(letters::resolve(lexer.out))
}

impl Lexer<'_> {
    /// Reads up to the position `end`, in `\text{…}` if `words`.
    fn run(&mut self, end: usize, words: bool) -> Checked<()> {
        while self.at < end {
            let Some(character) = self.peek(0) else { break };
            self.step(character, end, words)?;
        }
        Ok(())
    }

    fn step(&mut self, character: char, end: usize, words: bool) -> Checked<()> {
        let decimal = character == '.' && self.peek(1).is_some_and(|next| next.is_ascii_digit());
        if character.is_ascii_digit() || decimal {
            return self.number();
        }
        if character.is_alphabetic() && character != 'π' {
            self.letters(end, words);
            return Ok(());
        }
        self.advance(1);
        if character.is_whitespace() || matches!(character, '~' | '\u{200B}') {
            self.space = true;
            return Ok(());
        }
        match character {
            '\\' => return self.command(),
            '<' | '>' | '!' if self.peek(0) == Some('=') && (character != '!' || self.space) => {
                self.advance(1);
                self.sign(match character {
                    '<' => '≤',
                    '>' => '≥',
                    _ => '≠',
                });
            }
            '$' if self.currency => {
                self.currency = false;
                self.sign('$');
            }
            '$' | '`' | '"' | '“' | '”' => {}
            '−' | '–' | '﹣' | '－' => self.sign('-'),
            '×' | '⋅' | '·' | '∙' => self.sign('*'),
            '÷' => self.sign('/'),
            '√' => self.push(Kind::Command("sqrt")),
            '²' => self.superscript('2'),
            '³' => self.superscript('3'),
            '½' => self.vulgar('1', '2'),
            '⅓' => self.vulgar('1', '3'),
            '⅔' => self.vulgar('2', '3'),
            '¼' => self.vulgar('1', '4'),
            '¾' => self.vulgar('3', '4'),
            '°' => self.degree(),
            '⩾' | '≧' => self.sign('≥'),
            '⩽' | '≦' => self.sign('≤'),
            '+' | '-' | '*' | '/' | '^' | '_' | '!' | '|' | '(' | ')' | '[' | ']' | '{' | '}'
            | '=' | '<' | '>' | '≤' | '≥' | '≠' | '±' | '∓' | '∪' | '∩' | '∈' | ':' | ';' | ','
            | '.' | '∅' | '∞' | '%' | 'π' | '≈' | '€' | '£' | '&' | '∖' | '?' => {
                self.sign(character);
            }
            '\'' if words => {}
            _ => return Err(Unsupported("a character is not supported")),
        }
        Ok(())
    }

    fn superscript(&mut self, digit: char) {
        self.sign('^');
        self.push(Kind::Number(digit.into(), 0));
    }

    fn vulgar(&mut self, above: char, below: char) {
        self.push(Kind::Command("frac"));
        for digit in [above, below] {
            self.sign('{');
            self.push(Kind::Number(digit.into(), 0));
            self.sign('}');
        }
    }

    /// Replaces a degree sign, with or without `^` or `^{`, by a sign.
    fn degree(&mut self) {
        let is = |token: Option<&Token>, sign| token.is_some_and(|token| token.is(sign));
        let braced = is(self.out.last(), '{')
            && is(self.out.len().checked_sub(2).and_then(|at| self.out.get(at)), '^');
        if braced {
            self.out.truncate(self.out.len().saturating_sub(2));
            while self.peek(0).is_some_and(char::is_whitespace) {
                self.advance(1);
            }
            if self.peek(0) == Some('}') {
                self.advance(1);
            }
        } else if is(self.out.last(), '^') {
            self.out.pop();
        }
        self.sign('°');
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, lex};

    fn lexed(text: &str) -> String {
        let tokens = lex(text).unwrap();
        let words = tokens.into_iter().map(|token| match token.kind {
            Kind::Number(digits, 0) => digits,
            Kind::Number(digits, places) => format!("{digits}e-{places}"),
            Kind::Variable(name) => name,
            Kind::Text(text) => format!("<{text}>"),
            Kind::Sign(sign) => sign.to_string(),
            Kind::Command(name) => format!("\\{name}"),
            Kind::Symbol(name) => format!("\\{name}?"),
            Kind::Begin => "begin".to_owned(),
            Kind::End => "end".to_owned(),
            Kind::Letters(letters) => format!("?{letters}"),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn formatting_is_dropped_and_units_become_words() {
        assert_eq!(
            lexed(r"$\left( \dfrac{1}{2},\; \sqrt 3 \right)$"),
            r"( \frac { 1 } { 2 } , \sqrt 3 )"
        );
        assert_eq!(lexed(r"\{1{,}000, 2\,000\}"), "⟦ 1000 , 2000 ⟧");
        assert_eq!(lexed(r"90^\circ, 45^{\circ}, 30°"), "90 ° , 45 ° , 30 °");
        assert_eq!(
            lexed(r"5\text{ cm}^2 \text{ and } 6 kg, 7km/h"),
            "5 <cm> ^ 2 <and> 6 <kg> , 7 <km> / <h>"
        );
        assert_eq!(lexed(r"2xy + 3\alpha"), "2 x y + 3 \\alpha");
        assert_eq!(lexed("1.5e3, 2.50"), "1500 , 250e-2");
        assert_eq!(lexed(r"\text{(C)}"), "( <C> )");
        assert_eq!(lexed(r"x \to 5, a <= 3, b != 4! = 2"), r"x \to? 5 , a ≤ 3 , b ≠ 4 ! = 2");
        assert_eq!(lexed(r"-1./3"), "- 1 / 3");
        assert_eq!(lexed(r"\begin{array}{rr}1\end{array}"), "begin 1 end");
    }
}
