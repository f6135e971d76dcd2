//! Exact numbers: `0.5`, `1/2` and `50/100` are one value, `0.1 + 0.2` is not a matter of rounding.

/// Digits that a numeral may have; longer ones are no value. Any two such numerals are compared without overflow of `i128`.
pub const MAX_DIGITS: usize = 18;

/// A fraction in lowest terms; the denominator is positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rational {
    numerator: i128,
    denominator: i128,
}

impl Rational {
    /// The value of digits with an optional decimal point (`12`, `12.50`, `.5`); none if there are no or too many digits or anything else.
    pub fn from_decimal(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = whole.len() + fraction.len();
        if digits == 0 || digits > MAX_DIGITS || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let numerator = whole.bytes().chain(fraction.bytes()).fold(0, |value: i128, digit| value * 10 + i128::from(digit - b'0'));
        Self::new(numerator, 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?)
    }

    /// `self ÷ divisor`; none if it is 0 or the result has no room.
    pub fn checked_div(self, divisor: Self) -> Option<Self> {
        Self::new(self.numerator.checked_mul(divisor.denominator)?, self.denominator.checked_mul(divisor.numerator)?)
    }

    /// `−self`.
    pub fn negated(self) -> Self {
        Self { numerator: -self.numerator, ..self }
    }

    fn new(numerator: i128, denominator: i128) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let divisor = greatest_common_divisor(numerator, denominator) * denominator.signum();
        Some(Self { numerator: numerator.checked_div(divisor)?, denominator: denominator.checked_div(divisor)? })
    }
}

/// Positive unless both are 0. The magnitudes here are below 10³⁶, so `abs` cannot overflow.
fn greatest_common_divisor(a: i128, b: i128) -> i128 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::Rational;

    #[test]
    fn decimals_are_exact_and_in_lowest_terms() {
        let value = |text| Rational::from_decimal(text).map(|r| (r.numerator, r.denominator));
        assert_eq!(value("12.50"), Some((25, 2)));
        assert_eq!(value(".125"), Some((1, 8)));
        assert_eq!(value("0.0"), Some((0, 1)));
        assert_eq!(value("999999999999999999"), Some((999_999_999_999_999_999, 1)));
        assert_eq!(value("1000000000000000000"), None);
        for bad in ["", ".", "-1", "1e3", "1.2.3", "١"] {
            assert_eq!(value(bad), None, "{bad}");
        }
    }

    #[test]
    fn division_by_zero_is_no_value_and_signs_end_in_the_numerator() {
        let three = Rational::from_decimal("3").unwrap();
        let zero = Rational::from_decimal("0").unwrap();
        assert_eq!(three.checked_div(zero), None);
        assert_eq!(three.checked_div(three.negated()), Rational::from_decimal("1").map(Rational::negated));
        assert_eq!(zero.negated(), zero);
    }
}
