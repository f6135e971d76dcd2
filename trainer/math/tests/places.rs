//! Places of the final answer, unsupported references, and notations of whole numbers.

use proptest::prelude::{ProptestConfig, prop_assert, proptest};
use rljob_math::Place::{self, Boxed, Formula, Hashes, LastNumber, Phrase};
use rljob_math::{answer_classes, parse_reference, verdict};

/// The default of `spec.rewards[].math.extract`.
const DEFAULT: [Place; 4] = [Hashes, Boxed, Phrase, LastNumber];

fn correct(completion: &str, reference: &str, places: &[Place]) -> bool {
    parse_reference(reference).is_ok_and(|reference| verdict(completion, &reference, places))
}

#[test]
fn places_are_searched_in_the_order_of_the_spec() {
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
        !correct("\\boxed{x + 1} 3", "3", &DEFAULT),
        "a place without an answer is not skipped"
    );
    assert!(!correct("\\boxed{} 3", "3", &DEFAULT), "an empty box is a place");
}

#[test]
fn unsupported_references_have_a_reason() {
    for unsupported in
        ["", "####", "\\boxed{}", "1/0", "\\frac{1}{0}", "x = 2 = 3", "3e-2", "1/2x", "1, 2, ..."]
    {
        let reason = parse_reference(unsupported).map_err(|reason| reason.to_string());
        assert!(
            reason.as_ref().is_err_and(|reason| !reason.is_empty()),
            "{unsupported}: {reason:?}"
        );
    }
    for supported in [
        "5",
        "#### 5",
        "\\boxed{(1,2)}",
        "A long text, then\n#### 1/3",
        "The answer is 7.",
        "x=\\frac12",
        "2x + 3",
        "(A)",
        "\\sqrt{-4}",
        "\\text{even}",
        "y > 3",
        "\\alpha",
        "(5, x)",
    ] {
        assert!(parse_reference(supported).is_ok(), "{supported}");
    }
}

#[test]
fn an_answer_that_cannot_be_computed_is_equal_to_the_same_text_in_another_style() {
    let both = [
        ("x \\to 5", "$x\\to 5.$"),
        ("\\hbar \\omega(v+\\frac12)", "\\hbar\\,\\omega \\left(v + \\dfrac{1}{2}\\right)"),
        ("\\ddot{\\theta} = -g \\sin\\theta(t)", "\\ddot{\\theta}=-g\\sin \\theta(t)"),
        ("\\int_0^1 x\\,dx", "\\int_0^1 x dx"),
        ("b > a > c", "b>a>c"),
        ("\\text{4:30 p.m.}", "4:30 \\text{ p.m.}"),
        ("5 \\text{ or more}", "5 or more"),
        ("\\log_6(216)=3", "\\log_{6} \\left(216\\right) = 3"),
        ("\\lceil n / 2\\rceil+1", "\\lceil n/2 \\rceil + 1"),
        ("\\log(-1)", "\\log (-1)"),
    ];
    for (reference, answer) in both {
        assert!(correct(&format!("\\boxed{{{answer}}}"), reference, &DEFAULT), "{reference}");
    }
    for (reference, answer) in [
        ("x \\to 5", "5"),
        ("x \\to 5", "x \\to 6"),
        ("b > a > c", "b > c > a"),
        ("\\text{4:30 p.m.}", "4:30 \\text{ a.m.}"),
        ("5 \\text{ or more}", "5"),
        ("\\int_0^1 x\\,dx", "\\int_0^2 x\\,dx"),
    ] {
        assert!(!correct(&format!("\\boxed{{{answer}}}"), reference, &DEFAULT), "{reference}");
    }
}

#[test]
fn the_answer_follows_an_introduction_and_precedes_an_explanation() {
    for completion in [
        "Final Answer: The largest $n$ is 34.",
        "The answer is 34, because 33 is odd.",
        "Answer: 34",
    ] {
        assert!(correct(completion, "34", &DEFAULT), "{completion}");
    }
    assert!(!correct("Final Answer: The largest $n$ is not 34.", "34", &DEFAULT));
    assert!(!correct("Final Answer: The largest $n$ is at least 34.", "34", &DEFAULT));
}

#[test]
fn several_boxes_of_a_reference_or_a_completion_are_a_list() {
    for (completion, reference) in [
        ("\\boxed{1, 2}", "\\boxed{1} papers and \\boxed{2} bins"),
        ("\\boxed{k = 45} \\text{ and } \\boxed{n = 2}", "k = 45, n = 2"),
        ("\\boxed{1}, \\boxed{2}", "2, 1"),
    ] {
        assert!(correct(completion, reference, &DEFAULT), "{completion}");
    }
    assert!(!correct("\\boxed{1, 3}", "\\boxed{1} and \\boxed{2}", &DEFAULT));
}

#[test]
fn numbers_of_formulas_are_not_the_last_number() {
    for completion in [
        "so x \\geq 5",
        "so x > 5",
        "so x ≠ 5",
        "we get x^{5}",
        "that is \\sqrt{5}",
        "the point (4, 5)",
        "it is 5x",
        "it is 5\\alpha",
        "not 5",
        "at least 5",
        "\\log 5",
        "5 million",
    ] {
        assert!(!correct(completion, "5", &[LastNumber]), "{completion}");
    }
    for completion in ["x = 5", "5 apples", "(5)", "costs $5.", "5 km", "**5**", "5 \\text{ cm}"] {
        assert!(correct(completion, "5", &[LastNumber]), "{completion}");
    }
    assert!(!correct("it is 5 km", "5 m", &[LastNumber]));
}

#[test]
fn equal_final_answers_are_one_class() {
    let completions = ["#### 1/2", "\\boxed{0.5}", "nothing", "#### x + 1", "\\boxed{1 + x}", "7"];
    assert_eq!(
        answer_classes(&completions, &DEFAULT),
        [Some(0), Some(0), None, Some(3), Some(3), Some(5)]
    );
}

fn thousands(digits: &str) -> String {
    let groups: Vec<String> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| String::from_utf8_lossy(group).into_owned())
        .collect();
    groups.join(",")
}

const EXPRESSION: &str =
    r"([0-9]{1,4}|\\frac\{[1-9]\}\{[1-9]\}|\\sqrt\{[0-9]{1,3}\}|\\pi| \+ |-){1,5}";

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(500)
    })]

    #[test]
    fn an_answer_equals_itself_in_every_place(text in EXPRESSION) {
        if parse_reference(&text).is_ok() {
            for completion in [format!("\\boxed{{{text}}}"), format!("#### {text}\n")] {
                prop_assert!(correct(&completion, &text, &DEFAULT), "{completion}");
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
                format!("it says: {sign}{written}"),
                format!("{text}\\boxed{{{sign}{written}}} 5"),
                format!("1 {text}#### {sign}{written}\n2"),
            ] {
                prop_assert!(correct(&completion, &expected, &DEFAULT), "{completion}");
            }
        }
    }
}
