//! Names of algorithms that are settings of another one, for messages.

/// Names in lower case without punctuation, what they are, and the preset.
const RELATIVES: [(&str, &str, &str); 14] = [
    ("dapo", "grpo with clipHigh: 0.28 and rollout.dynamicSampling", "dapo"),
    (
        "drgrpo",
        "grpo with rewardNormalization: {scale: None} and lossAggregation: Constant",
        "dr-grpo",
    ),
    ("rloo", "grpo with rewardNormalization: {scale: None, leaveOneOut: true}", "rloo"),
    ("reinforce", "grpo with groupSize: 1", "reinforce-plus-plus"),
    ("reinforceplusplus", "grpo with groupSize: 1", "reinforce-plus-plus"),
    ("gspo", "grpo with ratioLevel: Sequence", "gspo"),
    ("gspotoken", "grpo with ratioLevel: SequenceToken", "gspo-token"),
    ("cispo", "grpo with surrogate: CISPO", "cispo"),
    ("sapo", "grpo with surrogate: SAPO", "sapo"),
    ("gpg", "grpo with surrogate: GPG", "gpg"),
    ("icepop", "grpo with behaviorWeight: {lower: 0.5, upper: 5}", "icepop"),
    ("kpop", "grpo with behaviorWeight: {metric: BinaryKL, upper: 2}", "kpop"),
    ("m2po", "grpo with secondMomentLimit: 0.04", "m2po"),
    ("ipo", "dpo with loss: Ipo", "ipo"),
];

/// What an unknown member of `spec.algorithm` is called here, if it is known.
pub(super) fn hint(path: &str, name: &str) -> Option<String> {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    let plain: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
    let found = RELATIVES.iter().find(|(own, ..)| path == "spec.algorithm" && *own == plain);
    found.map(|(_, what, preset)| format!("; {name} is {what} (rljob init {preset})"))
}

#[cfg(test)]
mod tests {
    use crate::validate::parse_jobs;
    use crate::validate::test_support::MINIMAL;

    #[test]
    fn an_algorithm_that_is_a_setting_of_another_one_is_named() {
        let of = |name: &str| {
            let text = MINIMAL.replace("grpo:", &format!("{name}:"));
            assert_ne!(text, MINIMAL);
            parse_jobs(&text).unwrap_err().to_string()
        };
        let gspo = "; gspo is grpo with ratioLevel: Sequence (rljob init gspo)";
        assert!(of("gspo").contains(gspo), "{}", of("gspo"));
        assert!(of("ipo").contains("; ipo is dpo with loss: Ipo (rljob init ipo)"));
        assert!(of("Dr_GRPO").contains("; Dr_GRPO is grpo with rewardNormalization"));
        assert!(!of("grop").contains(" is "));
    }
}
