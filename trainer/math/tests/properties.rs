//! Properties: different rationals never compare equal, comparison is symmetric, formatting does
//! not change a verdict, and arbitrary texts neither panic nor take long.

use std::time::{Duration, Instant};

use proptest::prelude::{
    Just, ProptestConfig, Strategy, prop_assert, prop_assert_eq, prop_assume, prop_oneof, proptest,
};
use rljob_math::{Place, answer_classes, parse_reference, verdict};

const SUITE: &str = include_str!("suite.tsv");

fn equal(prediction: &str, reference: &str) -> bool {
    let completion = format!("\\boxed{{{prediction}}}");
    parse_reference(reference)
        .is_ok_and(|reference| verdict(&completion, &reference, &Place::DEFAULT))
}

fn grouped(value: i64, separator: &str) -> String {
    let digits = value.unsigned_abs().to_string();
    let groups: Vec<String> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| String::from_utf8_lossy(group).into_owned())
        .collect();
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", groups.join(separator))
}

fn mixed(above: i64, below: i64) -> String {
    let (whole, rest) = (above.abs() / below, above.abs() % below);
    let sign = if above < 0 { "-" } else { "" };
    if whole == 0 || rest == 0 {
        return format!("{above}/{below}");
    }
    format!("{sign}{whole}\\frac{{{rest}}}{{{below}}}")
}

/// Notations of `above / below` except percentages.
fn written(above: i64, below: i64, format: usize) -> String {
    match format {
        0 => format!("{above}/{below}"),
        1 => format!("\\frac{{{above}}}{{{below}}}"),
        2 => format!("-\\dfrac{{{}}}{{{below}}}", -above),
        3 => format!("\\left({above}\\right) \\div {below}"),
        4 => format!("{above}\\cdot {below}^{{-1}}"),
        5 => format!("x = \\frac{{{}}}{{{}}}", 3 * above, 3 * below),
        6 => mixed(above, below),
        7 if below == 1 => grouped(above, ","),
        8 if below == 1 => grouped(above, "{,}"),
        9 if below == 1 => format!("{above}.00"),
        10 if below == 1 => format!("{above} \\text{{ apples}}"),
        11 if 1000 % below == 0 => {
            let thousandths = above * (1000 / below);
            let sign = if thousandths < 0 { "-" } else { "" };
            let size = thousandths.unsigned_abs();
            format!("{sign}{}.{:03}", size / 1000, size % 1000)
        }
        12 if 1000 % below == 0 => format!("{} \\times 10^{{-3}}", above * (1000 / below)),
        _ => format!("\\frac{{{above}\\sqrt{{4}}}}{{{}}}", 2 * below),
    }
}

const FORMATS: usize = 14;

fn numbers() -> impl Strategy<Value = (i64, i64)> {
    let above = prop_oneof![-30_i64..30, -2000_i64..2000, -99_999_999_i64..99_999_999];
    let below = prop_oneof![Just(1_i64), 1_i64..13, Just(8), Just(100), Just(1000)];
    (above, below)
}

