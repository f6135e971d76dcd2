//! Rules of rewards of a reward model, and of the engines that serve it.

use minijinja::Environment;
use rljob_crds::RLJobSpec;
use rljob_crds::jinja::without_slices;
use rljob_crds::model_reward::ModelReward;

use super::common::exactly_one;
use super::prompts::check_template;
use super::roles::check_further_engines;
use super::sources::check_run_path;
use crate::validate::Problem;

pub(super) fn check_model_rewards(spec: &RLJobSpec, problems: &mut Vec<Problem>) {
    let models = spec.rewards.iter().enumerate();
    let models = models.filter_map(|(index, reward)| Some((index, reward.model.as_ref()?)));
    let mut first = None;
    for (index, model) in models {
        let field = format!("rewards[{index}].model");
        check_text(&format!("spec.{field}.text"), &model.text, problems);
        check_source(&format!("spec.{field}"), model, problems);
        let Some(engines) = &model.engines else { continue };
        check_further_engines(&format!("{field}.engines"), engines, spec, problems);
        let earlier = *first.get_or_insert(index);
        if earlier < index {
            let message = format!(
                "is the second one, after that of spec.rewards[{earlier}]: engines of a job serve \
                 one reward model; serve this one at a url"
            );
            problems.push(Problem::new(format!("spec.{field}.engines"), message));
        }
    }
}

/// Checks what says where the model is.
fn check_source(path: &str, model: &ModelReward, problems: &mut Vec<Problem>) {
    let members = [("url", model.url.is_some()), ("engines", model.engines.is_some())];
    if model.path.is_none() || model.url.is_some() || model.engines.is_some() {
        exactly_one(path, &members, problems);
    }
    let mut problem = |own: &str, message: &str| {
        problems.push(Problem::new(format!("{path}.{own}"), message));
    };
    match (&model.path, &model.engines) {
        (None, Some(_)) => problem("path", "is missing: the folder of the model of engines"),
        (Some(_), None) if model.url.is_none() => {
            problem("engines", "is missing: the engines that serve the model in path");
        }
        (Some(_), None) => problem("path", "is the model of engines, not of a url; remove it"),
        _ => {}
    }
    if model.token_secret_ref.is_some() && model.engines.is_some() {
        let message = "is of a server at url: engines of the job have keys of the job; remove it";
        problem("tokenSecretRef", message);
    }
    if let Some(folder) = &model.path {
        check_run_path(&format!("{path}.path"), folder, problems);
    }
}

/// Checks the text of a reward model: a template that uses the completion and has no other
/// variables than the prompt.
fn check_text(path: &str, text: &str, problems: &mut Vec<Problem>) {
    check_template(path, text, problems);
    let environment = Environment::new();
    let source = without_slices(text);
    let Ok(template) = environment.template_from_str(&source) else { return };
    let variables = template.undeclared_variables(false);
    if !variables.contains("completion") {
        problems.push(Problem::new(path, "must contain {{completion}}"));
    }
    let is_unknown = |name: &&String| !["prompt", "completion"].contains(&name.as_str());
    if let Some(name) = variables.iter().filter(is_unknown).min() {
        let message = format!("has no variable `{name}`, only prompt and completion");
        problems.push(Problem::new(path, message));
    }
}
