//! Answer parser and equality: numbers, tuples and intervals, sets, lists and unions.
//!
//! `x = 5` and `f(2) = 5` are 5. `1, 2`, `2 or 1` and `\{1, 2\}` are the same set. `(1, 2)` is a
//! pair or an open interval: both have the same notation. A percentage equals both its number and a
//! hundredth of it: `50\%` matches the reference answers `50` and `0.5`.

use num_rational::BigRational;

use crate::reward::math::expression;
use crate::reward::math::lex::{SET_CLOSE, SET_OPEN, UNKNOWN, WORD, lex};
use crate::reward::math::number::Number;

/// Maximum length of an answer in bytes.
const MAX_BYTES: usize = 2048;
/// Maximum number of elements of a set, tuple or union.
const MAX_PARTS: usize = 64;
/// Maximum nesting of sets and tuples.
const MAX_DEPTH: u32 = 8;

/// A parsed answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A number; if `percent`, a hundredth of it as well.
    Number {
        value: Number,
        percent: bool,
    },
    /// A tuple or an interval with its brackets.
    Sequence {
        /// `(` or `[`.
        open: char,
        /// `)` or `]`.
        close: char,
        items: Vec<Answer>,
    },
    Set(Vec<Answer>),
    /// Elements without brackets; equals the set and the tuple of these elements.
    List(Vec<Answer>),
    /// Intervals in any order.
    Union(Vec<Answer>),
}

impl Answer {
    /// Whether both have the same value.
    pub fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Number { value: a, percent: p }, Self::Number { value: b, percent: q }) => {
                same_number(a, *p, b, *q)
            }
            (Self::Set(a) | Self::List(a), Self::Set(b) | Self::List(b))
            | (Self::Union(a), Self::Union(b)) => same_set(a, b),
            (
                Self::Sequence { open, close, items: a },
                Self::Sequence { open: other_open, close: other_close, items: b },
            ) => open == other_open && close == other_close && same_order(a, b),
            (Self::List(a), Self::Sequence { open: '(', close: ')', items: b })
            | (Self::Sequence { open: '(', close: ')', items: a }, Self::List(b)) => {
                same_order(a, b)
            }
            (Self::Set(items) | Self::List(items), single)
            | (single, Self::Set(items) | Self::List(items)) => {
                matches!(items.as_slice(), [only] if only.equals(single))
            }
            _ => false,
        }
    }
}

fn same_number(a: &Number, percent_a: bool, b: &Number, percent_b: bool) -> bool {
    let hundredth =
        |value: &Number| value.over(&Number::from(BigRational::from_integer(100.into())));
    let equals_hundredth = |percentage: &Number, other: &Number| {
        hundredth(percentage).is_some_and(|value| value.equals(other))
    };
    a.equals(b)
        || (percent_a && !percent_b && equals_hundredth(a, b))
        || (percent_b && !percent_a && equals_hundredth(b, a))
}

fn same_order(a: &[Answer], b: &[Answer]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b))
}

fn same_set(a: &[Answer], b: &[Answer]) -> bool {
    let within = |some: &[Answer], others: &[Answer]| {
        some.iter().all(|item| others.iter().any(|other| item.equals(other)))
    };
    within(a, b) && within(b, a)
}

/// Parses a text. Returns two interpretations if `(1,234)` may be a pair or a number in brackets;
/// none if the text is not an answer.
pub fn parse(text: &str) -> Vec<Answer> {
    if text.len() > MAX_BYTES {
        return Vec::new();
    }
    let characters = lex(text.trim().trim_matches('*'));
    let characters = trimmed(&characters);
    if characters.is_empty() || characters.contains(&UNKNOWN) {
        return Vec::new();
    }
    let mut interpretations: Vec<Answer> = [true, false]
        .into_iter()
        .filter_map(|thousands| Parser { thousands, depth: 0 }.list(characters))
        .collect();
    interpretations.dedup();
    interpretations
}

/// Removes leading spaces, and trailing spaces and punctuation.
fn trimmed(mut characters: &[char]) -> &[char] {
    while let [' ', rest @ ..] = characters {
        characters = rest;
    }
    while let [rest @ .., ' ' | '.' | ',' | ';' | ':'] = characters {
        characters = rest;
    }
    characters
}

#[derive(Clone, Copy)]
struct Parser {
    /// Whether `1,234` in brackets is a number.
    thousands: bool,
    depth: u32,
}

impl Parser {
    fn list(self, characters: &[char]) -> Option<Answer> {
        let parts = parts(characters, self.depth == 0 || self.thousands)?;
        if let [only] = parts.as_slice() {
            return self.item(only);
        }
        Some(Answer::List(self.items(&parts)?))
    }

    fn items(self, parts: &[&[char]]) -> Option<Vec<Answer>> {
        parts.iter().map(|part| self.item(part)).collect()
    }

    /// An element; a leading `name = ` is ignored.
    fn item(self, characters: &[char]) -> Option<Answer> {
        if self.depth == MAX_DEPTH {
            return None;
        }
        let sides = split(characters, |at| characters[at] == '=');
        let value = trimmed(sides.last().copied().unwrap_or(characters));
        let unions = split(value, |at| value[at] == '∪' || is_union_letter(value, at));
        let unions: Vec<&[char]> = unions.into_iter().map(trimmed).collect();
        if let [only] = unions.as_slice() {
            return self.simple(only);
        }
        let parts: Vec<Answer> =
            unions.iter().map(|part| self.simple(part)).collect::<Option<_>>()?;
        if parts.iter().all(|part| matches!(part, Answer::Set(_))) {
            return Some(Answer::Set(
                parts
                    .into_iter()
                    .flat_map(|part| if let Answer::Set(items) = part { items } else { vec![part] })
                    .collect(),
            ));
        }
        Some(Answer::Union(parts))
    }

