//! Letters outside commands: variables, function names, units or words, by context.

use crate::lex::token::{Kind, Lexer, Token};
use crate::units;

/// Functions that are also recognized without a backslash.
pub const FUNCTION_NAMES: [&str; 21] = [
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh",
    "log", "ln", "exp", "gcd", "lcm", "sqrt", "lg", "cis", "max",
];

/// Words of two or three letters; other runs of this length are products of variables.
const COMMON_WORDS: [&str; 34] = [
    "yes", "no", "odd", "even", "one", "two", "six", "ten", "red", "all", "any", "none", "not",
    "and", "or", "if", "to", "of", "at", "by", "the", "is", "are", "was", "has", "per", "for",
    "on", "day", "men", "min", "max", "non", "add",
];

impl Lexer<'_> {
    /// A run of letters.
    pub(super) fn letters(&mut self, end: usize, words: bool) {
        let start = self.at;
        while self.at < end && self.peek(0).is_some_and(|next| next.is_alphabetic() && next != 'π')
        {
            self.advance(1);
        }
        let mut run = self.between(start, self.at);
        if words {
            // Hyphens and apostrophes inside of words.
            while self.at.saturating_add(1) < end
                && matches!(self.peek(0), Some('-' | '\'' | '’'))
                && self.peek(1).is_some_and(char::is_alphabetic)
            {
                run.push('-');
                self.advance(1);
                while self.at < end && self.peek(0).is_some_and(char::is_alphabetic) {
                    run.extend(self.peek(0));
                    self.advance(1);
                }
            }
            self.push(Kind::Text(run));
            return;
        }
        let kind = match run.as_str() {
            "pi" => Kind::Sign('π'),
            "inf" | "infty" | "infinity" => Kind::Sign('∞'),
            name => match FUNCTION_NAMES.iter().find(|function| **function == name) {
                Some(name) => Kind::Command(name),
                None if run.chars().count() == 1 => Kind::Variable(run),
                None => Kind::Letters(run),
            },
        };
        self.push(kind);
    }
}

/// Replaces runs of letters by units, words or variables.
pub fn resolve(tokens: Vec<Token>) -> Vec<Token> {
    let only_letters =
        tokens.iter().all(|token| matches!(token.kind, Kind::Letters(_) | Kind::Text(_)));
    let is_prose = tokens
        .iter()
        .all(|token| matches!(token.kind, Kind::Letters(_) | Kind::Text(_) | Kind::Variable(_)))
        && tokens.iter().any(|token| matches!(&token.kind, Kind::Letters(run) if run.len() > 3));
    let mut out: Vec<Token> = Vec::with_capacity(tokens.len());
    for token in tokens {
        let Kind::Letters(run) = &token.kind else {
            out.push(unit_divisor(token, &out));
            continue;
        };
        let is_unit = units::is_known(run) && follows_operand(&out);
        let length = run.chars().count();
        let is_word = length > 3
            || is_prose
            || COMMON_WORDS.contains(&run.to_lowercase().as_str())
            || !run.is_ascii()
            || (only_letters && units::is_known(run));
        if is_unit || is_word {
            out.push(Token { kind: Kind::Text(run.clone()), space: token.space });
            continue;
        }
        for (at, letter) in run.chars().enumerate() {
            let kind = Kind::Variable(letter.to_string());
            out.push(Token { kind, space: token.space && at == 0 });
        }
    }
    out
}

/// The `h` of `km/h` is a word.
fn unit_divisor(token: Token, before: &[Token]) -> Token {
    match (&token.kind, before) {
        (Kind::Variable(name), [.., unit, slash]) if slash.is('/') && unit.text().is_some() => {
            Token { kind: Kind::Text(name.clone()), ..token }
        }
        _ => token,
    }
}

/// Whether a unit may follow.
fn follows_operand(before: &[Token]) -> bool {
    match before.last().map(|token| &token.kind) {
        Some(Kind::Number(..) | Kind::Text(_)) => true,
        Some(Kind::Sign(sign)) => {
            matches!(sign, '}' | ')' | 'π')
                || *sign == '/'
                    && before.iter().rev().nth(1).is_some_and(|unit| unit.text().is_some())
        }
        _ => false,
    }
}
