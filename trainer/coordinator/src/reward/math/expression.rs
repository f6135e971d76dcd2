//! Expression evaluator: recursive descent over numerals, `+ − × ÷`, powers, roots, fractions,
//! factorials and π.
//!
//! ```text
//!  sum      = [±] product {(+ | − | ±) product}
//!  product  = power {(* | / | nothing) power}
//!  power    = operand ['^' group | numeral]
//!  operand  = value {'!'}
//!  value    = numeral | (sum) | {sum} | FRACTION group group | √ group | |sum| | π | ∞
//! ```
//!
//! Units after the expression are ignored.

use num_rational::BigRational;
use num_traits::ToPrimitive;

use crate::reward::math::lex::{FRACTION, WORD};
use crate::reward::math::number::Number;
use crate::reward::math::surd::Surd;

mod numeral;

/// Maximum nesting of brackets, roots and fractions.
const MAX_DEPTH: u32 = 32;

/// Evaluates lexed characters, with `±` as minus if `lower`, else as plus. Returns `None` if they
/// are not an expression.
pub fn value(characters: &[char], lower: bool) -> Option<Number> {
    let mut parser = Parser { characters, at: 0, depth: 0, lower };
    let value = parser.sum()?;
    parser.units();
    (parser.at == characters.len()).then_some(value)
}

struct Parser<'a> {
    characters: &'a [char],
    at: usize,
    depth: u32,
    lower: bool,
}

impl Parser<'_> {
    /// Skips spaces and returns the next character.
    fn peek(&mut self) -> Option<char> {
        while self.characters.get(self.at) == Some(&' ') {
            self.at += 1;
        }
        self.characters.get(self.at).copied()
    }

    fn eat(&mut self, expected: char) -> bool {
        let found = self.peek() == Some(expected);
        self.at += usize::from(found);
        found
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn sum(&mut self) -> Option<Number> {
        self.nested(|parser| {
            let negative = parser.sign().unwrap_or(false);
            let first = parser.product()?;
            let mut sum = if negative { first.negated() } else { first };
            while let Some(negative) = parser.sign() {
                let next = parser.product()?;
                sum = sum.plus(&if negative { next.negated() } else { next })?;
            }
            Some(sum)
        })
    }

    /// Consumes a sign; `Some(true)` for minus, `None` without a sign.
    fn sign(&mut self) -> Option<bool> {
        let negative = match self.peek()? {
            '+' => false,
            '-' => true,
            '±' => self.lower,
            '∓' => !self.lower,
            _ => return None,
        };
        self.at += 1;
        Some(negative)
    }

    fn product(&mut self) -> Option<Number> {
        let mut product = self.power()?;
        loop {
            match self.peek() {
                Some('*') => {
                    self.at += 1;
                    product = product.times(&self.factor()?)?;
                }
                // `/` before a unit belongs to the unit, as in km/h.
                Some('/') if self.characters.get(self.at + 1) != Some(&WORD) => {
                    self.at += 1;
                    product = product.over(&self.factor()?)?;
                }
                Some('(' | '{' | 'π' | '√') => product = product.times(&self.power()?)?,
                Some(character) if character == FRACTION => {
                    product = product.times(&self.power()?)?;
                }
                _ => return Some(product),
            }
        }
    }

    fn factor(&mut self) -> Option<Number> {
        match self.sign() {
            Some(negative) => {
                self.power().map(|value| if negative { value.negated() } else { value })
            }
            None => self.power(),
        }
    }

    fn power(&mut self) -> Option<Number> {
        let base = self.operand()?;
        if !self.eat('^') {
            return Some(base);
        }
        let exponent = match self.peek()? {
            '{' | '(' => self.group()?,
            _ => self.factor()?,
        };
        base.power(&exponent)
    }

    fn operand(&mut self) -> Option<Number> {
        let mut value = self.bare_operand()?;
        while self.eat('!') {
            value = value.factorial()?;
        }
        Some(value)
    }

    fn bare_operand(&mut self) -> Option<Number> {
        match self.peek()? {
            '(' | '{' | '[' => self.group(),
            '|' => {
                self.at += 1;
                let value = self.sum()?;
                if self.eat('|') { value.magnitude() } else { None }
            }
            'π' => {
                self.at += 1;
                Some(Number::Exact(Surd::pi()))
            }
            '∞' => {
                self.at += 1;
                Some(Number::Infinite { negative: false })
            }
            '√' => self.root(),
            FRACTION => {
                self.at += 1;
                let above = self.argument()?;
                above.over(&self.argument()?)
            }
            _ => self.mixed().map(Number::from),
        }
    }

    /// `(sum)`, `{sum}` or `[sum]`.
    fn group(&mut self) -> Option<Number> {
        let close = match self.peek()? {
            '(' => ')',
            '{' => '}',
            _ => ']',
        };
        self.at += 1;
        let value = self.sum()?;
        self.eat(close).then_some(value)
    }

    fn root(&mut self) -> Option<Number> {
        self.at += 1;
        let degree = if self.peek() == Some('[') {
            self.group()?
        } else {
            Number::from(BigRational::from_integer(2.into()))
        };
        let Number::Exact(degree) = degree else { return None };
        let degree = degree
            .rational()
            .filter(BigRational::is_integer)?
            .to_u32()
            .filter(|degree| (1..=64).contains(degree))?;
        let inside = if matches!(self.peek()?, '{' | '(') {
            self.group()?
        } else {
            self.nested(Self::bare_operand)?
        };
        inside.root(degree)
    }

    /// Argument of a fraction: a group, or one digit or operand without braces.
    fn argument(&mut self) -> Option<Number> {
        match self.peek()? {
            '{' => self.group(),
            digit if digit.is_ascii_digit() => {
                self.at += 1;
                Some(Number::from(BigRational::from_integer(digit.to_digit(10)?.into())))
            }
            _ => self.nested(Self::bare_operand),
        }
    }

    /// Skips words and units with their powers and divisors.
    fn units(&mut self) {
        while matches!(self.peek(), Some(WORD))
            || (self.peek() == Some('/') && self.characters.get(self.at + 1) == Some(&WORD))
        {
            self.at += 1;
            let before = self.at;
            if self.eat('^') && self.factor().is_none() {
                self.at = before;
                return;
            }
        }
    }
}
