//! Expression parser: recursive descent from tokens to a value.
//!
//! ```text
//!  sum      = [±] product {(+ | − | ±) product}
//!  product  = power {(* | / | nothing) power}
//!  power    = operand ['^' group | numeral]
//!  operand  = value {'!'}
//!  value    = numeral | variable | (sum) | \frac{}{} | √{} | |sum| | function operand | π | e | i
//! ```

mod function;
mod number;
mod operand;

use crate::algebra::{Value, power};
use crate::lex::{Kind, Token};
use crate::limits::{Checked, Fuel, MAX_DEPTH, Unsupported};

pub const SYNTAX: Unsupported = Unsupported("the answer is not an expression");
const AMBIGUOUS: Unsupported = Unsupported("the divisor of a product is ambiguous");

/// Choices between notations.
#[derive(Clone, Copy, Debug)]
pub struct Notation {
    /// Whether `1,234` is one number.
    pub thousands: bool,
    /// Whether `±` is minus.
    pub lower: bool,
}

/// Evaluates all tokens.
pub fn value(tokens: &[Token], notation: Notation, fuel: &Fuel) -> Checked<Value> {
    let (value, rest) = prefix(tokens, notation, fuel)?;
    if rest == tokens.len() { Ok(value) } else { Err(SYNTAX) }
}

/// Evaluates the longest expression at the start; returns its number of tokens as well.
pub fn prefix(tokens: &[Token], notation: Notation, fuel: &Fuel) -> Checked<(Value, usize)> {
    let mut parser = Parser { tokens, at: 0, depth: 0, notation, fuel, bars: 0, degrees: false };
    let value = parser.sum()?;
    Ok((value, parser.at))
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: u32,
    notation: Notation,
    fuel: &'a Fuel,
    /// Number of open `|`.
    bars: u32,
    /// Whether `°` is a factor of π/180, in arguments of functions.
    degrees: bool,
}

impl<'a> Parser<'a> {
    fn token(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    fn ahead(&self, count: usize) -> Option<&'a Token> {
        self.tokens.get(self.at.checked_add(count)?)
    }

    fn kind(&self) -> Option<&'a Kind> {
        self.token().map(|token| &token.kind)
    }

    fn is(&self, sign: char) -> bool {
        self.token().is_some_and(|token| token.is(sign))
    }

    fn advance(&mut self, count: usize) {
        self.at = self.at.saturating_add(count);
    }

    fn eat(&mut self, sign: char) -> bool {
        let found = self.is(sign);
        self.advance(usize::from(found));
        found
    }

    fn expect(&mut self, sign: char) -> Checked<()> {
        if self.eat(sign) { Ok(()) } else { Err(SYNTAX) }
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Checked<T>) -> Checked<T> {
        let depth = self.depth;
        if depth == MAX_DEPTH {
            return Err(Unsupported("the nesting is too deep"));
        }
        self.fuel.spend(1)?;
        self.depth = depth.saturating_add(1);
        let result = parse(self);
        self.depth = depth;
        result
    }

    fn sum(&mut self) -> Checked<Value> {
        self.nested(|parser| {
            let negative = parser.sign().unwrap_or(false);
            let first = parser.product()?;
            let mut sum = if negative { first.negated() } else { first };
            while let Some(negative) = parser.sign() {
                let next = parser.product()?;
                let next = if negative { next.negated() } else { next };
                sum = sum.plus(&next, parser.fuel)?;
            }
            Ok(sum)
        })
    }

    /// Consumes a sign; `Some(true)` for minus, `None` without a sign.
    fn sign(&mut self) -> Option<bool> {
        let negative = match self.kind()? {
            Kind::Sign('+') => false,
            Kind::Sign('-') => true,
            Kind::Sign('±') => self.notation.lower,
            Kind::Sign('∓') => !self.notation.lower,
            _ => return None,
        };
        self.advance(1);
        Some(negative)
    }

    fn product(&mut self) -> Checked<Value> {
        let mut product = self.power()?;
        let mut divided = false;
        loop {
            if self.eat('*') {
                product = product.times(&self.factor()?, self.fuel)?;
                divided = false;
            } else if self.is('/') && !self.next_is_text() {
                self.advance(1);
                product = product.over(&self.factor()?, self.fuel)?;
                divided = true;
            } else if self.starts_operand(product.is_open()) {
                // `1/2x` is `x/2` for some and `1/(2x)` for others.
                if divided {
                    return Err(AMBIGUOUS);
                }
                product = product.times(&self.power()?, self.fuel)?;
            } else {
                return Ok(product);
            }
        }
    }

    fn next_is_text(&self) -> bool {
        self.ahead(1).is_some_and(|token| token.text().is_some())
    }

    /// Whether a factor without a multiplication sign follows; `open` if the product before it
    /// contains a variable.
    fn starts_operand(&self, open: bool) -> bool {
        match self.kind() {
            Some(Kind::Variable(_) | Kind::Sign('(' | '{' | 'π' | '⌊' | '⌈')) => true,
            // `3!\,7!`, `(k - 1)2^k`
            Some(Kind::Number(..)) => {
                let before = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
                before.is_some_and(|token| token.is('!') || (token.is(')') && open))
            }
            Some(Kind::Sign('|')) => self.bars == 0,
            Some(Kind::Command(name)) => !matches!(*name, "overline" | "dot"),
            _ => false,
        }
    }

    fn factor(&mut self) -> Checked<Value> {
        match self.sign() {
            Some(negative) => {
                let value = self.power()?;
                Ok(if negative { value.negated() } else { value })
            }
            None => self.power(),
        }
    }

    fn power(&mut self) -> Checked<Value> {
        let base = self.operand()?;
        if !self.eat('^') {
            return Ok(base);
        }
        let exponent = self.exponent()?;
        let power = power::power(&base, &exponent, self.fuel)?;
        if self.is('^') { Err(SYNTAX) } else { self.postfix(power) }
    }

    /// A group, or an operand with a sign.
    fn exponent(&mut self) -> Checked<Value> {
        let negative = self.sign().unwrap_or(false);
        let value = self.nested(Self::operand)?;
        Ok(if negative { value.negated() } else { value })
    }
}
