//! A text's final number: after the last `####`, else in the last `\boxed{}`, else the last number of the text.
//!
//! A number is digits with thousands separators or a decimal point (`1,234.50`), a fraction of two such (`3/4`, `\frac{3}{4}`), with a sign in front.
//! `$` and `%` are units: `$5` is 5 and `50%` is 50, as answer keys write them. One pass over the text, whatever it is; nothing here can fail.

use super::rational::Rational;

/// The final number; none if there is none, or it has more digits than are compared.
pub fn final_number(text: &str) -> Option<Rational> {
    let marked = text.rsplit_once("####").and_then(|(_, rest)| numbers(rest).next());
    let boxed = || boxed(text).and_then(|content| numbers(content).last());
    marked.or_else(boxed).or_else(|| numbers(text).last())?.value
}

/// A number as written; without a value if it has too many digits or is a division by zero. It still stands in its place: no earlier number is taken for it.
#[derive(Clone, Copy)]
struct Numeral {
    value: Option<Rational>,
}

impl Numeral {
    fn over(self, divisor: Self) -> Self {
        Self { value: self.value.zip(divisor.value).and_then(|(value, divisor)| value.checked_div(divisor)) }
    }

    fn negated(self) -> Self {
        Self { value: self.value.map(Rational::negated) }
    }
}

/// Content of the last `\boxed{…}`, up to its own closing brace or the end of the text.
fn boxed(text: &str) -> Option<&str> {
    let (_, rest) = text.rsplit_once("\\boxed{")?;
    let mut depth = 1_usize;
    for (index, byte) in rest.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&rest[..index]);
        }
    }
    Some(rest)
}

/// Every number of a text in turn.
fn numbers(text: &str) -> impl Iterator<Item = Numeral> {
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

    fn next_number(&mut self) -> Option<Numeral> {
        loop {
            let rest = self.rest();
            let first = rest.chars().next()?;
            let start = self.at;
            if let Some(number) = self.latex_fraction().or_else(|| self.plain()) {
                return Some(if negative(&self.text[..start]) { number.negated() } else { number });
            }
            self.at = start + first.len_utf8();
        }
    }

    /// `\frac{a}{b}`, `\dfrac{a}{b}`, `\tfrac{a}{b}` of plain numerals.
    fn latex_fraction(&mut self) -> Option<Numeral> {
        let rest = self.rest();
        let body = ["\\frac{", "\\dfrac{", "\\tfrac{"].iter().find_map(|command| rest.strip_prefix(command))?;
        let (above, body) = signed_numeral(body)?;
        let (below, body) = signed_numeral(body.strip_prefix("}{")?)?;
        let body = body.strip_prefix('}')?;
        self.at = self.text.len() - body.len();
        Some(above.over(below))
    }

    /// `12`, `1,234.5`, `.5`, `3/4`.
    fn plain(&mut self) -> Option<Numeral> {
        let (number, rest) = numeral(self.rest())?;
        let (number, rest) = match rest.strip_prefix('/').and_then(numeral) {
            None => (number, rest),
            Some((divisor, rest)) => (number.over(divisor), rest),
        };
        self.at = self.text.len() - rest.len();
        Some(number)
    }
}

fn signed_numeral(text: &str) -> Option<(Numeral, &str)> {
    let Some(unsigned) = text.strip_prefix('-') else { return numeral(text) };
    numeral(unsigned).map(|(number, rest)| (number.negated(), rest))
}

/// An unsigned numeral at the start of a text, and what follows it.
fn numeral(text: &str) -> Option<(Numeral, &str)> {
    let whole = whole_digits(text);
    let fraction = match text[whole..].strip_prefix('.') {
        Some(rest) => digits(rest),
        None => 0,
    };
    let end = if fraction > 0 { whole + 1 + fraction } else { whole };
    if end == 0 {
        return None;
    }
    let plain: String = text[..end].chars().filter(|&character| character != ',').take(64).collect();
    Some((Numeral { value: Rational::from_decimal(&plain) }, &text[end..]))
}

