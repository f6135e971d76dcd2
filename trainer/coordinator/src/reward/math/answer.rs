//! Answer parser and equality: numbers, tuples and intervals, sets, lists and unions.
//!
//! `x = 5` equals `5` and not `y = 5`; `x \ge 5` equals `[5, \infty)`. `1, 2`, `2 or 1` and
//! `\{1, 2\}` are the same set; `a = 2, b = 3` equals `2, 3` and not `3, 2`. `(1, 2)` is a pair or
//! an open interval: both have the same notation. A percentage equals both its number and a
//! hundredth of it: `50\%` matches the reference answers `50` and `0.5`. Formulas with variables
//! are compared by [`algebra`], words as text. Any other text is not an answer.

use num_rational::BigRational;

use crate::reward::math::algebra::{self, Form};
use crate::reward::math::expression;
use crate::reward::math::lex::{SET_CLOSE, SET_OPEN, UNKNOWN, WORD, lex};
use crate::reward::math::number::Number;
use crate::reward::math::words::words;

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
    /// A value or set of values of a variable; equals the same one without a name.
    Named {
        name: String,
        value: Box<Answer>,
    },
    /// A formula with variables.
    Formula(Form),
    /// A choice, or words.
    Words(String),
}

impl Answer {
    /// Whether both have the same value.
    pub fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Number { value: a, percent: p }, Self::Number { value: b, percent: q }) => {
                same_number(a, *p, b, *q)
            }
            (Self::Named { name: a, value: x }, Self::Named { name: b, value: y }) => {
                a == b && x.equals(y)
            }
            (Self::Named { value, .. }, other) | (other, Self::Named { value, .. })
                if !other.is_list_of_names() =>
            {
                value.equals(other)
            }
            (Self::Formula(a), Self::Formula(b)) => a.equals(b),
            (Self::Words(a), Self::Words(b)) => a == b,
            (Self::Set(a) | Self::List(a), Self::Set(b) | Self::List(b))
                if is_named(a) != is_named(b) =>
            {
                same_order(a, b)
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

impl Answer {
    fn is_list_of_names(&self) -> bool {
        matches!(self, Self::List(items) if is_named(items))
    }
}

fn is_named(items: &[Answer]) -> bool {
    items.iter().any(|item| matches!(item, Answer::Named { .. }))
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
    let text = text.trim().trim_end_matches('.').trim_matches('*');
    let characters = lex(text);
    let characters = trimmed(&characters);
    let mut interpretations = Vec::new();
    if !characters.is_empty() && !characters.contains(&UNKNOWN) {
        let parsed = [true, false].map(|thousands| Parser { thousands, depth: 0 }.list(characters));
        interpretations.extend(parsed.into_iter().flatten());
        interpretations.dedup();
    }
    if interpretations.is_empty() {
        let formula = || algebra::parse(text.trim_end_matches(['.', ','])).map(Answer::Formula);
        interpretations.extend(words(text).map(Answer::Words).or_else(formula));
    }
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

    /// An element: a value, or a relation of a name and values.
    fn item(self, characters: &[char]) -> Option<Answer> {
        if self.depth == MAX_DEPTH {
            return None;
        }
        let relation = |at: usize| is_relation(characters[at]).then_some(characters[at]);
        let sides: Vec<&[char]> =
            split(characters, |at| relation(at).is_some()).into_iter().map(trimmed).collect();
        // The relations between the sides, outside brackets.
        let mut ends = Vec::new();
        let mut end = 0;
        for side in split(characters, |at| relation(at).is_some()) {
            end += side.len();
            ends.extend(characters.get(end).copied());
            end += 1;
        }
        match ends.as_slice() {
            [] => self.value(sides.first()?),
            relations if relations.iter().all(|relation| *relation == '=') => self.named(&sides),
            relations => self.bounded(&sides, relations),
        }
    }

    /// `x = 5`, `AB = 5`, `x = 2 + 3 = 5`: all values must be equal.
    fn named(self, sides: &[&[char]]) -> Option<Answer> {
        let (first, rest) = sides.split_first()?;
        let name = name(first);
        let values = if name.is_some() { rest } else { sides };
        let values: Vec<Answer> =
            values.iter().map(|side| self.value(side)).collect::<Option<_>>()?;
        let value = values.last()?.clone();
        if !values.iter().all(|other| other.equals(&value)) {
            return None;
        }
        Some(match name {
            Some(name) if !name.is_empty() => Answer::Named { name, value: Box::new(value) },
            _ => value,
        })
    }

    /// `x ≥ 5`, `1 < x ≤ 2`, `x ≠ 5`, as the values of the variable.
    fn bounded(self, sides: &[&[char]], relations: &[char]) -> Option<Answer> {
        let bound = |side: &[char]| match self.value(side)? {
            bound @ Answer::Number { percent: false, .. } => Some(bound),
            _ => None,
        };
        let variable = |side| name(side).filter(|name| !name.is_empty());
        let (name, value) = match (sides, relations) {
            ([left, right], [relation]) => match (variable(left), variable(right)) {
                (Some(name), None) => (name, half_line(*relation, bound(right)?)?),
                (None, Some(name)) => (name, half_line(flipped(*relation), bound(left)?)?),
                _ => return None,
            },
            ([first, middle, last], [left, right]) => {
                let (first, last) = (bound(first)?, bound(last)?);
                let value = match (left, right) {
                    ('<' | '≤', '<' | '≤') => {
                        interval(*left == '≤', first, last, *right == '≤')
                    }
                    ('>' | '≥', '>' | '≥') => {
                        interval(*right == '≥', last, first, *left == '≥')
                    }
                    _ => return None,
                };
                (variable(middle)?, value)
            }
            _ => return None,
        };
        Some(Answer::Named { name, value: Box::new(value) })
    }

    /// A value without relations.
    fn value(self, characters: &[char]) -> Option<Answer> {
        let value = trimmed(characters);
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
        let characters = without_leading_words(characters)?;
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

/// The text after leading words. `None` if an operator follows them: then they are variables.
fn without_leading_words(all: &[char]) -> Option<&[char]> {
    let mut characters = all;
    while let [' ' | WORD, rest @ ..] = characters {
        characters = rest;
    }
    let has_words = all[..all.len() - characters.len()].contains(&WORD);
    let is_operator = match characters {
        ['-', next, ..] => *next == ' ',
        [first, ..] => matches!(first, '+' | '*' | '/' | '^' | '!' | '|'),
        [] => false,
    };
    (!has_words || !is_operator).then_some(characters)
}

/// The name on the left of a relation: a letter with an optional index or argument, a tuple of
/// letters, or words, which are the empty name. `None` for anything else.
fn name(side: &[char]) -> Option<String> {
    let mut rest = trimmed(side);
    while let [' ' | WORD, tail @ ..] = rest {
        rest = tail;
    }
    if let ['(', names @ .., ')'] = rest {
        let is_name =
            |character: &char| character.is_alphabetic() || matches!(character, ',' | ' ');
        let name = || rest.iter().filter(|character| **character != ' ').collect();
        return (names.iter().all(is_name) && !names.contains(&WORD)).then(name);
    }
    let [first, index @ ..] = rest else { return (!side.is_empty()).then(String::new) };
    let is_index = |character: &char| {
        character.is_ascii_alphanumeric() || matches!(character, '_' | '{' | '}' | '(' | ')' | ',')
    };
    let is_marked = index.is_empty() || matches!(index[0], '_' | '(');
    (first.is_alphabetic() && is_marked && index.iter().all(is_index))
        .then(|| rest.iter().filter(|character| !matches!(character, '{' | '}')).collect())
}

fn is_relation(character: char) -> bool {
    matches!(character, '=' | '≠' | '<' | '>' | '≤' | '≥')
}

/// The relation read from right to left.
fn flipped(relation: char) -> char {
    match relation {
        '<' => '>',
        '>' => '<',
        '≤' => '≥',
        '≥' => '≤',
        other => other,
    }
}

fn infinite(negative: bool) -> Answer {
    Answer::Number { value: Number::Infinite { negative }, percent: false }
}

fn interval(closed_below: bool, lower: Answer, upper: Answer, closed_above: bool) -> Answer {
    let open = if closed_below { '[' } else { '(' };
    let close = if closed_above { ']' } else { ')' };
    Answer::Sequence { open, close, items: vec![lower, upper] }
}

/// The values that are in a relation to a bound.
fn half_line(relation: char, bound: Answer) -> Option<Answer> {
    Some(match relation {
        '<' | '≤' => interval(false, infinite(true), bound, relation == '≤'),
        '>' | '≥' => interval(relation == '≥', bound, infinite(false), false),
        '≠' => Answer::Union(vec![
            interval(false, infinite(true), bound.clone(), false),
            interval(false, bound, infinite(false), false),
        ]),
        _ => return None,
    })
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
