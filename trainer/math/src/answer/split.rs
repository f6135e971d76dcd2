//! Splitting of tokens at separators outside brackets.

use std::iter;

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
pub fn positions(tokens: &[Token], separates: impl Fn(usize, &Token) -> bool) -> Vec<usize> {
    let (mut found, mut depth) = (Vec::new(), 0_usize);
    for (at, token) in tokens.iter().enumerate() {
        if opens(token) {
            depth = depth.saturating_add(1);
        } else if closes(token) {
            depth = depth.saturating_sub(1);
        } else if depth == 0 && separates(at, token) {
            found.push(at);
        }
    }
    found
}

/// The parts between positions.
pub fn parts<'a>(tokens: &'a [Token], positions: &[usize]) -> Vec<&'a [Token]> {
    let starts = iter::once(0).chain(positions.iter().map(|at| at.saturating_add(1)));
    let ends = positions.iter().copied().chain(iter::once(tokens.len()));
    starts.zip(ends).filter_map(|(start, end)| tokens.get(start..end)).collect()
}

/// Opening bracket, content and closing bracket if brackets enclose all tokens.
pub fn bracketed(tokens: &[Token]) -> Option<(char, &[Token], char)> {
    let [first, inside @ .., last] = tokens else { return None };
    let (Kind::Sign(open), Kind::Sign(close)) = (&first.kind, &last.kind) else { return None };
    let mut depth = 0_usize;
    for token in inside {
        if opens(token) {
            depth = depth.saturating_add(1);
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
    let Some((after, decimals, false)) = group(at.checked_add(1)) else { return false };
    let Some((before, 0, _)) = group(at.checked_sub(1)) else { return false };
    // `0,123` is no number; `12,345` continues if the digits before are themselves a group.
    let comma = |at: usize| tokens.get(at).is_some_and(|token| token.is(','));
    let continues = at.checked_sub(2).is_some_and(|at| comma(at) && is_thousands(tokens, at));
    let starts = (1..=3).contains(&before.len()) && !before.starts_with('0');
    tokens.get(at).is_some_and(|comma| !comma.space)
        && after.len() == decimals.saturating_add(3)
        && (starts || (continues && before.len() == 3))
}
