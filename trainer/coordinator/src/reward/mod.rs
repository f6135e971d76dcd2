//! How a completion is scored. A verifier is pure: the same completion and answer always get the same reward.
//!
//! It must not know tokens, groups or steps, and no floating-point number is compared: `math` is exact.

mod extract;
mod rational;

use std::collections::BTreeMap;

use rljob_crds::algorithm::RewardSpec;

/// A score.
#[derive(Clone, Debug, PartialEq)]
pub struct Reward {
    /// From 0 to 1.
    pub value: f64,
    /// What it is made of, by name.
    pub components: BTreeMap<String, f64>,
}

/// Scores completions as the spec says.
#[derive(Clone, Debug)]
pub struct Verifier {
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Math,
    ExactMatch,
}

/// A reference answer that no completion could match.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the answer `{excerpt}` holds no number of at most {} digits, which reward.math compares with", rational::MAX_DIGITS)]
pub struct UnusableAnswer {
    /// Its end, in at most 80 characters.
    pub excerpt: String,
}

impl Verifier {
    /// A verifier for the spec, of which exactly one field is set.
    pub fn new(spec: &RewardSpec) -> Self {
        Self { kind: if spec.math.is_some() { Kind::Math } else { Kind::ExactMatch } }
    }

    /// Scores a completion against its reference answer. An answer that [`Self::check_answer`] refuses scores 0.
    pub fn score(&self, completion: &str, answer: &str) -> Reward {
        let (name, correct) = match self.kind {
            Kind::Math => ("math", extract::final_number(completion).is_some_and(|number| extract::final_number(answer) == Some(number))),
            Kind::ExactMatch => ("exactMatch", completion.trim() == answer.trim()),
        };
        let value = f64::from(u8::from(correct));
        Reward { value, components: BTreeMap::from([(name.to_owned(), value)]) }
    }

    /// Checks that some completion could match the answer.
    pub fn check_answer(&self, answer: &str) -> Result<(), UnusableAnswer> {
        let usable = match self.kind {
            Kind::Math => extract::final_number(answer).is_some(),
            Kind::ExactMatch => true,
        };
        if usable { Ok(()) } else { Err(UnusableAnswer { excerpt: end_of(answer, 80) }) }
    }
}

fn end_of(text: &str, characters: usize) -> String {
    let start = text.char_indices().rev().nth(characters.saturating_sub(1)).map_or(0, |(start, _)| start);
    text[start..].to_owned()
}

#[cfg(test)]
mod tests;
