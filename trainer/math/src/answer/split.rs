//! Splitting of tokens at separators outside brackets.

use crate::lex::{Kind, SET_CLOSE, SET_OPEN, Token};

pub fn opens(token: &Token) -> bool {
    matches!(token.kind, Kind::Begin | Kind::Sign('(' | '[' | '{' | SET_OPEN | '⌊' | '⌈'))
}

pub fn closes(token: &Token) -> bool {
    matches!(token.kind, Kind::End | Kind::Sign(')' | ']' | '}' | SET_CLOSE | '⌋' | '⌉'))
}

/// Without trailing punctuation.
pub fn trimmed(mut tokens: &[Token]) -> &[Token] {
    while let [rest @ .., last] = tokens {
        if !matches!(last.kind, Kind::Sign('.' | ',' | ';' | ':')) {
            break;
        }
        tokens = rest;
    }
    tokens
}

/// Positions outside brackets for which `separates` is true.
pub fn positions(tokens: &[Token], separates: impl Fn(usize) -> bool) -> Vec<usize> {
    let (mut found, mut depth) = (Vec::new(), 0_usize);
    for (at, token) in tokens.iter().enumerate() {
        if opens(token) {
            depth += 1;
        } else if closes(token) {
            depth = depth.saturating_sub(1);
        } else if depth == 0 && separates(at) {
            found.push(at);
        }
    }
    found
}

/// The parts between positions.
pub fn parts<'a>(tokens: &'a [Token], positions: &[usize]) -> Vec<&'a [Token]> {
    let mut start = 0;
    let mut parts: Vec<&[Token]> = Vec::with_capacity(positions.len() + 1);
    for &at in positions {
        parts.push(&tokens[start..at]);
        start = at + 1;
    }
    parts.push(&tokens[start..]);
    parts
}

/// Opening bracket, content and closing bracket if brackets enclose all tokens.
pub fn bracketed(tokens: &[Token]) -> Option<(char, &[Token], char)> {
    let [first, inside @ .., last] = tokens else { return None };
    let (Kind::Sign(open), Kind::Sign(close)) = (&first.kind, &last.kind) else { return None };
    let mut depth = 0_usize;
    for token in inside {
        if opens(token) {
            depth += 1;
        } else if closes(token) {
            depth = depth.checked_sub(1)?;
        }
    }
    (opens(first) && closes(last) && depth == 0).then_some((*open, inside, *close))
}

/// Whether the comma at `at` is a thousands separator: one to three digits before it, exactly
/// three after it, no spaces.
pub fn is_thousands(tokens: &[Token], at: usize) -> bool {
    let group = |index: Option<usize>| match index.and_then(|index| tokens.get(index)) {
        Some(Token { kind: Kind::Number(digits, places), space }) => {
            Some((digits.as_str(), *places, *space))
        }
        _ => None,
    };
    let Some((after, decimals, false)) = group(Some(at + 1)) else { return false };
    let Some((before, 0, _)) = group(at.checked_sub(1)) else { return false };
    // `0,123` is no number; `12,345` continues if the digits before are themselves a group.
    let continues = at >= 2 && tokens[at - 2].is(',') && is_thousands(tokens, at - 2);
    let starts = (1..=3).contains(&before.len()) && !before.starts_with('0');
    !tokens[at].space && after.len() == 3 + decimals && (starts || (continues && before.len() == 3))
}