    /// A bracketed shape or a number.
    fn simple(self, characters: &[char]) -> Option<Answer> {
        let characters = without_leading_words(characters);
        if characters == ['∅'] {
            return Some(Answer::Set(Vec::new()));
        }
        if let Some((open, inside, close)) = bracketed(characters) {
            let inner = Self { depth: self.depth + 1, ..self };
            let parts = parts(inside, self.thousands)?;
            match (open, close) {
                (SET_OPEN, SET_CLOSE) if trimmed(inside).is_empty() => {
                    return Some(Answer::Set(Vec::new()));
                }
                (SET_OPEN, SET_CLOSE) => return inner.items(&parts).map(Answer::Set),
                ('{', '}') if parts.len() > 1 => return inner.items(&parts).map(Answer::Set),
                ('(' | '[', ')' | ']') if parts.len() > 1 => {
                    return inner.items(&parts).map(|items| Answer::Sequence {
                        open,
                        close,
                        items,
                    });
                }
                // Brackets around a set, a tuple, or a number with its unit.
                ('(', ')') | ('{', '}') => return inner.item(inside),
                _ => {}
            }
        }
        number(characters)
    }
}

/// Splits at commas and semicolons outside brackets. `1, 2, and 3` has three parts.
fn parts(characters: &[char], thousands: bool) -> Option<Vec<&[char]>> {
    let separates = |at: usize| match characters[at] {
        ';' => true,
        ',' => !(thousands && in_number(characters, at)),
        _ => false,
    };
    let parts: Vec<&[char]> = split(characters, separates).into_iter().map(trimmed).collect();
    let last = parts.len() - 1;
    // `and` is a separator too: in "1, 2, and 3" the part before it is empty.
    let parts: Vec<&[char]> = parts
        .into_iter()
        .enumerate()
        .filter(|(at, part)| !part.is_empty() || *at == 0 || *at == last)
        .map(|(_, part)| part)
        .collect();
    (parts.len() <= MAX_PARTS).then_some(parts)
}

fn number(characters: &[char]) -> Option<Answer> {
    let value = trimmed(characters);
    // Words may follow the percent sign: `50\% of them`.
    let end = value
        .iter()
        .rposition(|character| !matches!(character, &WORD | ' '))
        .map_or(0, |last| last + 1);
    let percent = value[..end].last() == Some(&'%');
    let value = if percent { &value[..end - 1] } else { value };
    let number =
        |lower| expression::value(value, lower).map(|value| Answer::Number { value, percent });
    if value.iter().any(|character| matches!(character, '±' | '∓')) {
        return Some(Answer::Set(vec![number(false)?, number(true)?]));
    }
    number(false)
}

fn without_leading_words(mut characters: &[char]) -> &[char] {
    while let [' ' | WORD, rest @ ..] = characters {
        characters = rest;
    }
    characters
}

/// Opening bracket, content and closing bracket if brackets enclose the whole text.
fn bracketed(characters: &[char]) -> Option<(char, &[char], char)> {
    let [open, inside @ .., close] = characters else { return None };
    let mut depth = 0_usize;
    for character in inside {
        if opens(*character) {
            depth += 1;
        } else if closes(*character) {
            depth = depth.checked_sub(1)?;
        }
    }
    (opens(*open) && closes(*close) && depth == 0).then_some((*open, inside, *close))
}

/// Splits at the positions outside brackets for which `separates` is true.
fn split(characters: &[char], separates: impl Fn(usize) -> bool) -> Vec<&[char]> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, character) in characters.iter().enumerate() {
        if opens(*character) {
            depth += 1;
        } else if closes(*character) {
            depth = depth.saturating_sub(1);
        } else if depth == 0 && separates(at) {
            parts.push(&characters[start..at]);
            start = at + 1;
        }
    }
    parts.push(&characters[start..]);
    parts
}

/// Whether the comma at `at` is a thousands separator: one to three digits before it, exactly
/// three after it.
fn in_number(characters: &[char], at: usize) -> bool {
    let digits = |characters: &mut dyn Iterator<Item = &char>| {
        characters.take_while(|character| character.is_ascii_digit()).count()
    };
    let before = digits(&mut characters[..at].iter().rev());
    let decimals = characters[..at - before].last() == Some(&'.');
    (1..=3).contains(&before) && !decimals && digits(&mut characters[at + 1..].iter()) == 3
}

/// Whether the character at `at` is the letter U between two brackets.
fn is_union_letter(characters: &[char], at: usize) -> bool {
    let before = characters[..at].iter().rev().find(|character| **character != ' ');
    let after = characters[at + 1..].iter().find(|character| **character != ' ');
    characters[at] == 'U'
        && before.is_some_and(|character| closes(*character))
        && after.is_some_and(|character| opens(*character))
}

fn opens(character: char) -> bool {
    matches!(character, '(' | '[' | '{' | SET_OPEN)
}

fn closes(character: char) -> bool {
    matches!(character, ')' | ']' | '}' | SET_CLOSE)
}
