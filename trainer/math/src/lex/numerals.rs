//! Numerals: digits, decimal point, LaTeX thousands separators and exponents such as `1.5e3`.

use crate::lex::{Kind, Lexer};
use crate::limits::{Checked, MAX_DIGITS, Unsupported};

/// Separators between groups of three digits that have no other meaning.
const SEPARATORS: [&str; 9] =
    ["{,}", "\\,", ",\\! ", ",\\!", ",\\,", "{,}\\!", "\\!", "\\;", "\\ "];

impl Lexer<'_> {
    pub(super) fn number(&mut self) -> Checked<()> {
        let mut digits = String::new();
        let mut places = 0;
        self.digits(&mut digits);
        if (1..=3).contains(&digits.len()) {
            while let Some(length) = self.separator() {
                self.advance(length);
                self.digits(&mut digits);
            }
        }
        if self.peek(0) == Some('.') && self.peek(1).is_some_and(|next| next.is_ascii_digit()) {
            self.advance(1);
            let before = digits.len();
            self.digits(&mut digits);
            places = digits.len().saturating_sub(before);
        } else if self.peek(0) == Some('.')
            && matches!(self.peek(1), Some('/' | '*' | '+' | '-' | '^' | '}'))
        {
            self.advance(1); // `-1./3`, as programs print numbers.
        }
        self.exponent(&mut digits, &mut places)?;
        if digits.len() > MAX_DIGITS || places > MAX_DIGITS {
            return Err(Unsupported("a number has more than 1000 digits"));
        }
        self.push(Kind::Number(digits, places));
        Ok(())
    }

    fn digits(&mut self, digits: &mut String) {
        while let Some(digit) = self.peek(0).filter(char::is_ascii_digit) {
            digits.push(digit);
            self.advance(1);
        }
    }

    /// Length of a thousands separator that exactly three digits follow.
    fn separator(&self) -> Option<usize> {
        let digit = |at: usize| self.peek(at).is_some_and(|next| next.is_ascii_digit());
        SEPARATORS.iter().find_map(|separator| {
            let length = separator.len();
            let found =
                separator.chars().enumerate().all(|(at, expected)| self.peek(at) == Some(expected));
            let three = (0..3).all(|at| digit(length.saturating_add(at)))
                && !digit(length.saturating_add(3));
            (found && three).then_some(length)
        })
    }

    /// `e3` after a number. `3e-2` may be `3e − 2` and is an error.
    fn exponent(&mut self, digits: &mut String, places: &mut usize) -> Checked<()> {
        if !matches!(self.peek(0), Some('e' | 'E')) {
            return Ok(());
        }
        let sign = self.peek(1).filter(|sign| matches!(sign, '+' | '-'));
        let start = if sign.is_some() { 2 } else { 1 };
        if !self.peek(start).is_some_and(|next| next.is_ascii_digit()) {
            return Ok(());
        }
        if sign.is_some() && *places == 0 && digits != "1" {
            return Err(Unsupported("a power of ten such as 3e-2 is ambiguous"));
        }
        self.advance(start);
        let mut exponent = String::new();
        self.digits(&mut exponent);
        let exponent: usize = exponent
            .parse()
            .ok()
            .filter(|exponent| *exponent <= MAX_DIGITS)
            .ok_or(Unsupported("an exponent is too large"))?;
        if sign == Some('-') {
            *places = places.saturating_add(exponent);
        } else {
            digits.extend(std::iter::repeat_n('0', exponent.saturating_sub(*places)));
            *places = places.saturating_sub(exponent);
        }
        Ok(())
    }
}
