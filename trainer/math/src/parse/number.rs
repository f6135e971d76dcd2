//! Numerals: thousands separators, repeating digits, bases and mixed numbers.
//!
//! `1\frac{1}{2}` and `1 1/2` are mixed numbers. `2516_8` is a number in base 8.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{CheckedAdd, Signed};

use crate::algebra::{Rational, Value};
use crate::lex::Kind;
use crate::limits::{Checked, MAX_DIGITS, TOO_LARGE, UNDEFINED};
use crate::parse::{Parser, SYNTAX};

impl Parser<'_> {
    /// A numeral with an optional proper fraction.
    pub(super) fn mixed(&mut self) -> Checked<Value> {
        let whole = self.numeral()?;
        if whole.is_integer() {
            let before = self.at;
            if let Some(fraction) = self.proper_fraction() {
                return whole.checked_add(&fraction).map(Value::from).ok_or(TOO_LARGE);
            }
            self.at = before;
        }
        // Two numerals side by side.
        if matches!(self.kind(), Some(Kind::Number(..))) {
            return Err(SYNTAX);
        }
        Ok(Value::from(whole))
    }

    /// A numeral without a fraction after it.
    pub(super) fn number(&mut self) -> Checked<Value> {
        self.numeral().map(Value::from)
    }

    /// Digits and places of a numeral token.
    fn digits(&mut self) -> Option<(&str, usize)> {
        let Some(Kind::Number(digits, places)) = self.kind() else { return None };
        self.advance(1);
        Some((digits, *places))
    }

    fn proper_fraction(&mut self) -> Option<Rational> {
        let plain = |parser: &mut Self| {
            let (digits, places) = parser.digits()?;
            (places == 0).then(|| integer(digits, 10)).flatten()
        };
        let (above, below) = if matches!(self.kind(), Some(Kind::Command("frac"))) {
            self.advance(1);
            let argument = |parser: &mut Self| {
                let braces = parser.eat('{');
                let value = if braces { plain(parser) } else { parser.one_digit() };
                (!braces || parser.eat('}')).then_some(value).flatten()
            };
            (argument(self)?, argument(self)?)
        } else {
            let (above, slash) = (plain(self)?, self.eat('/'));
            if !slash {
                return None;
            }
            (above, plain(self)?)
        };
        let proper = above.is_positive() && above < below;
        proper.then(|| BigRational::new(above, below))
    }

    /// The arguments of `\frac12` are one token; other one-digit arguments are parsed as operands.
    fn one_digit(&mut self) -> Option<BigInt> {
        let (digits, places) = self.digits()?;
        (places == 0 && digits.len() == 1).then(|| integer(digits, 10)).flatten()
    }

    /// Digits with thousands separators, repeating digits, or a base.
    fn numeral(&mut self) -> Checked<Rational> {
        let (digits, mut places) = self.digits().ok_or(SYNTAX)?;
        let mut digits = digits.to_owned();
        if (1..=3).contains(&digits.len()) && places == 0 && !digits.starts_with('0') {
            while let Some((group, decimals)) = self.thousands() {
                digits.push_str(&group);
                places = decimals;
                if places > 0 {
                    break;
                }
            }
        }
        if digits.len() > MAX_DIGITS {
            return Err(TOO_LARGE);
        }
        let value = BigRational::new(integer(&digits, 10).ok_or(SYNTAX)?, ten_to(places));
        let point = places == 0 && self.is('.');
        if matches!(
            self.ahead(usize::from(point)).map(|token| &token.kind),
            Some(Kind::Command("overline" | "dot"))
        ) && (point || places > 0)
        {
            self.advance(if point { 2 } else { 1 });
            return value.checked_add(&self.repeating(places)?).ok_or(TOO_LARGE);
        }
        if places == 0 && self.eat('_') {
            return self.based(&digits).map(Rational::from_integer);
        }
        Ok(value)
    }

    /// A group of three digits after a separator, with its decimal places.
    fn thousands(&mut self) -> Option<(String, usize)> {
        let comma = self.is(',');
        let group = self.ahead(usize::from(comma))?;
        let Kind::Number(digits, places) = &group.kind else { return None };
        let separated = if comma {
            self.notation.thousands && !group.space && !self.token()?.space
        } else {
            group.space
        };
        let slash = self.ahead(if comma { 2 } else { 1 });
        let fraction = !comma && slash.is_some_and(|token| token.is('/'));
        if !separated || fraction || digits.len() != places.saturating_add(3) {
            return None;
        }
        self.advance(if comma { 2 } else { 1 });
        Some((digits.clone(), *places))
    }

    /// `\overline{3}` after the given number of decimal places.
    fn repeating(&mut self, places: usize) -> Checked<Rational> {
        let braces = self.eat('{');
        let (digits, decimals) = self.digits().ok_or(SYNTAX)?;
        let (digits, length) = (digits.to_owned(), digits.len());
        if decimals > 0 || (!braces && length > 1) || (braces && !self.eat('}')) {
            return Err(SYNTAX);
        }
        let nines = integer(&"9".repeat(length), 10).ok_or(SYNTAX)?;
        let below = nines.checked_mul(&ten_to(places)).ok_or(TOO_LARGE)?;
        Ok(BigRational::new(integer(&digits, 10).ok_or(SYNTAX)?, below))
    }

    /// Value of digits with a base suffix such as `_8`.
    fn based(&mut self, digits: &str) -> Checked<BigInt> {
        let braces = self.eat('{');
        let (base, places) = self.digits().ok_or(SYNTAX)?;
        let base = base.parse().ok().filter(|base| places == 0 && (2..=36).contains(base));
        if braces && !self.eat('}') {
            return Err(SYNTAX);
        }
        integer(digits, base.ok_or(UNDEFINED)?).ok_or(UNDEFINED)
    }
}

fn integer(digits: &str, base: u32) -> Option<BigInt> {
    BigInt::parse_bytes(digits.as_bytes(), base)
}

fn ten_to(power: usize) -> BigInt {
    BigInt::from(10).pow(power as u32)
}