/// Length of a run of digits in which commas may separate the thousands: `1,234,567`, but of `1,2` only `1`.
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

/// Whether what stands before a number makes it negative: a minus, perhaps with a currency sign on either side, that is not a subtraction (`5-3`, `x - 3`).
fn negative(before: &str) -> bool {
    let before = before.strip_suffix('$').unwrap_or(before);
    let before = before.strip_suffix('\\').unwrap_or(before);
    let Some(before) = before.strip_suffix(['-', '−']) else { return false };
    let before = before.trim_end_matches(['$', '\\']);
    !before.chars().next_back().is_some_and(|character| character.is_alphanumeric() || matches!(character, ')' | '}' | ']' | '%'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

    use super::{Rational, final_number};

    fn number(text: &str) -> Rational {
        let (text, negative) = text.strip_prefix('-').map_or((text, false), |rest| (rest, true));
        let (above, below) = text.split_once('/').unwrap_or((text, "1"));
        let value = Rational::from_decimal(above).unwrap().checked_div(Rational::from_decimal(below).unwrap()).unwrap();
        if negative { value.negated() } else { value }
    }

    #[test]
    fn the_final_number_is_found_where_people_and_models_put_it() {
        let cases = [
            ("5 apples and 3 pears.\n#### 8", "8"),
            ("#### 7\nwait\n#### 1,234 dollars, or 5", "1234"),
            (r"so \boxed{42}, and then 43", "42"),
            (r"first \boxed{1} then \boxed{\frac{3}{4}} of 9", "3/4"),
            (r"\boxed{x = 5 \text{ apples}}", "5"),
            (r"\boxed{12", "12"),
            ("#### none, but \\boxed{3} 4", "3"),
            ("The answer is 18.", "18"),
            ("It costs $1,234,567.50!", "1234567.5"),
            ("that is 50%", "50"),
            ("0.5", "1/2"),
            ("a half: 3/6", "1/2"),
            (r"\dfrac{-1}{2}", "-1/2"),
            (r"-\tfrac{1}{2}", "-1/2"),
            ("-$5", "-5"),
            ("$-5", "-5"),
            (r"\$-5", "-5"),
            (r"-\$5", "-5"),
            ("= −7", "-7"),
            ("10-3", "3"),
            ("x-3", "3"),
            ("5 - 3", "3"),
            ("values 1,2", "2"),
            ("12,34,567", "34567"),
            (".5", "1/2"),
            ("1.5.", "3/2"),
            ("007", "7"),
        ];
        for (text, expected) in cases {
            assert_eq!(final_number(text), Some(number(expected)), "{text}");
        }
    }

    #[test]
    fn a_text_without_a_comparable_final_number_has_none() {
        for text in ["", "none", "####", r"\boxed{}", "1/0", r"\frac{1}{0}", "7 and then 1234567890123456789012345678901234567890"] {
            assert_eq!(final_number(text), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn no_text_makes_it_fail(text in r"(?s)([0-9,./$%{}\\−-]|####|\\boxed\{|\\frac\{|[a-z ]|\PC){0,60}") {
            final_number(&text);
        }

        #[test]
        fn a_whole_number_is_read_back_however_it_is_written(value in -999_999_999_999_i64..999_999_999_999, text in "[a-z ]{0,20}") {
            let sign = if value < 0 { "-" } else { "" };
            let digits = value.unsigned_abs().to_string();
            let expected = Some(number(&value.to_string()));
            for written in [digits.clone(), thousands(&digits), format!("${digits}"), format!("{digits}.00"), format!("{digits}%"), format!("{digits}/1")] {
                prop_assert_eq!(final_number(&format!("{text} {sign}{written}")), expected);
                prop_assert_eq!(final_number(&format!("{text}\\boxed{{{sign}{written}}} 5")), expected);
                prop_assert_eq!(final_number(&format!("1 {text}#### {sign}{written}\n2")), expected);
            }
        }
    }

    fn thousands(digits: &str) -> String {
        let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
        groups.join(",")
    }
}
