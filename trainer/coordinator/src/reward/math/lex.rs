//! Lexer: maps each LaTeX command to one character, drops formatting, and maps words and units to
//! [`WORD`].
//!
//! ```text
//!  "$x = 2\sqrt{3}\text{ cm}^2$" ─▶ "x = 2√{3} ⟨WORD⟩^2"
//! ```

/// `\frac` and its variants.
pub const FRACTION: char = '\u{E000}';
/// `\overline`: repeating digits.
pub const REPEATING: char = '\u{E001}';
/// A word or a unit.
pub const WORD: char = '\u{E002}';
/// `\{`.
pub const SET_OPEN: char = '\u{E003}';
/// `\}`.
pub const SET_CLOSE: char = '\u{E004}';
/// Unsupported input; parsing fails on it.
pub const UNKNOWN: char = '\u{E005}';

/// Units that may follow a number without a space.
const GLUED_UNITS: [&str; 26] = [
    "mm", "cm", "dm", "km", "mg", "kg", "ml", "mL", "cl", "dl", "ft", "in", "yd", "mi", "lb",
    "lbs", "oz", "hr", "hrs", "min", "sec", "ms", "mph", "am", "pm", "th",
];
/// Single letters that are units after a space.
const SHORT_UNITS: &str = "mgshlLJNWVAKCF";
/// Words that negate or bound an answer, and functions; an answer with one of them is not parsed.
pub const NEGATIONS: [&str; 24] = [
    "not", "no", "non", "negative", "minus", "least", "most", "than", "except", "between", "log",
    "ln", "lg", "sin", "cos", "tan", "cot", "sec", "csc", "exp", "mod", "gcd", "lcm", "det",
];

/// Returns the characters for the parser.
pub fn lex(text: &str) -> Vec<char> {
    let characters: Vec<char> = text.chars().collect();
    let mut lexer =
        Lexer { characters: &characters, at: 0, out: Vec::with_capacity(characters.len()) };
    while let Some(character) = lexer.peek(0) {
        lexer.step(character);
    }
    lexer.out
}

