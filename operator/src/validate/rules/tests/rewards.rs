//! Rules of rewards.

use serde_json::{Value, json};

use super::{merge, problems_with};

#[test]
fn the_text_of_a_reward_model_is_a_template_over_prompt_and_completion() {
    let with = |text: &str| {
        let model = json!({"url": "http://localhost:30000", "text": text});
        problems_with(&json!({"rewards": [{"name": "scored", "model": model}]}))
    };
    let at = |message: &str| vec![format!("spec.rewards[0].model.text: {message}")];
    assert_eq!(with("{{prompt | trim}}{{completion}}</s>"), Vec::<String>::new());
    assert_eq!(with("{{completion[-500:]}}"), Vec::<String>::new());
    assert_eq!(with("{{prompt}}"), at("must contain {{completion}}"));
    let unknown = "has no variable `answer`, only prompt and completion";
    assert_eq!(with("{{completion}} {{answer}}"), at(unknown));
    let [problem] = &with("{{completion")[..] else { panic!("one problem") };
    assert!(problem.contains("is not a valid template"), "{problem}");
}

/// Problems of a job with a reward of a model that engines serve, changed by `change`.
fn served_with(change: &Value) -> Vec<String> {
    let mut model = json!({"path": "/judge", "engines": {}, "text": "{{completion}}"});
    merge(&mut model, change);
    problems_with(&json!({"rewards": [{"name": "scored", "model": model}]}))
}

#[test]
fn a_reward_model_is_at_a_url_or_on_engines_with_its_folder() {
    assert_eq!(served_with(&json!({})), Vec::<String>::new());
    let found = |change: Value| {
        let problems = served_with(&change);
        let own =
            |problem: &String| problem.strip_prefix("spec.rewards[0].model").unwrap().to_owned();
        problems.iter().map(own).collect::<Vec<_>>()
    };
    for (change, expected) in [
        (json!({"url": "http://s"}), ": set exactly one of url and engines, found url and engines"),
        (json!({"path": null}), ".path: is missing: the folder of the model of engines"),
        (
            json!({"tokenSecretRef": {"name": "a"}}),
            ".tokenSecretRef: is of a server at url: engines of the job have keys of the job; \
             remove it",
        ),
        (json!({"engines": {"replicas": 0}}), ".engines.replicas: must be at least 1"),
        (
            json!({"engines": {"minReplicas": 1}}),
            ".engines.minReplicas: has no effect: a queue admits all of them; remove it",
        ),
        (
            json!({"engines": {"sglang": {"extraArgs": ["--is-embedding"]}}}),
            ".engines.sglang.extraArgs[0]: the run sets --is-embedding; remove it",
        ),
    ] {
        assert_eq!(found(change), [expected]);
    }
    let url = found(json!({"url": "http://s", "engines": null}));
    assert_eq!(url, [".path: is the model of engines, not of a url; remove it"]);
    let alone = found(json!({"engines": null}));
    assert_eq!(alone, [".engines: is missing: the engines that serve the model in path"]);
}

#[test]
fn engines_of_a_job_serve_one_reward_model() {
    let reward = |name: &str| {
        let model = json!({"path": "/judge", "engines": {}, "text": "{{completion}}"});
        json!({"name": name, "model": model})
    };
    let problems = problems_with(&json!({"rewards": [reward("a"), reward("b")]}));
    let expected = "spec.rewards[1].model.engines: is the second one, after that of \
        spec.rewards[0]: engines of a job serve one reward model; serve this one at a url";
    assert_eq!(problems, [expected]);
}

#[test]
fn fields_of_rows_are_for_rewards_that_receive_them() {
    let with = |rewards: &Value| {
        let train = json!({"rewardFields": ["level"]});
        problems_with(&json!({"dataset": {"train": train}, "rewards": rewards}))
    };
    let exact = json!({"name": "exact", "exactMatch": {}});
    let message = "spec.dataset.train.rewardFields: has no use: only http, command and python \
                   rewards receive fields of rows";
    assert_eq!(with(&json!([exact])), [message]);
    let http = json!({"name": "judge", "http": {"url": "http://judge.lab"}});
    assert_eq!(with(&json!([exact, http])), [""; 0]);
}