/// Pieces of LaTeX, answer markers and arbitrary characters.
const ARBITRARY: &str = concat!(
    r"(?s)([0-9,./$%{}\\()\[\]^_!|−±e+i=<>:&-]|####|\\boxed\{|\\frac|\\sqrt|\\text\{|\\cup|\\in ",
    r"|\\infty|\\pi|\\log|\\sin|\\begin\{pmatrix\}|\\end\{pmatrix\}|\\binom|answer is|[a-z ]|\PC)",
    r"{0,60}",
);

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(1000)
    })]

    #[test]
    fn notations_are_equal_exactly_if_their_rationals_are(
        (a, b) in numbers(),
        (c, d) in numbers(),
        first in 0..FORMATS,
        second in 0..FORMATS,
    ) {
        let (left, right) = (written(a, b, first), written(c, d, second));
        prop_assert_eq!(equal(&left, &right), a * d == c * b, "{} and {}", left, right);
        let same = written(a * 2, b * 2, second % 7);
        prop_assert!(equal(&left, &same), "{left} and {same}");
    }

    #[test]
    fn near_rationals_differ((a, b) in numbers(), first in 0..FORMATS, second in 0..FORMATS) {
        for (c, d) in [(a + 1, b), (a - 1, b), (-a, b), (a, b + 1), (10 * a, b), (a, 10 * b)] {
            prop_assume!(d > 0);
            let (left, right) = (written(a, b, first), written(c, d, second));
            prop_assert_eq!(equal(&left, &right), a * d == c * b, "{} and {}", left, right);
        }
    }

    #[test]
    fn a_percentage_is_its_number_or_its_hundredth((a, b) in numbers(), other in numbers()) {
        let percentage = format!("{a}/{b}\\%");
        let percentage = if b == 1 { format!("{a}\\%") } else { percentage };
        let (c, d) = other;
        let expected = a * d == c * b * 100 || (a * d == c * b && a.abs() >= b);
        prop_assert_eq!(equal(&percentage, &written(c, d, 1)), expected);
    }

    #[test]
    fn arbitrary_texts_do_not_panic_and_end_quickly(text in ARBITRARY) {
        let start = Instant::now();
        equal(&text, &text);
        if let Ok(reference) = parse_reference(&text) {
            verdict(&text, &reference, &Place::DEFAULT);
        }
        answer_classes(&[&text, "\\boxed{1}"], &Place::DEFAULT);
        prop_assert!(start.elapsed() < Duration::from_secs(2), "{text}");
    }
}

/// Predictions in boxes and references of the suite.
fn rows() -> Vec<(&'static str, &'static str)> {
    let rows = SUITE.lines().filter(|line| !line.starts_with("# "));
    rows.filter_map(|row| {
        let mut columns = row.split('\t').skip(1);
        let (prediction, reference) = (columns.next()?, columns.next()?);
        let plain = !reference.starts_with("####") && !reference.contains("\\boxed");
        (plain && !prediction.starts_with("C:") && !reference.contains("answer"))
            .then_some((prediction, reference))
    })
    .collect()
}

#[test]
fn comparison_is_symmetric() {
    for (prediction, reference) in rows() {
        let (forth, back) = (equal(prediction, reference), equal(reference, prediction));
        assert_eq!(forth, back, "{prediction} and {reference}");
    }
}

#[test]
fn a_supported_answer_equals_itself() {
    for (_, reference) in rows() {
        assert!(parse_reference(reference).is_err() || equal(reference, reference), "{reference}");
    }
}

#[test]
fn formatting_does_not_change_a_verdict() {
    type Change = fn(&str) -> String;
    let changes: [Change; 9] = [
        |text| format!("${text}$"),
        |text| format!("\\({text}\\)"),
        |text| format!(" {text} "),
        |text| format!("{}.", text.strip_suffix('.').unwrap_or(text)),
        |text| text.replace("\\left", "").replace("\\right", ""),
        |text| text.replace("\\frac", "\\dfrac"),
        |text| text.replace("\\dfrac", "\\tfrac"),
        |text| text.replace(" = ", "=").replace(" + ", "+").replace(" - ", "-"),
        |text| text.replace('=', "\\, = \\;").replace('+', " + "),
    ];
    for (prediction, reference) in rows() {
        let expected = equal(prediction, reference);
        for (index, change) in changes.iter().enumerate() {
            let changed = change(prediction);
            // A dollar before an odd number of others is a currency.
            let currency = prediction.contains('$') || changed.contains("+\\infty");
            if !currency || index > 1 {
                let found = equal(&changed, reference);
                assert_eq!(found, expected, "{prediction} as {changed} and {reference}");
            }
        }
    }
}

