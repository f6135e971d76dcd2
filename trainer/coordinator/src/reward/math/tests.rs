//! Tests of the math reward; most cases are rows of `tests/fixtures/math.tsv`.

use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};
use rljob_crds::reward::{AnswerPlace, MathReward};

use crate::reward::math::{correct, extract, is_usable};

const TABLE: &str = include_str!("../../../tests/fixtures/math.tsv");

const PAIRS: &str = include_str!("../../../tests/fixtures/math-pairs.tsv");

fn default_places() -> Vec<AnswerPlace> {
    MathReward::default().extract
}

#[test]
fn every_row_of_the_table_scores_as_expected() {
    let rows: Vec<&str> = TABLE.lines().filter(|line| !line.starts_with("# ")).collect();
    let mut wrong = Vec::new();
    for row in &rows {
        let mut columns = row.split('\t').map(|column| column.replace('⏎', "\n"));
        let (Some(expected), Some(reference), Some(completion), None) =
            (columns.next(), columns.next(), columns.next(), columns.next())
        else {
            panic!("not three columns: {row}")
        };
        let found = if correct(&completion, &reference, &default_places()) { "yes" } else { "no" };
        if found != expected {
            let (reference, completion) = (
                extract::reference_answer(&reference),
                extract::final_answer(&completion, &default_places()),
            );
            wrong
                .push(format!("{row}\n    reference {reference:?}\n    completion {completion:?}"));
        }
    }
    assert!(rows.len() >= 120, "{} rows", rows.len());
    assert!(
        wrong.is_empty(),
        "{} of {} rows score otherwise:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}

#[test]
fn judged_pairs_have_no_false_positive_and_almost_no_false_negative() {
    let (mut pairs, mut false_positives, mut false_negatives) = (0, Vec::new(), Vec::new());
    for line in PAIRS.lines().filter(|line| !line.starts_with("# ")) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [reference, equal, other] = columns[..] else { panic!("not three columns: {line}") };
        for (forms, expected, wrong) in
            [(equal, true, &mut false_negatives), (other, false, &mut false_positives)]
        {
            for form in forms.split('¦') {
                pairs += 1;
                let completion = format!("So it is $\\boxed{{{form}}}$.");
                if correct(&completion, reference, &default_places()) != expected {
                    wrong.push(format!("{reference}   {form}"));
                }
            }
        }
    }
    let right = pairs - false_positives.len() - false_negatives.len();
    let share = right as f64 / pairs as f64;
    println!("{pairs} pairs, {right} right");
    assert!(
        false_positives.is_empty() && share >= 0.98 && pairs >= 600,
        "{right} of {pairs} pairs are right\nwrongly equal:\n{}\nwrongly different:\n{}",
        false_positives.join("\n"),
        false_negatives.join("\n")
    );
}

#[test]
fn places_are_searched_in_the_order_of_the_spec() {
    use AnswerPlace::{Boxed, Formula, Hashes, LastNumber, Phrase};
    let text = "#### 1\n\\boxed{2}\nThe answer is 3.\nHence $4$ of 5";
    let places = [Hashes, Boxed, Phrase, Formula, LastNumber];
    for (place, expected) in places.iter().zip(["1", "2", "3", "4", "5"]) {
        assert!(correct(text, expected, &[*place]), "{place:?}");
        assert!(
            correct(text, expected, &[*place, Hashes, Boxed, Phrase, Formula, LastNumber]),
            "{place:?} first"
        );
    }
    assert!(!correct("The answer is 3", "3", &[Boxed]), "places outside the list are not searched");
    assert!(
        correct("The answer is 3", "3", &[Boxed, Phrase]),
        "places that the text lacks are skipped"
    );
    assert!(
        !correct("\\boxed{x + 1} 3", "3", &default_places()),
        "a place without an answer is not skipped"
    );
}

#[test]
fn unparsable_reference_answers_are_not_usable() {
    for unusable in [
        "",
        "####",
        "\\boxed{}",
        "1/0",
        "\\frac{1}{0}",
        "\\sqrt{-4}",
        "(5, x)",
        "(1, 2",
        "x \\to 5",
        "5 \\mid x",
        "\\log 5",
        "\\neq 18",
        "x = 5 = 6",
        "abc + 5 is odd",
    ] {
        assert!(!is_usable(unusable), "{unusable}");
    }
    for usable in [
        "5",
        "#### 5",
        "\\boxed{(1,2)}",
        "A long text, then\n#### 1/3",
        "The answer is 7.",
        "x=\\frac12",
        "2x + 3",
        "(A)",
        "\\text{even}",
        "y > 3",
        "5\\alpha",
    ] {
        assert!(is_usable(usable), "{usable}");
    }
}

#[test]
fn nesting_and_length_have_limits() {
    for deep in [
        "(".repeat(5000) + "1",
        "\\frac".repeat(5000),
        "√".repeat(400) + "2",
        "{".repeat(200) + "1" + &"}".repeat(200),
    ] {
        assert!(!is_usable(&deep));
    }
    assert!(!is_usable(&("1".repeat(1001) + ", 2")));
    assert!(!is_usable("9^{9^{9^{9}}}"));
    assert!(!is_usable(&vec!["1"; 65].join(", ")));
}

fn thousands(digits: &str) -> String {
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap())
        .collect();
    groups.join(",")
}

