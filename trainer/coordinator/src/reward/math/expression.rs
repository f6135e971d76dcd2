//! A formula's value: numerals, `+ − × ÷`, powers, roots, fractions, factorials, π. Recursive descent; a text that is not a formula to its end has none.
//!
//! ```text
//!  sum      = [±] product {(+ | − | ±) product}
//!  product  = power {(* | / | nothing) power}
//!  power    = operand ['^' group | numeral]
//!  operand  = numeral | (sum) | {sum} | FRACTION group group | √ group | |sum| | π | ∞, then any '!'
//! ```
//!
//! `1\frac{1}{2}` and `1 1/2` are mixed numbers. `2516_8` is a number in base 8. Units behind the formula are passed over.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, Signed, ToPrimitive, Zero};

use super::lex::{FRACTION, REPEATING, WORD};
use super::number::Number;
use super::surd::Surd;

/// Digits of one numeral.
const MAX_DIGITS: usize = 1000;
/// Nested brackets, roots and fractions.
const MAX_DEPTH: u32 = 32;

/// The value of characters from the lexer, with `±` read as plus (or minus, if `lower`); none if they are no formula.
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
    /// The next character that is not white space.
    fn peek(&mut self) -> Option<char> {
        while self.characters.get(self.at) == Some(&' ') {
            self.at += 1;
        }
        self.characters.get(self.at).copied()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
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

    /// Whether the sign that stands here is a minus; none if there is no sign.
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
                // A unit of a unit, as in km/h.
                Some('/') if self.characters.get(self.at + 1) != Some(&WORD) => {
                    self.at += 1;
                    product = product.over(&self.factor()?)?;
                }
                Some('(' | '{' | 'π' | '√') => product = product.times(&self.power()?)?,
                Some(character) if character == FRACTION => product = product.times(&self.power()?)?,
                _ => return Some(product),
            }
        }
    }

    fn factor(&mut self) -> Option<Number> {
        match self.sign() {
            Some(negative) => self.power().map(|value| if negative { value.negated() } else { value }),
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
        let degree = if self.peek() == Some('[') { self.group()? } else { Number::from(BigRational::from_integer(2.into())) };
        let Number::Exact(degree) = degree else { return None };
        let degree = degree.rational().filter(BigRational::is_integer)?.to_u32().filter(|degree| (1..=64).contains(degree))?;
        let inside = if matches!(self.peek()?, '{' | '(') { self.group()? } else { self.nested(Self::bare_operand)? };
        inside.root(degree)
    }

    /// What a fraction takes: a group, or without braces one digit or one operand.
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

    /// A numeral, perhaps with a proper fraction behind it.
    fn mixed(&mut self) -> Option<BigRational> {
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
        let proper = above.is_integer() && below.is_integer() && above.is_positive() && above < below;
        proper.then(|| above / below)
    }

    /// Digits with separators of thousands, a decimal point, repeating digits, an exponent or a base.
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
        let digits: Vec<char> = self.characters[self.at..].iter().copied().take_while(char::is_ascii_digit).collect();
        self.at += digits.len();
        digits
    }

    /// Whether behind the separator that stands here there are exactly three digits.
    fn three_digits(&self) -> bool {
        let digit = |ahead| self.characters.get(self.at + ahead).is_some_and(char::is_ascii_digit);
        digit(1) && digit(2) && digit(3) && !digit(4) && self.characters.get(self.at + 4) != Some(&'/')
    }

    /// `\overline{3}` behind so many decimal places.
    fn repeating(&mut self, places: usize) -> Option<BigRational> {
        self.at += 1;
        let braces = self.eat('{');
        let digits = self.digits();
        if digits.is_empty() || digits.len() > MAX_DIGITS || (braces && !self.eat('}')) {
            return None;
        }
        Some(BigRational::new(integer(&digits, 10)?, (ten_to(digits.len()) - 1) * ten_to(places)))
    }

    /// `_8` behind digits: their value in that base.
    fn based(&mut self, digits: &[char]) -> Option<BigInt> {
        self.at += 1;
        let braces = self.eat('{');
        let base = self.digits();
        let base: u32 = base.iter().collect::<String>().parse().ok().filter(|base| (2..=36).contains(base))?;
        if braces && !self.eat('}') {
            return None;
        }
        integer(digits, base)
    }

    /// `e-3` behind digits.
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

    /// Words and units, with their powers and what they are divided by.
    fn units(&mut self) {
        while matches!(self.peek(), Some(WORD)) || (self.peek() == Some('/') && self.characters.get(self.at + 1) == Some(&WORD)) {
            self.at += 1;
            let before = self.at;
            if self.eat('^') && self.factor().is_none() {
                self.at = before;
                return;
            }
        }
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
