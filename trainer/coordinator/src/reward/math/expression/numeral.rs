//! Numeral parser: thousands separators, decimals, repeating digits, exponents, bases and mixed
//! numbers.
//!
//! `1\frac{1}{2}` and `1 1/2` are mixed numbers. `2516_8` is a number in base 8.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Signed, Zero};

use crate::reward::math::expression::Parser;
use crate::reward::math::lex::{FRACTION, REPEATING};
use crate::reward::math::number::Number;

/// Maximum number of digits of a numeral.
const MAX_DIGITS: usize = 1000;

impl Parser<'_> {
    /// A numeral with an optional proper fraction.
    pub(super) fn mixed(&mut self) -> Option<BigRational> {
        let whole = self.numeral()?;
        let before = self.at;
        if whole.is_integer()
            && let Some(fraction) = self.proper_fraction()
        {
            return Some(whole + fraction);
        }
        self.at = before;
        Some(whole)
    }

    fn proper_fraction(&mut self) -> Option<BigRational> {
        let spaced = self.characters.get(self.at) == Some(&' ');
        let (above, below) = if self.peek()? == FRACTION {
            self.at += 1;
            (self.argument()?, self.argument()?)
        } else {
            if !spaced {
                return None;
            }
            let above = self.numeral()?;
            if self.characters.get(self.at) != Some(&'/') {
                return None;
            }
            self.at += 1;
            (Number::from(above), Number::from(self.numeral()?))
        };
        let (Number::Exact(above), Number::Exact(below)) = (above, below) else { return None };
        let (above, below) = (above.rational()?, below.rational()?);
        let proper =
            above.is_integer() && below.is_integer() && above.is_positive() && above < below;
        proper.then(|| above / below)
    }

    /// Digits with thousands separators, a decimal point, repeating digits, an exponent or a base.
    fn numeral(&mut self) -> Option<BigRational> {
        self.peek()?;
        let mut digits = self.digits();
        if (1..=3).contains(&digits.len()) {
            while matches!(self.characters.get(self.at), Some(',' | ' ')) && self.three_digits() {
                self.at += 1;
                digits.extend(self.digits());
            }
        }
        let whole = digits.len();
        let point = self.characters.get(self.at) == Some(&'.');
        let after_point = self.characters.get(self.at + 1).copied();
        if point && after_point.is_some_and(|next| next.is_ascii_digit() || next == REPEATING) {
            self.at += 1;
            digits.extend(self.digits());
        }
        let places = digits.len() - whole;
        if digits.is_empty() && !point || digits.len() > MAX_DIGITS {
            return None;
        }
        let value = BigRational::new(integer(&digits, 10)?, ten_to(places));
        match self.characters.get(self.at).copied() {
            Some(REPEATING) => Some(value + self.repeating(places)?),
            Some('_') if places == 0 => self.based(&digits).map(BigRational::from_integer),
            Some('e' | 'E') => Some(value * self.exponent().unwrap_or_else(BigRational::one)),
            _ => (!digits.is_empty()).then_some(value),
        }
    }

    fn digits(&mut self) -> Vec<char> {
        let digits: Vec<char> =
            self.characters[self.at..].iter().copied().take_while(char::is_ascii_digit).collect();
        self.at += digits.len();
        digits
    }

    /// Whether exactly three digits follow the separator at the current position.
    fn three_digits(&self) -> bool {
        let digit = |ahead| self.characters.get(self.at + ahead).is_some_and(char::is_ascii_digit);
        digit(1)
            && digit(2)
            && digit(3)
            && !digit(4)
            && self.characters.get(self.at + 4) != Some(&'/')
    }

    /// `\overline{3}` after the given number of decimal places.
    fn repeating(&mut self, places: usize) -> Option<BigRational> {
        self.at += 1;
        let braces = self.eat('{');
        let digits = self.digits();
        if digits.is_empty() || digits.len() > MAX_DIGITS || (braces && !self.eat('}')) {
            return None;
        }
        Some(BigRational::new(integer(&digits, 10)?, (ten_to(digits.len()) - 1) * ten_to(places)))
    }

    /// Value of digits with a base suffix such as `_8`.
    fn based(&mut self, digits: &[char]) -> Option<BigInt> {
        self.at += 1;
        let braces = self.eat('{');
        let base = self.digits();
        let base: u32 =
            base.iter().collect::<String>().parse().ok().filter(|base| (2..=36).contains(base))?;
        if braces && !self.eat('}') {
            return None;
        }
        integer(digits, base)
    }

    /// An exponent such as `e-3`.
    fn exponent(&mut self) -> Option<BigRational> {
        let before = self.at;
        self.at += 1;
        let sign = self.characters.get(self.at).copied();
        let negative = sign == Some('-');
        self.at += usize::from(matches!(sign, Some('-' | '+')));
        let digits: String = self.digits().into_iter().collect();
        let Some(power) = digits.parse::<usize>().ok().filter(|power| *power <= MAX_DIGITS) else {
            self.at = before;
            return None;
        };
        let power = BigRational::from_integer(ten_to(power));
        Some(if negative { power.recip() } else { power })
    }
}

fn integer(digits: &[char], base: u32) -> Option<BigInt> {
    if digits.is_empty() {
        return Some(BigInt::zero());
    }
    BigInt::parse_bytes(digits.iter().collect::<String>().as_bytes(), base)
}

fn ten_to(power: usize) -> BigInt {
    BigInt::from(10).pow(power as u32)
}