#[test]
fn expensive_texts_end_quickly() {
    let power = "(a+b+c+d+e+f+g+h)^{32}";
    let nested = "9^{9^{9^{9}}}";
    for text in [
        "(".repeat(1000) + "1",
        "\\frac".repeat(400),
        "√".repeat(400) + "2",
        "{".repeat(200) + "1" + &"}".repeat(200),
        "\\text{".repeat(300),
        "\\sqrt{".repeat(23) + "2+x" + &"}".repeat(23),
        power.to_owned(),
        format!("{power}{power}"),
        nested.to_owned(),
        "2^{4000}".repeat(10),
        "\\sqrt{".to_owned() + &"123456789".repeat(100) + "}",
        (1..60).map(|n| format!("\\sqrt{{{n}}}")).collect::<Vec<_>>().join("+"),
        format!(
            "({})^{{8}}",
            (1..30).map(|n| format!("\\sqrt{{{n}}}")).collect::<Vec<_>>().join("+")
        ),
        vec!["[0,1]"; 64].join("\\cup "),
        vec!["1"; 65].join(", "),
        "500!".repeat(20),
        "\\binom{500}{250}".repeat(30),
        "xx\n((x+\n35)^20\nx+\n32)^20\n".to_owned(),
        "(\\sin((\\sin((x+y+z+1)^9)+y+z+1)^9)+y)^{9}".to_owned(),
        format!("(x+\\frac{{{}}}{{{}}})^{{32}}", "1234567890".repeat(9), "9876543211".repeat(9)),
        format!(
            "\\{{{}\\}}",
            (0..64).map(|n| format!("(x+y)^7+{n}")).collect::<Vec<_>>().join(",")
        ),
        "|".repeat(500),
        "1".repeat(2000),
        "x_".repeat(900),
        "#### ".repeat(400),
        "\\boxed{".repeat(280),
    ] {
        let start = Instant::now();
        equal(&text, &text);
        let _ = parse_reference(&text);
        let excerpt: String = text.chars().take(40).collect();
        assert!(start.elapsed() < Duration::from_secs(3), "{excerpt}: {:?}", start.elapsed());
        println!("{:?} {excerpt}", start.elapsed());
    }
}

fn joined(count: usize, separator: &str, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(separator)
}

#[test]
fn units_whose_scale_exceeds_the_size_limits_are_compared_as_text() {
    let unit = |count| format!("5 {}", vec!["\\text{mi}^9"; count].join("*"));
    assert!(parse_reference(&unit(20)).is_ok());
    assert!(equal(&unit(150), &unit(150)));
    assert!(!equal(&unit(150), &unit(149)));
}

#[test]
fn texts_that_need_more_work_than_the_fuel_are_unsupported() {
    for text in [
        format!("lcm({})", joined(80, ",", |n| format!("2^{{4000}}+{n}"))),
        joined(80, "+", |n| format!("√(2^{{1000}}+{n})")),
        joined(80, "+", |n| format!("\\ln(2^{{900}}-{n})")),
        joined(80, "+", |n| format!("(2^{{900}}+{n})^x")),
        joined(40, ",", |n| format!("\\pm\\ln {}98765432101234567899876543210123457", n + 1)),
    ] {
        let reason = parse_reference(&text).map_err(|reason| reason.to_string());
        let expected = "the answer exceeds the size limits";
        assert!(reason.as_ref().is_err_and(|reason| reason == expected), "{text}: {reason:?}");
    }
}

#[test]
fn answers_whose_comparison_needs_more_work_than_the_fuel_differ_in_both_directions() {
    let sets = |order: fn(usize) -> usize| {
        let item = |n| format!("\\{{{}, {}, x\\}}", order(n), order(n) + 1);
        format!("\\{{{}\\}}", joined(64, ", ", item))
    };
    let (rising, falling) = (sets(|n| n), sets(|n| 63 - n));
    assert!(equal(&rising, &rising));
    assert!(!equal(&rising, &falling) && !equal(&falling, &rising));
}
