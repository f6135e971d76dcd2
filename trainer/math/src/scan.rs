//! Number scanner: finds the numbers of prose in one pass. Supports thousands separators and
//! decimals (`1,234.50`), fractions (`3/4`, `\frac{3}{4}`), signs and percent signs.

use std::ops::Neg;

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{CheckedDiv, Zero};

/// Maximum number of digits; a longer numeral has no value.
const MAX_DIGITS: usize = 1000;

/// Commands before a number that is part of a formula.
const FORMULA_COMMANDS: [&str; 24] = [
    "\\geq", "\\ge", "\\leq", "\\le", "\\neq", "\\ne", "\\lt", "\\gt", "\\log", "\\ln", "\\sin",
    "\\cos", "\\tan", "\\sqrt", "\\pm", "\\to", "\\times", "\\cdot", "\\in", "\\mid", "\\approx",
    "\\div", "\\frac", "\\equiv",
];
/// Words before a number that change its meaning.
const NEGATIONS: [&str; 8] = ["not", "no", "non", "negative", "minus", "than", "least", "most"];

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
    /// Whether it is not part of a formula, list or range: no operator, relation or bracket of a
    /// tuple beside it, and no letter or command after it.
    pub fn stands_alone(&self) -> bool {
        let before = self.before.trim_end_matches(['$', '-', '−', '*', ' ', '\\', '{']);
        let operator = before.ends_with(['^', '_', '≤', '≥', '≠', '/', '+', '√', '~', '|'])
            || FORMULA_COMMANDS.iter().any(|command| before.ends_with(command))
            || before.ends_with('<')
            || before.ends_with('>') && !before.ends_with("r>") && !before.ends_with("k>")
            || NEGATIONS.iter().any(|word| ends_with_word(before, word));
        let mut after = self.after.trim_start_matches("**").chars();
        let (next, second) = (after.next(), after.next());
        let letter =
            next.is_some_and(char::is_alphabetic) && !second.is_some_and(char::is_alphabetic);
        let command = next == Some('\\')
            && second.is_some_and(|second| !" %$)],;".contains(second))
            && !self.after.starts_with("\\text")
            && !self.after.starts_with("\\mathrm");
        let joined = next.is_some_and(|next| "^_!/*=√(".contains(next));
        !(operator || letter || command || joined || self.is_in_tuple())
    }

    /// Whether an open bracket before it encloses a comma.
    fn is_in_tuple(&self) -> bool {
        let line = self.before.lines().next_back().unwrap_or_default();
        let Some((_, inside)) = line.rsplit_once(['(', '[']) else { return false };
        !inside.contains([')', ']'])
            && (inside.contains(',') || self.after.trim_start().starts_with(','))
    }
}

fn ends_with_word(text: &str, word: &str) -> bool {
    let parts = text.split_at_checked(text.len().saturating_sub(word.len()));
    parts.is_some_and(|(before, end)| {
        end.eq_ignore_ascii_case(word) && !before.ends_with(char::is_alphanumeric)
    })
}

/// Value of a numeral; `None` if it has too many digits or divides by zero.
struct Value(Option<BigRational>);

impl Value {
    fn negated(self) -> Self {
        Self(self.0.map(Neg::neg))
    }

    fn over(self, below: Self) -> Self {
        let below = below.0.filter(|below| !below.is_zero());
        Self(self.0.zip(below).and_then(|(above, below)| above.checked_div(&below)))
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
                let (before, _) = self.text.split_at_checked(start)?;
                let value = if negative(before) { value.negated() } else { value };
                let after = self.rest();
                let percent = after.starts_with('%') || after.starts_with("\\%");
                return Some(Numeral { value: value.0, percent, before, after });
            }
            self.at = start.saturating_add(first.len_utf8());
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
        self.at = self.text.len().saturating_sub(body.len());
        Some(above.over(below))
    }

    /// `12`, `1,234.5`, `.5`, `3/4`.
    fn plain(&mut self) -> Option<Value> {
        let (number, rest) = numeral(self.rest())?;
        let (number, rest) = match rest.strip_prefix('/').and_then(numeral) {
            None => (number, rest),
            Some((divisor, rest)) => (number.over(divisor), rest),
        };
        self.at = self.text.len().saturating_sub(rest.len());
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
    let fraction = text.get(whole..)?.strip_prefix('.').map_or(0, digits);
    let point = usize::from(fraction > 0);
    let end = whole.saturating_add(point).saturating_add(fraction);
    let (numeral, rest) = text.split_at_checked(end).filter(|_| end > 0)?;
    let plain: Vec<u8> = numeral.bytes().filter(u8::is_ascii_digit).take(MAX_DIGITS + 1).collect();
    let value = if plain.len() > MAX_DIGITS { None } else { BigInt::parse_bytes(&plain, 10) };
    let value = value.map(|value| BigRational::new(value, BigInt::from(10).pow(fraction as u32)));
    Some((Value(value), rest))
}

/// Length of leading digits with optional thousands separators: 9 for `1,234,567`, 1 for `1,2`.
fn whole_digits(text: &str) -> usize {
    let mut end = digits(text);
    if !(1..=3).contains(&end) {
        return end;
    }
    let group = |rest: &str| rest.strip_prefix(',').is_some_and(|rest| digits(rest) == 3);
    while text.get(end..).is_some_and(group) {
        end = end.saturating_add(4);
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
