//! Unknown fields that stand for missing ones: one problem instead of two.

use super::Problem;

/// Letters that a misspelled name has in common with the right one, at least.
const SHARED: usize = 3;
/// Letters of each name between the common start and the common end, at most.
const DIFFERENT: usize = 2;

/// Names the missing field in the problem of an unknown field beside it that has nearly the same
/// name, and removes the problem of a union whose only member is unknown.
pub(super) fn merge(problems: &mut Vec<Problem>) {
    let found: Vec<(String, String)> = problems.iter().filter_map(unknown).collect();
    for (parent, name) in found {
        problems.retain(|other| !(other.path == parent && is_empty_union(&other.message)));
        let meant = problems.iter().find_map(|other| missing(other, &parent, &name));
        let Some(meant) = meant.map(str::to_owned) else { continue };
        let [right, wrong] = [&meant, &name].map(|own| format!("{parent}.{own}"));
        problems.retain(|other| other.path != right);
        for problem in problems.iter_mut().filter(|problem| problem.path == wrong) {
            problem.message = format!("unknown field; write `{meant}`");
        }
    }
}

/// The object with an unknown field, and the name of the field.
fn unknown(problem: &Problem) -> Option<(String, String)> {
    let (parent, name) = problem.path.rsplit_once('.')?;
    let is_unknown = problem.message.starts_with("unknown field; ");
    is_unknown.then(|| (parent.to_owned(), name.to_owned()))
}

/// The name of a missing field of this object that is nearly `name`.
fn missing<'a>(problem: &'a Problem, parent: &str, name: &str) -> Option<&'a str> {
    let (own, meant) = problem.path.rsplit_once('.')?;
    let is_missing = own == parent && problem.message.starts_with("is missing");
    (is_missing && is_near(name, meant)).then_some(meant)
}

fn is_empty_union(message: &str) -> bool {
    message.starts_with("set exactly one of ") && message.ends_with(", found none")
}

fn is_near(one: &str, other: &str) -> bool {
    let letters = |name: &str| -> Vec<char> {
        let letters = name.chars().filter(char::is_ascii_alphanumeric);
        letters.map(|letter| letter.to_ascii_lowercase()).collect()
    };
    let (one, other) = (letters(one), letters(other));
    let start = one.iter().zip(&other).take_while(|(own, right)| own == right).count();
    let rest = |name: &[char]| name.len().saturating_sub(start);
    let limit = rest(&one).min(rest(&other));
    let ends = one.iter().rev().zip(other.iter().rev()).take(limit);
    let end = ends.take_while(|(own, right)| own == right).count();
    let is_short = |name: &[char]| rest(name).saturating_sub(end) <= DIFFERENT;
    start.saturating_add(end) >= SHARED && is_short(&one) && is_short(&other)
}

#[cfg(test)]
mod tests {
    use super::is_near;
    use crate::validate::parse_jobs;
    use crate::validate::test_support::MINIMAL;

    #[test]
    fn names_with_a_wrong_a_missing_or_a_swapped_letter_are_near() {
        for (wrong, right) in [
            ("rewrads", "rewards"),
            ("temprature", "temperature"),
            ("stepz", "steps"),
            ("max_new_tokens", "maxNewTokens"),
            ("reward", "rewards"),
        ] {
            assert!(is_near(wrong, right), "{wrong}");
        }
        for (own, other) in [("url", "uri"), ("answers", "prompt"), ("path", "patterns")] {
            assert!(!is_near(own, other), "{own}");
        }
    }

    #[test]
    fn an_unknown_field_in_place_of_a_missing_one_is_one_problem() {
        let of = |from: &str, to: &str| {
            let text = MINIMAL.replace(from, to);
            assert_ne!(text, MINIMAL);
            parse_jobs(&text).unwrap_err().to_string()
        };
        let rewards = "line 10: spec.rewrads: unknown field; write `rewards`";
        assert_eq!(of("rewards: [", "rewrads: ["), rewards);
        let steps = "line 12: spec.training.stepz: unknown field; write `steps`";
        assert_eq!(of("steps: 10", "stepz: 10"), steps);
        let several = of("rewards: [", "judges: [");
        assert!(several.contains("spec.rewards: is missing"), "{several}");
        let union = of("storage: {persistentVolumeClaim: {", "storage: {claim: {");
        let start = "line 8: spec.storage.claim: unknown field; expected one of ";
        assert!(union.starts_with(start) && !union.contains("found none"), "{union}");
    }
}