/// Pieces of LaTeX, answer markers and arbitrary characters.
const ARBITRARY: &str = concat!(
    r"(?s)([0-9,./$%{}\\()\[\]^_!|−±e+-]|####|\\boxed\{|\\frac|\\sqrt|\\text\{|\\cup",
    r"|\\infty|\\pi|answer is|[a-z ]|\PC){0,40}",
);
const EXPRESSION: &str =
    r"([0-9]{1,4}|\\frac\{[1-9]\}\{[1-9]\}|\\sqrt\{[0-9]{1,3}\}|\\pi| \+ |-){1,5}";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn arbitrary_texts_do_not_panic(text in ARBITRARY) {
        correct(&text, &text, &default_places());
    }

    #[test]
    fn different_rationals_are_never_equal_in_any_notation(
        (above, below) in (-999_i64..999, 1_i64..99),
        (other_above, other_below) in (-999_i64..999, 1_i64..99),
        notation in 0_usize..5,
        other_notation in 0_usize..5,
    ) {
        let written = |above: i64, below: i64, notation| match notation {
            0 => format!("{above}/{below}"),
            1 => format!("\\frac{{{above}}}{{{below}}}"),
            2 => format!("x = \\dfrac{{{above}}}{{{below}}}"),
            3 => format!("\\left(\\frac{{{above}}}{{{below}}}\\right)"),
            _ => format!("{above} \\div {below}"),
        };
        let (left, right) =
            (written(above, below, notation), written(other_above, other_below, other_notation));
        let equal = above * other_below == other_above * below;
        for (reference, form) in [(&left, &right), (&right, &left)] {
            let found = correct(&format!("\\boxed{{{form}}}"), reference, &default_places());
            prop_assert_eq!(found, equal, "{} {}", reference, form);
        }
    }

    #[test]
    fn an_answer_equals_itself_in_every_place(text in EXPRESSION) {
        if is_usable(&text) {
            for completion in [format!("\\boxed{{{text}}}"), format!("#### {text}\n")] {
                prop_assert!(correct(&completion, &text, &default_places()), "{completion}");
            }
        }
    }

    #[test]
    fn all_notations_of_a_whole_number_are_equal(
        value in -999_999_999_999_i64..999_999_999_999,
        text in "[a-z ]{0,20}",
    ) {
        let sign = if value < 0 { "-" } else { "" };
        let digits = value.unsigned_abs().to_string();
        let expected = value.to_string();
        for written in [
            digits.clone(),
            thousands(&digits),
            format!("${digits}"),
            format!("{digits}.00"),
            format!("{digits}%"),
            format!("{digits}/1"),
        ] {
            for completion in [
                format!("{text} {sign}{written}"),
                format!("{text}\\boxed{{{sign}{written}}} 5"),
                format!("1 {text}#### {sign}{written}\n2"),
            ] {
                prop_assert!(correct(&completion, &expected, &default_places()), "{completion}");
            }
        }
    }
}