struct Lexer<'a> {
    characters: &'a [char],
    at: usize,
    out: Vec<char>,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.characters.get(self.at + ahead).copied()
    }

    fn step(&mut self, character: char) {
        if character.is_alphabetic() {
            return self.letters();
        }
        self.at += 1;
        match character {
            '\\' => self.command(),
            // Currency, quotation marks and math delimiters.
            '$' | '€' | '£' | '¥' | '"' | '“' | '”' | '`' => {}
            '−' | '–' | '﹣' | '－' => self.out.push('-'),
            '×' | '⋅' | '·' | '∙' => self.out.push('*'),
            '÷' => self.out.push('/'),
            '²' => self.out.extend(['^', '2']),
            '³' => self.out.extend(['^', '3']),
            '½' => self.fraction('1', '2'),
            '⅓' => self.fraction('1', '3'),
            '⅔' => self.fraction('2', '3'),
            '¼' => self.fraction('1', '4'),
            '¾' => self.fraction('3', '4'),
            '≈' | '∈' => self.out.push('='),
            '≡' => self.out.push(UNKNOWN),
            '{' if self.peek(0) == Some(',') && self.peek(1) == Some('}') => self.at += 2,
            '~' | '\u{A0}' | '\u{2009}' | '\u{202F}' => self.out.push(' '),
            '′' | '″' => self.out.push(WORD),
            '°' => self.degree(),
            other if other.is_whitespace() => self.out.push(' '),
            other if (FRACTION..=UNKNOWN).contains(&other) => self.out.push(UNKNOWN),
            other => self.out.push(other),
        }
    }

    fn fraction(&mut self, above: char, below: char) {
        self.out.extend([FRACTION, '{', above, '}', '{', below, '}']);
    }

    /// Replaces a degree sign, with or without `^` or `^{`, by a unit.
    fn degree(&mut self) {
        if self.out.ends_with(&['^', '{']) {
            self.out.truncate(self.out.len() - 2);
            if self.peek(0) == Some('}') {
                self.at += 1;
            }
        } else if self.out.last() == Some(&'^') {
            self.out.pop();
        }
        self.out.push(WORD);
    }

    fn command(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(|character| character.is_ascii_alphabetic()) {
            self.at += 1;
        }
        if self.at == start {
            return self.symbol();
        }
        let name: String = self.characters[start..self.at].iter().collect();
        match name.as_str() {
            "left" | "right" | "big" | "Big" | "bigl" | "bigr" | "Bigl" | "Bigr" | "bigg"
            | "Bigg" | "displaystyle" | "textstyle" | "limits" | "rm" | "bf" => {}
            "quad" | "qquad" | "space" | "enspace" | "thinspace" => self.out.push(' '),
            "frac" | "dfrac" | "tfrac" | "cfrac" => self.out.push(FRACTION),
            "sqrt" => self.out.push('√'),
            "overline" | "bar" => self.out.push(REPEATING),
            "cdot" | "times" | "ast" => self.out.push('*'),
            "div" => self.out.push('/'),
            "pi" => self.out.push('π'),
            "infty" => self.out.push('∞'),
            "cup" => self.out.push('∪'),
            "pm" => self.out.push('±'),
            "mp" => self.out.push('∓'),
            "emptyset" | "varnothing" => self.out.push('∅'),
            "lbrace" => self.out.push(SET_OPEN),
            "rbrace" => self.out.push(SET_CLOSE),
            "lvert" | "rvert" | "vert" => self.out.push('|'),
            "approx" | "in" => self.out.push('='),
            "le" | "leq" | "leqslant" => self.out.push('≤'),
            "ge" | "geq" | "geqslant" => self.out.push('≥'),
            "lt" => self.out.push('<'),
            "gt" => self.out.push('>'),
            "ne" | "neq" => self.out.push('≠'),
            "circ" | "degree" => self.degree(),
            "text" | "textrm" | "textbf" | "textit" | "mathrm" | "mathbf" | "mathit" | "mbox"
            | "operatorname" | "boldsymbol" | "mathsf" | "texttt" => {
                self.styled();
            }
            _ => self.out.push(UNKNOWN),
        }
    }

    /// A backslash before a character that is not a letter.
    fn symbol(&mut self) {
        let Some(character) = self.peek(0) else { return };
        self.at += 1;
        match character {
            '{' => self.out.push(SET_OPEN),
            '}' => self.out.push(SET_CLOSE),
            '%' => self.out.push('%'),
            '!' | '$' | '(' | ')' | '[' | ']' | '&' | '#' => {}
            ',' if self.out.last().is_some_and(char::is_ascii_digit)
                && self.peek(0).is_some_and(|next| next.is_ascii_digit()) => {}
            ',' | ';' | ':' | ' ' | '\\' | '/' => self.out.push(' '),
            _ => self.out.push(UNKNOWN),
        }
    }

    /// `\text{…}`: words and single letters become words and units; a formula is kept.
    fn styled(&mut self) {
        let rest = &self.characters[self.at..];
        let Some(end) = rest
            .iter()
            .position(|&character| character == '}')
            .filter(|_| rest.first() == Some(&'{'))
        else {
            return;
        };
        let inside = &rest[1..end];
        if inside
            .iter()
            .any(|character| character.is_ascii_digit() || matches!(character, '\\' | '{'))
        {
            return; // Its braces are a group like any other.
        }
        self.at += end + 1;
        self.out.push(' ');
        for word in
            inside.split(|character| !character.is_alphabetic()).filter(|word| !word.is_empty())
        {
            self.word(&word.iter().collect::<String>());
        }
    }

    /// A run of letters outside `\text`.
    fn letters(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(char::is_alphabetic) {
            self.at += 1;
        }
        let run: String = self.characters[start..self.at].iter().collect();
        let previous = self.out.last().copied();
        let glued =
            previous.is_some_and(|previous| !matches!(previous, ' ' | '(' | ',' | '/' | WORD));
        let operand_before = self
            .out
            .iter()
            .rev()
            .find(|character| **character != ' ')
            .is_some_and(|last| last.is_ascii_digit() || matches!(last, '}' | ')' | 'π'));
        match run.as_str() {
            "sqrt" => self.out.push('√'),
            "pi" => self.out.push('π'),
            "inf" | "infty" | "infinity" => self.out.push('∞'),
            _ if glued && GLUED_UNITS.contains(&run.as_str()) => self.out.push(WORD),
            _ if run.chars().count() >= 2 && !glued => self.word(&run),
            _ if previous == Some(' ') && operand_before && SHORT_UNITS.contains(&run) => {
                self.out.push(WORD);
            }
            _ if previous == Some('/') && self.out.iter().rev().nth(1) == Some(&WORD) => {
                self.out.push(WORD);
            }
            _ => self.out.extend(run.chars()),
        }
    }

    fn word(&mut self, word: &str) {
        self.out.push(match word.to_lowercase().as_str() {
            "and" | "or" => ',',
            "percent" => '%',
            "union" => '∪',
            lower if NEGATIONS.contains(&lower) => UNKNOWN,
            _ => WORD,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{FRACTION, SET_CLOSE, SET_OPEN, UNKNOWN, WORD, lex};

    fn lexed(text: &str) -> String {
        let readable = |character| match character {
            FRACTION => 'F',
            WORD => 'W',
            SET_OPEN => '⟦',
            SET_CLOSE => '⟧',
            UNKNOWN => '?',
            other => other,
        };
        lex(text).into_iter().map(readable).collect()
    }

    #[test]
    fn formatting_is_dropped_and_commands_become_one_character() {
        assert_eq!(lexed(r"$\left( \dfrac{1}{2},\; \sqrt 3 \right)$"), "( F{1}{2},  √ 3 )");
        assert_eq!(lexed(r"\{1{,}000, 2\,000\}"), "⟦1000, 2000⟧");
        assert_eq!(lexed(r"90^\circ, 45^{\circ}, 30°"), "90W, 45W, 30W");
        assert_eq!(lexed(r"5\text{ cm}^2 \text{ and } 6 kg, 7km/h"), "5 W^2  , 6 W, 7W/W");
        assert_eq!(lexed("2x + 3 m, \\alpha"), "2x + 3 W, ?");
        assert_eq!(lexed(r"\mathbf{12} \text{3 or 4}"), "{12} {3 , 4}");
    }
}
