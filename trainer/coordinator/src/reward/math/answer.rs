//! An answer's shape: a number, a tuple or interval, a set, a list, a union; and when two of them
//! are the same.
//!
//! `x = 5` and `f(2) = 5` are 5. `1, 2`, `2 or 1` and `\{1, 2\}` are one set; `(1, 2)` is a pair,
//! or the open interval, which is written the same. A percentage is both its number and a hundredth
//! of it: an answer key that says `50` and one that says `0.5` mean `50\%` alike.

use num_rational::BigRational;

use super::expression;
use super::lex::{SET_CLOSE, SET_OPEN, UNKNOWN, WORD, lex};
use super::number::Number;

/// Longest text that is read as an answer, in bytes.
pub const MAX_BYTES: usize = 2048;
/// Parts of a set, tuple or union.
const MAX_PARTS: usize = 64;
/// Sets in tuples in sets.
const MAX_DEPTH: u32 = 8;

/// What an answer is.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A number; with `percent`, also a hundredth of it.
    Number {
        /// The number as written.
        value: Number,
        /// Whether a percent sign stands behind it.
        percent: bool,
    },
    /// A tuple or interval with its brackets.
    Sequence {
        /// `(` or `[`.
        open: char,
        /// `)` or `]`.
        close: char,
        /// In order.
        items: Vec<Answer>,
    },
    /// In any order.
    Set(Vec<Answer>),
    /// Parts without brackets: a set, or the tuple that it stands beside.
    List(Vec<Answer>),
    /// Intervals, in any order.
    Union(Vec<Answer>),
}

impl Answer {
    /// Whether both are the same value.
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
            (Self::Set(one) | Self::List(one), single)
            | (single, Self::Set(one) | Self::List(one)) => {
                matches!(one.as_slice(), [only] if only.equals(single))
            }
            _ => false,
        }
    }
}

fn same_number(a: &Number, percent_a: bool, b: &Number, percent_b: bool) -> bool {
    let hundredth =
        |value: &Number| value.over(&Number::from(BigRational::from_integer(100.into())));
    let beside = |percentage: &Number, other: &Number| {
        hundredth(percentage).is_some_and(|value| value.equals(other))
    };
    a.equals(b)
        || (percent_a && !percent_b && beside(a, b))
        || (percent_b && !percent_a && beside(b, a))
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

/// The readings of a text: one, or two where `(1,234)` may be a pair or a number in brackets. Empty
/// if the text is no answer.
pub fn readings(text: &str) -> Vec<Answer> {
    if text.len() > MAX_BYTES {
        return Vec::new();
    }
    let characters = lex(text.trim().trim_matches('*'));
    let characters = trimmed(&characters);
    if characters.is_empty() || characters.contains(&UNKNOWN) {
        return Vec::new();
    }
    let mut readings: Vec<Answer> = [true, false]
        .into_iter()
        .filter_map(|thousands| Reader { thousands, depth: 0 }.list(characters))
        .collect();
    readings.dedup();
    readings
}

/// Without white space and the full stop around.
fn trimmed(mut characters: &[char]) -> &[char] {
    while let [' ', rest @ ..] = characters {
        characters = rest;
    }
    while let [rest @ .., ' ' | '.' | ',' | ';' | ':'] = characters {
        characters = rest;
    }
    characters
}

/// Reads an answer's shape.
#[derive(Clone, Copy)]
struct Reader {
    /// Whether `1,234` in brackets is one number.
    thousands: bool,
    depth: u32,
}

impl Reader {
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

    /// One part, `name = ` before it passed over.
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
                // A group around a set or a tuple, or around a number with its unit.
                ('(', ')') | ('{', '}') => return inner.item(inside),
                _ => {}
            }
        }
        number(characters)
    }
}

/// What stands between commas and semicolons outside brackets. `1, 2, and 3` has three parts.
fn parts(characters: &[char], thousands: bool) -> Option<Vec<&[char]>> {
    let separates = |at: usize| match characters[at] {
        ';' => true,
        ',' => !(thousands && in_number(characters, at)),
        _ => false,
    };
    let parts: Vec<&[char]> = split(characters, separates).into_iter().map(trimmed).collect();
    let last = parts.len() - 1;
    // "1, 2, and 3": the comma before `and`, itself a separator, leaves nothing between.
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
    // A unit may follow the sign: `50\% of them`.
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

/// Opening bracket, inside and closing bracket of a text that is bracketed as a whole.
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

/// Splits at the positions outside brackets that `separates` names.
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

/// Whether the comma at `at` separates thousands: one to three digits before it, exactly three
/// behind.
fn in_number(characters: &[char], at: usize) -> bool {
    let digits = |characters: &mut dyn Iterator<Item = &char>| {
        characters.take_while(|character| character.is_ascii_digit()).count()
    };
    let before = digits(&mut characters[..at].iter().rev());
    let decimals = characters[..at - before].last() == Some(&'.');
    (1..=3).contains(&before) && !decimals && digits(&mut characters[at + 1..].iter()) == 3
}

/// The letter U between two brackets.
fn is_union_letter(characters: &[char], at: usize) -> bool {
    let before = characters[..at].iter().rev().find(|character| **character != ' ');
    let behind = characters[at + 1..].iter().find(|character| **character != ' ');
    characters[at] == 'U'
        && before.is_some_and(|character| closes(*character))
        && behind.is_some_and(|character| opens(*character))
}

fn opens(character: char) -> bool {
    matches!(character, '(' | '[' | '{' | SET_OPEN)
}

fn closes(character: char) -> bool {
    matches!(character, ')' | ']' | '}' | SET_CLOSE)
}
