//! Tests of fields that are kept for feedback, and of rows without them.

use super::{File, tokenizer};
use crate::data::{Dataset, Feedback, KeptFields};

#[test]
fn kept_fields_are_those_that_are_named() {
    let file =
        File::new("{\"q\":\"x\",\"a\":\"1\",\"hint\":7,\"other\":1}\n{\"q\":\"y\",\"a\":\"1\"}\n");
    let spec = file.train("{{q}}");
    let kept = KeptFields::Named(["hint".to_owned()].into());
    let open = |kept| Dataset::open_train(&spec, &tokenizer(), 1, kept).unwrap();
    let dataset = open(&kept);
    let mut fields: Vec<_> = (0..2)
        .map(|position| dataset.prompt(position).unwrap())
        .map(|prompt| (prompt.text, serde_json::to_string(&*prompt.fields.unwrap()).unwrap()))
        .collect();
    fields.sort();
    let expected = [("x", "{\"hint\":7}"), ("y", "{}")];
    assert_eq!(fields, expected.map(|(text, json)| (text.to_owned(), json.to_owned())));
    let without = open(&KeptFields::None);
    assert_eq!(without.prompt(0).unwrap().fields, None);
    assert_ne!(dataset.fingerprint(), without.fingerprint());
}

#[test]
fn rows_without_a_field_of_the_feedback_are_named_when_the_data_is_opened() {
    let file = File::new("{\"q\":\"x\",\"a\":\"1\",\"hint\":7}\n{\"q\":\"y\",\"a\":\"1\"}\n");
    let feedback = Feedback::new("{{hint}} {{turn.components.right}}").unwrap();
    let kept = feedback.fields().unwrap();
    let data = Dataset::open_train(&file.train("{{q}}"), &tokenizer(), 1, &kept).unwrap();
    let error = |template: &str, component: &str| {
        let error = Feedback::new(template).unwrap().check(&data, &[component]).unwrap_err();
        error.to_string().replace(&file.path(), "FILE")
    };
    let uses = "rollout.workflow.multiTurn.feedback uses";
    let expected = format!(
        "{uses} `hint`, which FILE line 2 does not have: the first row has a, hint, q, and `turn` \
         has answer, completion, components, number, reward"
    );
    assert_eq!(error("{{hint}} {{turn.components.right}}", "right"), expected);
    let feedback = Feedback::new("{{turn.components.right}}").unwrap();
    feedback.check(&data, &["right"]).unwrap();
    let expected = format!(
        "{uses} `turn.components.right`, which FILE line 1 does not have: `components` has other"
    );
    assert_eq!(error("{{turn.components.right}}", "other"), expected);
}
