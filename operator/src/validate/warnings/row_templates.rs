//! Templates of data that give every row the same text.

use minijinja::{Environment, UndefinedBehavior};
use rljob_crds::RLJobSpec;

use crate::validate::Problem;

/// Instructions that a template may execute during validation.
const TEMPLATE_FUEL: u64 = 100_000;

/// Templates without a field of the row. A prompt may leave it to `system`.
pub(super) fn check_row_templates(spec: &RLJobSpec, warnings: &mut Vec<Problem>) {
    for part in spec.dataset.train.parts() {
        let data = &part.data;
        let pair = [data.chosen.as_deref(), data.rejected.as_deref()];
        let prompt = [Some(data.prompt.as_str()), data.system.as_deref()];
        check(&part.field, prompt, data.completion.as_deref(), pair, warnings);
    }
    for suite in spec.dataset.suites() {
        let data = &suite.data;
        let pair = [data.chosen.as_deref(), data.rejected.as_deref()];
        let prompt = [Some(data.prompt.as_str()), data.system.as_deref()];
        check(&suite.field, prompt, data.completion.as_deref(), pair, warnings);
    }
}

fn check(
    path: &str,
    [prompt, system]: [Option<&str>; 2],
    completion: Option<&str>,
    [chosen, rejected]: [Option<&str>; 2],
    warnings: &mut Vec<Problem>,
) {
    let prompt = prompt.filter(|_| system.is_none_or(is_constant));
    for (field, template) in
        [("prompt", prompt), ("completion", completion), ("chosen", chosen), ("rejected", rejected)]
    {
        let constant = |text: &&str| !text.is_empty() && is_constant(text);
        let Some(template) = template.filter(constant) else { continue };
        let example = match braced_name(template) {
            Some(name) => format!("Write {{{{{name}}}}} with two braces"),
            None => "For example {{question}}".to_owned(),
        };
        let message = format!("uses no field of the row: every row gets the same text. {example}");
        warnings.push(Problem::new(format!("{path}.{field}"), message));
    }
}

/// Whether a template uses no variable. Invalid templates are problems of the rules.
fn is_constant(template: &str) -> bool {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(TEMPLATE_FUEL));
    let parsed = environment.template_from_str(template);
    // The names lack those of slices, as in `{{question[:3]}}`, which fail to render.
    parsed.is_ok_and(|parsed| {
        parsed.undeclared_variables(false).is_empty() && parsed.render(()).is_ok()
    })
}

/// The first name in single braces, as in `{question}`.
fn braced_name(template: &str) -> Option<&str> {
    let is_name = |name: &&str| {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        !name.is_empty() && name.chars().all(is_letter)
    };
    let ends = template.split('{').skip(1);
    ends.filter_map(|rest| Some(rest.split_once('}')?.0)).find(is_name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::check_row_templates;
    use crate::validate::test_support::with_spec;

    fn found(spec: &Value) -> Vec<String> {
        let mut warnings = Vec::new();
        check_row_templates(&with_spec(spec).spec, &mut warnings);
        warnings.iter().map(ToString::to_string).collect()
    }

    fn warning(field: &str, example: &str) -> String {
        format!("{field}: uses no field of the row: every row gets the same text. {example}")
    }

    #[test]
    fn templates_without_a_field_of_the_row_are_named() {
        let prompt = |train: Value| found(&json!({"dataset": {"train": train}}));
        let field = "spec.dataset.train.prompt";
        let single = prompt(json!({"prompt": "Q: {question} \\boxed{}"}));
        assert_eq!(single, [warning(field, "Write {{question}} with two braces")]);
        let example = warning(field, "For example {{question}}");
        assert_eq!(prompt(json!({"prompt": "Solve it: {}"})), std::slice::from_ref(&example));
        assert_eq!(prompt(json!({"prompt": "Solve it.", "system": "Be brief."})), [example]);
        let test = "{% if hint is defined %}a{% else %}b{% endif %}";
        for valid in ["{{question}}", "{{question[:3]}}", test] {
            assert_eq!(prompt(json!({"prompt": valid})), Vec::<String>::new(), "{valid}");
        }
        let system = json!({"prompt": "Sum it up.", "system": "{{text}}"});
        assert_eq!(prompt(system), Vec::<String>::new());
    }

    #[test]
    fn completions_and_pairs_without_a_field_of_the_row_are_named() {
        let completion = json!({
            "algorithm": {"grpo": null, "sft": {}}, "rewards": [], "inference": {"replicas": 0},
            "dataset": {"train": {"completion": "{answer}", "answer": null}},
        });
        let braces = "Write {{answer}} with two braces";
        assert_eq!(found(&completion), [warning("spec.dataset.train.completion", braces)]);
        let pair = json!({
            "algorithm": {"grpo": null, "dpo": {}}, "rewards": [], "inference": {"replicas": 0},
            "dataset": {"train": {"chosen": "yes", "rejected": "{{wrong}}", "answer": null}},
        });
        let example = "For example {{question}}";
        assert_eq!(found(&pair), [warning("spec.dataset.train.chosen", example)]);
    }
}
