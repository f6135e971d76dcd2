//! The math reward.

use futures::executor::block_on;
use rljob_coordinator::reward::{Question, Rewards, Runner};
use rljob_crds::reward::RewardSpec;

/// Two answers in two lines, or two rational numbers in the form `p/q`.
///
/// A completion with a boxed answer is correct for that answer; equality is symmetric and does not
/// depend on spaces around an answer; different rational numbers are never equal.
pub fn math_answer(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (left, right) = text.split_once('\n').unwrap_or((text, text));
    let Some(rewards) = rewards() else { return };
    let (there, back) = (equal(&rewards, left, right), equal(&rewards, right, left));
    assert_eq!(there, back, "equality is symmetric");
    if is_balanced(left) {
        let spaced = format!(" {left} ");
        assert_eq!(equal(&rewards, &spaced, right), there, "spaces do not change the verdict");
    }
    if let (Some(one), Some(other)) = (rational(left), rational(right)) {
        let same = one.0 * other.1 == other.0 * one.1;
        assert_eq!(there, same, "rational numbers are equal if their values are");
    }
    let classes = rewards.answer_classes(&[&boxed(left), &boxed(right)], &[None, None]);
    assert_eq!(classes.map(|classes| classes.len()), Some(2), "a class per completion");
}

fn rewards() -> Option<Rewards> {
    let spec = serde_json::json!({ "name": "math", "math": { "extract": ["Boxed"] } });
    let runner = Runner::Program(std::path::PathBuf::new());
    Rewards::new(&[serde_json::from_value::<RewardSpec>(spec).ok()?], &runner, None).ok()
}

fn boxed(text: &str) -> String {
    format!("\\boxed{{{text}}}")
}

/// Whether a completion with the boxed `answer` is correct for the reference.
fn equal(rewards: &Rewards, answer: &str, reference: &str) -> bool {
    let (completion, reference) = (boxed(answer), boxed(reference));
    let question =
        Question { prompt: "", completion: &completion, answer: Some(&reference), fields: None };
    block_on(rewards.score(question)).is_ok_and(|reward| reward.value > 0.0)
}

/// Whether braces are balanced, without commands: others end the box or take in the spaces.
fn is_balanced(text: &str) -> bool {
    let mut depth = 0_u32;
    for character in text.chars() {
        depth = match character {
            '{' => depth + 1,
            '}' if depth == 0 => return false,
            '}' => depth - 1,
            _ => depth,
        };
    }
    depth == 0 && !text.contains('\\')
}

/// Numerator and denominator of `p` or `p/q` in digits.
fn rational(text: &str) -> Option<(i128, i128)> {
    let (p, q) = text.split_once('/').unwrap_or((text, "1"));
    let digits = |text: &str| {
        let number = text.strip_prefix('-').unwrap_or(text);
        let is_number =
            (1..=15).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<i128>().ok()).flatten()
    };
    digits(p).zip(digits(q).filter(|q| *q > 0))
}
