//! Rules of rewards.

use serde_json::json;

use super::problems_with;

#[test]
fn the_text_of_a_reward_model_is_a_template_over_prompt_and_completion() {
    let with = |text: &str| {
        let model = json!({"url": "http://localhost:30000", "text": text});
        problems_with(&json!({"rewards": [{"name": "scored", "model": model}]}))
    };
    let at = |message: &str| vec![format!("spec.rewards[0].model.text: {message}")];
    assert_eq!(with("{{prompt | trim}}{{completion}}</s>"), Vec::<String>::new());
    assert_eq!(with("{{prompt}}"), at("must contain {{completion}}"));
    let unknown = "has no variable `answer`, only prompt and completion";
    assert_eq!(with("{{completion}} {{answer}}"), at(unknown));
    let [problem] = &with("{{completion")[..] else { panic!("one problem") };
    assert!(problem.contains("is not a valid template"), "{problem}");
}
