//! Answers that are not mathematics: letters of options and words.

use crate::lex::{Kind, Token};

/// Last letter of an option.
const LAST_OPTION: char = 'J';

/// The letter of `C`, `(C)`, `C)` or `option C`.
pub fn choice(tokens: &[Token]) -> Option<char> {
    let tokens = match tokens {
        [word, rest @ ..] if word.text().is_some_and(is_option) && !rest.is_empty() => rest,
        other => other,
    };
    let letter = match tokens {
        [letter] => letter,
        [letter, close] if close.is(')') => letter,
        [open, letter, close] if open.is('(') && close.is(')') => letter,
        _ => return None,
    };
    let (Kind::Variable(name) | Kind::Text(name)) = &letter.kind else { return None };
    let mut characters = name.chars();
    let letter = characters.next().filter(|letter| ('A'..=LAST_OPTION).contains(letter))?;
    characters.next().is_none().then_some(letter)
}

fn is_option(word: &str) -> bool {
    matches!(word.to_lowercase().as_str(), "option" | "choice")
}

/// Words in lower case, joined by one space.
pub fn words(tokens: &[Token]) -> Option<String> {
    let tokens = match tokens {
        [open, inside @ .., close] if open.is('(') && close.is(')') => inside,
        other => other,
    };
    let word = |token: &Token| match &token.kind {
        Kind::Text(text) => Some(text.to_lowercase()),
        Kind::Variable(name) if name.chars().all(char::is_alphabetic) => Some(name.to_lowercase()),
        _ => None,
    };
    let is_text = tokens.iter().any(|token| token.text().is_some_and(|text| text.len() > 1));
    if !is_text {
        return None;
    }
    tokens.iter().map(word).collect::<Option<Vec<_>>>().map(|words| words.join(" "))
}
