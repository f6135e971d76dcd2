//! Tokens, and the state of the lexer.

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Digits, and the number of them after the decimal point.
    Number(String, usize),
    Variable(String),
    /// A word or unit.
    Text(String),
    /// An operator, bracket or separator.
    Sign(char),
    /// A command with arguments, or a function.
    Command(&'static str),
    /// A command without a meaning here. No value contains it; see `Answer::Notation`.
    Symbol(String),
    /// Start of a matrix.
    Begin,
    End,
    /// Adjacent letters outside `\text`; replaced before parsing.
    Letters(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub kind: Kind,
    /// Whether white space precedes it.
    pub space: bool,
}

impl Token {
    pub fn is(&self, sign: char) -> bool {
        self.kind == Kind::Sign(sign)
    }

    pub fn text(&self) -> Option<&str> {
        if let Kind::Text(text) = &self.kind { Some(text) } else { None }
    }
}

/// Position in a text, and the tokens before it.
pub struct Lexer<'a> {
    pub characters: &'a [char],
    pub at: usize,
    pub out: Vec<Token>,
    pub space: bool,
    /// Whether the next `$` is a currency.
    pub currency: bool,
    pub depth: u32,
}

impl Lexer<'_> {
    pub fn peek(&self, ahead: usize) -> Option<char> {
        self.characters.get(self.at.checked_add(ahead)?).copied()
    }

    pub fn advance(&mut self, count: usize) {
        self.at = self.at.saturating_add(count);
    }

    /// The characters between two positions.
    pub fn between(&self, start: usize, end: usize) -> String {
        self.characters.iter().take(end).skip(start).collect()
    }

    pub fn push(&mut self, kind: Kind) {
        self.out.push(Token { kind, space: self.space });
        self.space = false;
    }

    pub fn sign(&mut self, sign: char) {
        self.push(Kind::Sign(sign));
    }
}
