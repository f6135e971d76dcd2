//! Number scanner: finds the numbers of prose in one pass. Supports thousands separators and
//! decimals (`1,234.50`), fractions (`3/4`, `\frac{3}{4}`), signs and percent signs.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::Zero;

use crate::reward::math::lex::NEGATIONS;

/// Maximum number of digits; a longer numeral has no value.
const MAX_DIGITS: usize = 1000;

/// A numeral in a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Numeral<'a> {
    /// `None` if it has too many digits or divides by zero. Such a numeral still counts as the last
    /// number of its text.
    pub value: Option<BigRational>,
    /// Whether a percent sign follows.
    pub percent: bool,
    pub before: &'a str,
    pub after: &'a str,
}

impl Numeral<'_> {
    /// Whether it is separate from letters, brackets and operators and no negation precedes it.
    pub fn stands_alone(&self) -> bool {
        let touches = |character: char| {
            character.is_alphanumeric() || "\\^_*/+=<>(){}[]|√".contains(character)
        };
        let before = self.before.trim_end_matches(['$', '-', '−', '*']);
        let words = before.trim_end();
        let spoken = words.trim_end_matches(|character: char| !character.is_alphanumeric());
        let last_word = spoken
            .rsplit(|character: char| !character.is_alphabetic())
            .next()
            .unwrap_or_default()
            .to_lowercase();
        if NEGATIONS.contains(&last_word.as_str())
            || words.ends_with(['+', '*', '/', '^', '<', '>', '≤', '≥'])
        {
            return false;
        }
        let before = before.chars().next_back();
        let after = self.after.trim_start_matches(['$', '*']);
        let next = after.trim_start().chars().next();
        !before.is_some_and(touches)
            && !after.chars().next().is_some_and(touches)
            && !next.is_some_and(|character| "+*/^=<>−-".contains(character))
    }
}

/// Value of a numeral; `None` if it has too many digits or divides by zero.
struct Value(Option<BigRational>);

impl Value {
    fn negated(self) -> Self {
        Self(self.0.map(|value| -value))
    }

    fn over(self, below: Self) -> Self {
        let below = below.0.filter(|below| !below.is_zero());
        Self(self.0.zip(below).map(|(above, below)| above / below))
    }
}

/// Iterates over the numbers of a text.
pub fn numbers(text: &str) -> impl Iterator<Item = Numeral<'_>> {
    let mut scanner = Scanner { text, at: 0 };
    std::iter::from_fn(move || scanner.next_number())
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn next_number(&mut self) -> Option<Numeral<'a>> {
        loop {
            let first = self.rest().chars().next()?;
            let start = self.at;
            if let Some(value) = self.latex_fraction().or_else(|| self.plain()) {
                let before = &self.text[..start];
                let value = if negative(before) { value.negated() } else { value };
                let after = self.rest();
                let percent = after.starts_with('%') || after.starts_with("\\%");
                return Some(Numeral { value: value.0, percent, before, after });
            }
            self.at = start + first.len_utf8();
        }
    }

    /// `\frac{a}{b}`, `\dfrac{a}{b}`, `\tfrac{a}{b}` of plain numerals.
    fn latex_fraction(&mut self) -> Option<Value> {
        let rest = self.rest();
        let body = ["\\frac{", "\\dfrac{", "\\tfrac{"]
            .iter()
            .find_map(|command| rest.strip_prefix(command))?;
        let (above, body) = signed_numeral(body)?;
        let (below, body) = signed_numeral(body.strip_prefix("}{")?)?;
        let body = body.strip_prefix('}')?;
        self.at = self.text.len() - body.len();
        Some(above.over(below))
    }

    /// `12`, `1,234.5`, `.5`, `3/4`.
    fn plain(&mut self) -> Option<Value> {
        let (number, rest) = numeral(self.rest())?;
        let (number, rest) = match rest.strip_prefix('/').and_then(numeral) {
            None => (number, rest),
            Some((divisor, rest)) => (number.over(divisor), rest),
        };
        self.at = self.text.len() - rest.len();
        Some(number)
    }
}

fn signed_numeral(text: &str) -> Option<(Value, &str)> {
    let Some(unsigned) = text.strip_prefix('-') else { return numeral(text) };
    numeral(unsigned).map(|(number, rest)| (number.negated(), rest))
}

/// An unsigned numeral at the start of a text, with the rest of the text.
fn numeral(text: &str) -> Option<(Value, &str)> {
    let whole = whole_digits(text);
    let fraction = match text[whole..].strip_prefix('.') {
        Some(rest) => digits(rest),
        None => 0,
    };
    let end = if fraction > 0 { whole + 1 + fraction } else { whole };
    if end == 0 {
        return None;
    }
    let plain: Vec<u8> =
        text[..end].bytes().filter(u8::is_ascii_digit).take(MAX_DIGITS + 1).collect();
    let value = if plain.len() > MAX_DIGITS { None } else { BigInt::parse_bytes(&plain, 10) };
    let value = value.map(|value| BigRational::new(value, BigInt::from(10).pow(fraction as u32)));
    Some((Value(value), &text[end..]))
}

/// Length of leading digits with optional thousands separators: 9 for `1,234,567`, 1 for `1,2`.
fn whole_digits(text: &str) -> usize {
    let mut end = digits(text);
    if !(1..=3).contains(&end) {
        return end;
    }
    while text[end..].strip_prefix(',').is_some_and(|rest| digits(rest) == 3) {
        end += 4;
    }
    end
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Whether the text before a number ends with a minus sign that is not a subtraction (`5-3`,
/// `x - 3`). Currency signs may surround the minus.
fn negative(before: &str) -> bool {
    let before = before.strip_suffix('$').unwrap_or(before);
    let before = before.strip_suffix('\\').unwrap_or(before);
    let Some(before) = before.strip_suffix(['-', '−']) else { return false };
    let before = before.trim_end_matches(['$', '\\']);
    !before.chars().next_back().is_some_and(|character| {
        character.is_alphanumeric() || matches!(character, ')' | '}' | ']' | '%')
    })
}
