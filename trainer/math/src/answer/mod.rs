//! Answers: their kinds and their equality.
//!
//! ```text
//!  tokens ─ list ─ split at , ; and or ─▶ item ─ relation: = < ≤ ≠ ∈ ─▶ Named, Equation, Region
//!                                              └ shape: ( [ \{ ∪ : ─▶ Sequence, Set, Ratio, Matrix
//!                                                └ quantity: value, percent, unit ─▶ Quantity
//! ```

mod equal;
mod equation;
mod list;
mod measure;
mod quantity;
mod region;
mod relation;
mod shape;
mod split;
mod words;

use crate::algebra::Value;
use crate::lex::{Kind, Token, lex};
use crate::limits::{Checked, Fuel, MAX_DEPTH, Unsupported};
use crate::parse::Notation;

use equation::{Equation, Inequality};
use quantity::Quantity;
use region::Region;

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Quantity(Box<Quantity>),
    Infinity {
        negative: bool,
    },
    /// A tuple or an interval with its brackets.
    Sequence {
        open: char,
        close: char,
        items: Vec<Answer>,
    },
    Set(Vec<Answer>),
    /// Elements without brackets; equals the set and the tuple of these elements.
    List(Vec<Answer>),
    /// A set of reals, of a variable if it has a name.
    Region {
        name: Option<String>,
        region: Region,
    },
    /// `x = 5`, `f(x) = 2x`, `\text{Area} = 9`.
    Named {
        name: String,
        answer: Box<Answer>,
        equation: Option<Equation>,
    },
    /// Values of several names, in the order of the text.
    Assignments(Vec<(String, Answer)>),
    Equation(Equation),
    Inequality(Inequality),
    Matrix(Vec<Vec<Value>>),
    /// `3:4`.
    Ratio(Vec<Value>),
    /// Letter of a multiple-choice option.
    Choice(char),
    Words(String),
    /// A text with a meaning that cannot be computed: equal to the same tokens only.
    Notation(Vec<Kind>),
}

/// Parses a text. Returns two interpretations if `(1,234, 5)` may have two or three elements.
pub fn parse(text: &str) -> Checked<Vec<Answer>> {
    let tokens = lex(text)?;
    let tokens = split::trimmed(&tokens);
    if tokens.is_empty() {
        return Err(Unsupported("the answer is empty"));
    }
    meaning(tokens).or_else(|reason| {
        if reason.is_notation() { Ok(vec![notation(tokens)]) } else { Err(reason) }
    })
}

/// The tokens, without braces around a single one.
fn notation(tokens: &[Token]) -> Answer {
    let mut kinds: Vec<Kind> = Vec::new();
    for token in tokens {
        match kinds.as_slice() {
            [.., Kind::Sign('{'), _] if token.is('}') => {
                let only = kinds.pop();
                kinds.pop();
                kinds.extend(only);
            }
            _ => kinds.push(token.kind.clone()),
        }
    }
    Answer::Notation(kinds)
}

fn meaning(tokens: &[Token]) -> Checked<Vec<Answer>> {
    let first = interpret(tokens, true);
    if !tokens.iter().any(|token| token.is(',')) {
        return first.map(|answer| vec![answer]);
    }
    match (first, interpret(tokens, false)) {
        (Ok(a), Ok(b)) if a == b => Ok(vec![a]),
        (Ok(a), Ok(b)) => Ok(vec![a, b]),
        (Ok(only), Err(_)) | (Err(_), Ok(only)) => Ok(vec![only]),
        (Err(error), Err(_)) => Err(error),
    }
}

fn interpret(tokens: &[Token], thousands: bool) -> Checked<Answer> {
    let fuel = Fuel::default();
    Parser { thousands, depth: 0, fuel: &fuel }.list(tokens)
}

#[derive(Clone, Copy)]
struct Parser<'a> {
    /// Whether `1,234` in brackets is a number.
    thousands: bool,
    depth: u32,
    fuel: &'a Fuel,
}

impl Parser<'_> {
    /// The notation of values at this depth.
    fn notation(self) -> Notation {
        Notation { thousands: self.thousands || self.depth == 0, lower: false }
    }

    fn deeper(self) -> Checked<Self> {
        if self.depth == MAX_DEPTH {
            return Err(Unsupported("the nesting is too deep"));
        }
        self.fuel.spend(1)?;
        Ok(Self { depth: self.depth.saturating_add(1), ..self })
    }
}
