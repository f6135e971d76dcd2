//! Tokens of a formula in LaTeX or plain notation.

use std::iter::Peekable;
use std::str::Chars;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::One;

/// Maximum number of tokens.
const MAX_TOKENS: usize = 256;
/// Maximum number of digits of a number.
const MAX_DIGITS: usize = 64;
/// Most letters in a row that are variables; longer runs are words.
const MAX_LETTERS: usize = 2;
/// Letters of which three in a row are variables too.
const COMMON_VARIABLES: &str = "abcxyz";
const GREEK: [&str; 16] = [
    "alpha", "beta", "gamma", "delta", "epsilon", "theta", "lambda", "mu", "nu", "rho", "sigma",
    "tau", "phi", "psi", "omega", "pi",
];

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Number(BigRational),
    /// A letter with its subscript.
    Variable(String),
    /// The square root of a whole number.
    Root(String),
    /// `+`, `-`, `*`, `/` or `^`.
    Operator(char),
    Open(char),
    Close(char),
    /// `\frac`.
    Fraction,
    /// `=`, `≠`, `<`, `>`, `≤` or `≥`.
    Relation(char),
}

/// The tokens of a text; `None` if it contains anything else.
pub fn tokens(text: &str) -> Option<Vec<Token>> {
    if has_words(text) {
        return None;
    }
    let (mut characters, mut tokens) = (text.chars().peekable(), Vec::new());
    while let Some(&character) = characters.peek() {
        if tokens.len() == MAX_TOKENS {
            return None;
        }
        if character.is_ascii_digit() || character == '.' {
            tokens.push(number(&mut characters)?);
            continue;
        }
        characters.next();
        let token = match character {
            '$' => continue,
            _ if character.is_whitespace() => continue,
            'a'..='z' | 'A'..='Z' => {
                Some(Token::Variable(with_subscript(character.to_string(), &mut characters)?))
            }
            '+' | '-' | '*' | '/' | '^' => Some(Token::Operator(character)),
            '−' => Some(Token::Operator('-')),
            '·' | '×' => Some(Token::Operator('*')),
            '²' => {
                tokens.push(Token::Operator('^'));
                Some(Token::Number(BigRational::from_integer(2.into())))
            }
            '(' | '[' | '{' => Some(Token::Open(character)),
            ')' | ']' | '}' => Some(Token::Close(character)),
            '=' | '<' | '>' | '≤' | '≥' | '≠' => Some(Token::Relation(character)),
            'π' => Some(Token::Variable("pi".to_owned())),
            '\\' => command(&mut characters)?,
            _ => return None,
        };
        tokens.extend(token);
    }
    // A period ends a sentence.
    Some(tokens)
}

/// Whether the text has a run of more than [`MAX_LETTERS`] letters outside commands.
fn has_words(text: &str) -> bool {
    let (mut run, mut is_common, mut in_command) = (0, true, false);
    for character in text.chars() {
        if character == '\\' {
            in_command = true;
        } else if !character.is_alphabetic() {
            (run, is_common, in_command) = (0, true, false);
        } else if !in_command {
            run += 1;
            is_common &= COMMON_VARIABLES.contains(character);
            if run > MAX_LETTERS + usize::from(is_common) {
                return true;
            }
        }
    }
    false
}

fn number(characters: &mut Peekable<Chars<'_>>) -> Option<Token> {
    let (mut digits, mut decimals) = (String::new(), None);
    while let Some(&character) = characters.peek() {
        match character {
            '0'..='9' => {
                digits.push(character);
                decimals = decimals.map(|count: u32| count + 1);
            }
            '.' if decimals.is_none() => decimals = Some(0),
            _ => break,
        }
        characters.next();
    }
    if digits.is_empty() || digits.len() > MAX_DIGITS || decimals == Some(0) {
        return None;
    }
    let value = BigInt::parse_bytes(digits.as_bytes(), 10)?;
    let scale = BigInt::from(10).pow(decimals.unwrap_or(0));
    Some(Token::Number(BigRational::new(value, scale)))
}

/// The name with `_1` or `_{12}`.
fn with_subscript(name: String, characters: &mut Peekable<Chars<'_>>) -> Option<String> {
    if characters.next_if_eq(&'_').is_none() {
        return Some(name);
    }
    let first = characters.next()?;
    if first.is_ascii_alphanumeric() {
        return Some(format!("{name}_{first}"));
    }
    let mut subscript = String::new();
    while let Some(character) = characters.next_if(char::is_ascii_alphanumeric) {
        subscript.push(character);
    }
    let is_group = first == '{' && characters.next() == Some('}') && !subscript.is_empty();
    is_group.then(|| format!("{name}_{subscript}"))
}

/// The token of a command; `Some(None)` for formatting, `None` for an unknown command.
#[expect(clippy::option_option, reason = "formatting has no token, an unknown command fails")]
fn command(characters: &mut Peekable<Chars<'_>>) -> Option<Option<Token>> {
    let mut name = String::new();
    while let Some(letter) = characters.next_if(char::is_ascii_alphabetic) {
        name.push(letter);
    }
    Some(match name.as_str() {
        "" => match characters.next()? {
            ',' | ';' | ':' | '!' | ' ' => None,
            _ => return None,
        },
        "left" | "right" | "displaystyle" | "quad" => None,
        "frac" | "dfrac" | "tfrac" => Some(Token::Fraction),
        "cdot" | "times" => Some(Token::Operator('*')),
        "le" | "leq" | "leqslant" => Some(Token::Relation('≤')),
        "ge" | "geq" | "geqslant" => Some(Token::Relation('≥')),
        "lt" => Some(Token::Relation('<')),
        "gt" => Some(Token::Relation('>')),
        "ne" | "neq" => Some(Token::Relation('≠')),
        "sqrt" => Some(root(characters)?),
        greek if GREEK.contains(&greek) => {
            Some(Token::Variable(with_subscript(name.clone(), characters)?))
        }
        _ => return None,
    })
}

/// `{n}` after `\sqrt`.
fn root(characters: &mut Peekable<Chars<'_>>) -> Option<Token> {
    characters.next_if_eq(&'{')?;
    let Token::Number(inside) = number(characters)? else { return None };
    characters.next_if_eq(&'}')?;
    inside.denom().is_one().then(|| Token::Root(format!("√{inside}")))
}
