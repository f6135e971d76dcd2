//! What `reward` promises, one sentence a test.

use std::collections::BTreeMap;

use rljob_crds::algorithm::{ExactMatchReward, MathReward, RewardSpec};

use super::{Reward, UnusableAnswer, Verifier};

fn math() -> Verifier {
    Verifier::new(&RewardSpec { math: Some(MathReward {}), exact_match: None })
}

fn exact_match() -> Verifier {
    Verifier::new(&RewardSpec { math: None, exact_match: Some(ExactMatchReward {}) })
}

#[test]
fn math_compares_the_final_numbers_by_value() {
    let answer = "Natalia sold 48/2 = 24 clips in May.\nAltogether 72.\n#### 72";
    let correct = Reward { value: 1.0, components: BTreeMap::from([("math".to_owned(), 1.0)]) };
    let wrong = Reward { value: 0.0, components: BTreeMap::from([("math".to_owned(), 0.0)]) };
    assert_eq!(math().score("48 + 24 = 72.00", answer), correct);
    assert_eq!(math().score(r"\boxed{144/2}", answer), correct);
    assert_eq!(math().score("72 in all, so 73", answer), wrong);
    assert_eq!(math().score("", answer), wrong);
}

#[test]
fn two_texts_without_numbers_are_not_equal_by_value() {
    assert!(math().score("none", "none").value.abs() < f64::EPSILON);
}

#[test]
fn exact_match_ignores_only_the_white_space_around() {
    let reward = |value| Reward { value, components: BTreeMap::from([("exactMatch".to_owned(), value)]) };
    let scored = [" a b\n", "a  b", "A b"].map(|completion| exact_match().score(completion, "a b"));
    assert_eq!(scored, [reward(1.0), reward(0.0), reward(0.0)]);
}

#[test]
fn an_answer_that_nothing_could_match_is_refused_with_its_end() {
    let long = format!("{} the end", "é".repeat(100));
    let excerpt = format!("{} the end", "é".repeat(72));
    assert_eq!(math().check_answer(&long), Err(UnusableAnswer { excerpt }));
    assert_eq!(math().check_answer("no").unwrap_err().to_string(), "the answer `no` holds no number of at most 18 digits, which reward.math compares with");
    assert_eq!(math().check_answer("#### 5"), Ok(()));
    assert_eq!(exact_match().check_answer("no"), Ok(()));
}
