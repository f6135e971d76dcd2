//! What `reward.math` promises; most of it is the table `tests/fixtures/math.tsv`.

use proptest::prelude::{ProptestConfig, prop_assert, proptest};
use rljob_crds::reward::{AnswerPlace, MathReward};

use super::{correct, extract, is_usable};

const TABLE: &str = include_str!("../../../tests/fixtures/math.tsv");

fn default_places() -> Vec<AnswerPlace> {
    MathReward::default().extract
}

#[test]
fn every_row_of_the_table_holds() {
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
            wrong.push(format!("{row}\n    reads {reference:?}\n    and {completion:?}"));
        }
    }
    assert!(rows.len() >= 120, "{} rows", rows.len());
    assert!(
        wrong.is_empty(),
        "{} of {} rows do not hold:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}

#[test]
fn the_places_are_looked_at_in_the_order_that_the_spec_gives() {
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
    assert!(
        !correct("The answer is 3", "3", &[Boxed]),
        "a place that is not asked for is not looked at"
    );
    assert!(
        correct("The answer is 3", "3", &[Boxed, Phrase]),
        "a place that the text lacks is passed over"
    );
    assert!(
        !correct("\\boxed{x + 1} 3", "3", &default_places()),
        "a place without an answer is not"
    );
}

#[test]
fn a_reference_that_is_no_answer_is_not_usable() {
    for unusable in [
        "",
        "none",
        "####",
        "\\boxed{}",
        "1/0",
        "\\frac{1}{0}",
        "2x + 3",
        "(A)",
        "\\sqrt{-4}",
        "\\text{even}",
        "y > 3",
        "\\alpha",
        "(5, x)",
        "(1, 2",
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn no_text_makes_it_fail(text in r"(?s)([0-9,./$%{}\\()\[\]^_!|−±e+-]|####|\\boxed\{|\\frac|\\sqrt|\\text\{|\\cup|\\infty|\\pi|answer is|[a-z ]|\PC){0,40}") {
        correct(&text, &text, &default_places());
    }

    #[test]
    fn an_answer_equals_itself_wherever_it_stands(text in r"([0-9]{1,4}|\\frac\{[1-9]\}\{[1-9]\}|\\sqrt\{[0-9]{1,3}\}|\\pi| \+ |-){1,5}") {
        if is_usable(&text) {
            for completion in [format!("\\boxed{{{text}}}"), format!("#### {text}\n")] {
                prop_assert!(correct(&completion, &text, &default_places()), "{completion}");
            }
        }
    }

    #[test]
    fn a_whole_number_is_read_back_however_it_is_written(value in -999_999_999_999_i64..999_999_999_999, text in "[a-z ]{0,20}") {
        let sign = if value < 0 { "-" } else { "" };
        let digits = value.unsigned_abs().to_string();
        let expected = value.to_string();
        for written in [digits.clone(), thousands(&digits), format!("${digits}"), format!("{digits}.00"), format!("{digits}%"), format!("{digits}/1")] {
            for completion in [format!("{text} {sign}{written}"), format!("{text}\\boxed{{{sign}{written}}} 5"), format!("1 {text}#### {sign}{written}\n2")] {
                prop_assert!(correct(&completion, &expected, &default_places()), "{completion}");
            }
        }
    }
}
