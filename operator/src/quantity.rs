//! Sums of Kubernetes quantities, in thousandths. Sums saturate; a text that is no quantity is
//! `None`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Suffixes with the power of ten, or with the power of 1024.
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY: [(&str, u32); 6] = [("Ki", 1), ("Mi", 2), ("Gi", 3), ("Ti", 4), ("Pi", 5), ("Ei", 6)];
/// Thousandths are powers of ten.
const MILLI: i32 = 3;

/// The quantity in thousandths, rounded up.
pub fn thousandths(quantity: &Quantity) -> Option<i128> {
    let text = quantity.0.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    let (factor, power) = scale(suffix)?;
    let value = digits.checked_mul(factor)?;
    shifted(value, power.checked_add(MILLI)?.checked_sub(places)?)
}

/// Factor and power of ten of a suffix.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    if let Some((_, power)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Some((1, *power));
    }
    if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Some((1024_i128.checked_pow(*power)?, 0));
    }
    Some((1, suffix.strip_prefix(['e', 'E'])?.parse().ok()?))
}

/// `value · 10 ^ power`, rounded up.
fn shifted(value: i128, power: i32) -> Option<i128> {
    let factor = 10_i128.checked_pow(power.unsigned_abs())?;
    if power >= 0 {
        return value.checked_mul(factor);
    }
    let rest = value.checked_rem(factor)?;
    value.checked_div(factor)?.checked_add(i128::from(rest > 0))
}

/// The quantity of this many thousandths.
pub fn quantity(thousandths: i128) -> String {
    let whole = thousandths.checked_div(1000).unwrap_or_default();
    if whole.saturating_mul(1000) == thousandths {
        whole.to_string()
    } else {
        format!("{thousandths}m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_in_thousandths_rounded_up() {
        let of = |text: &str| thousandths(&Quantity(text.to_owned()));
        for (text, expected) in [
            ("2", 2000),
            ("250m", 250),
            ("0.5", 500),
            ("1.0001", 1001),
            ("1Gi", 1_073_741_824_000),
            ("1.5Ki", 1_536_000),
            ("2G", 2_000_000_000_000),
            ("1e3", 1_000_000),
            ("1E", 1_000_000_000_000_000_000_000),
            ("5n", 1),
        ] {
            assert_eq!(of(text), Some(expected), "{text}");
        }
        let huge = "9".repeat(60);
        for text in ["", "x", "1x", "1.2.3", "-1", "1e99", huge.as_str()] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!((quantity(2000), quantity(1250)), ("2".to_owned(), "1250m".to_owned()));
    }
}
