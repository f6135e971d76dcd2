//! Comparison of a program's output or result with the expected one.

use serde_json::Value;

/// Digits up to which numbers are compared by value: an f64 holds them exactly.
const EXACT_DIGITS: usize = 15;

/// Whether outputs are equal line by line, without white space at the ends of lines and of the
/// text. Lines whose words differ in notation only (`1.0`, `1.00`) are equal.
pub fn equal_streams(output: &str, expected: &str) -> bool {
    let lines = |text: &'_ str| -> Vec<String> {
        text.trim().lines().map(|line| line.trim().to_owned()).collect()
    };
    let (output, expected) = (lines(output), lines(expected));
    output.len() == expected.len()
        && output.iter().zip(&expected).all(|(line, other)| line == other || words(line, other))
}

fn words(line: &str, other: &str) -> bool {
    let (mut words, mut others) = (line.split_whitespace(), other.split_whitespace());
    loop {
        match (words.next(), others.next()) {
            (None, None) => return true,
            (Some(word), Some(other)) if word == other || equal_numbers(word, other) => {}
            _ => return false,
        }
    }
}

fn equal_numbers(word: &str, other: &str) -> bool {
    match (number(word), number(other)) {
        (Some(value), Some(other)) => value.total_cmp(&other).is_eq(),
        _ => false,
    }
}

/// Value of a decimal number with few digits.
fn number(word: &str) -> Option<f64> {
    let digits = word.chars().filter(char::is_ascii_digit).count();
    let is_decimal = word.chars().all(|char| char.is_ascii_digit() || "+-.eE".contains(char));
    // Adding 0 turns -0 into 0.
    (is_decimal && digits <= EXACT_DIGITS)
        .then(|| word.parse::<f64>().ok().map(|value| value + 0.0))?
}

/// Whether a function's result equals the expected one. As in APPS, the expected one may be in a
/// list of one. Numbers are compared by value.
pub fn equal_results(result: &Value, expected: &Value) -> bool {
    let single = expected.as_array().and_then(|list| list.first());
    equal_values(result, expected) || single.is_some_and(|value| equal_values(result, value))
}

fn equal_values(value: &Value, other: &Value) -> bool {
    match (value, other) {
        (Value::Number(value), Value::Number(other)) => {
            value == other
                || value.as_f64().zip(other.as_f64()).is_some_and(|(a, b)| {
                    (value.is_f64() || other.is_f64()) && a.total_cmp(&b).is_eq()
                })
        }
        (Value::Array(values), Value::Array(others)) => {
            values.len() == others.len()
                && values.iter().zip(others).all(|(value, other)| equal_values(value, other))
        }
        (Value::Object(values), Value::Object(others)) => {
            values.len() == others.len()
                && values.iter().all(|(key, value)| {
                    others.get(key).is_some_and(|other| equal_values(value, other))
                })
        }
        _ => value == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn streams_are_compared_by_lines_and_numbers_by_value() {
        for (output, expected) in [
            ("3\n", "3"),
            ("1 2 \r\n3\n\n", "1 2\n3"),
            ("0.50 1e3", "0.5 1000"),
            ("-0.0", "0"),
            ("YES", "YES\n"),
        ] {
            assert!(equal_streams(output, expected), "{output:?} {expected:?}");
        }
        for (output, expected) in [
            ("3", "4"),
            ("1\n2", "1 2"),
            ("yes", "YES"),
            ("", "0"),
            ("12345678901234567", "12345678901234568"),
            ("nan", "NaN"),
            ("1 2", "1 2 3"),
        ] {
            assert!(!equal_streams(output, expected), "{output:?} {expected:?}");
        }
    }

    #[test]
    fn results_are_compared_by_value() {
        assert!(equal_results(&json!(3), &json!([3])));
        assert!(equal_results(&json!([1, 2.0]), &json!([1.0, 2])));
        assert!(equal_results(&json!({"a": 1}), &json!({"a": 1.0})));
        assert!(!equal_results(&json!(true), &json!(1)));
        assert!(!equal_results(&json!([1]), &json!([1, 2])));
        let (large, next) = (9_007_199_254_740_993_u64, 9_007_199_254_740_992_u64);
        assert!(!equal_results(&json!(large), &json!(next)));
    }
}
