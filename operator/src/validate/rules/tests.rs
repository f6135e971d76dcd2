//! Each rule across fields with its message.

use serde_json::{Value, json};

use super::super::Policy;
use super::super::test_support::{merge, minimal};
use super::problems;

mod algorithms;
mod curriculum;
mod devices;
mod documents;
mod evaluation;
mod gangs;
mod groups;
mod lora;
mod pairs;
mod pods;
mod rewards;
mod service_tokens;
mod teacher;
mod topology;
mod tracking;
mod workflow;

/// The problems of the minimal job with these fields of its spec.
fn problems_with(spec: &Value) -> Vec<String> {
    let mut job = serde_json::to_value(minimal()).unwrap();
    merge(&mut job["spec"], spec);
    problems(&serde_json::from_value(job).unwrap(), Policy::LOCAL)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn the_minimal_job_has_no_problem() {
    assert_eq!(problems_with(&json!({})), Vec::<String>::new());
}

#[test]
fn names_that_become_folders_are_dns_labels() {
    for (field, value) in [("namespace", "../../up"), ("name", "../up"), ("namespace", "")] {
        let mut job = minimal();
        let name = match field {
            "name" => &mut job.metadata.name,
            _ => &mut job.metadata.namespace,
        };
        *name = Some(value.to_owned());
        let problems = problems(&job, Policy::LOCAL);
        let [problem] = &problems[..] else { panic!("{field}: {value}: {problems:?}") };
        assert_eq!(problem.path, format!("metadata.{field}"));
    }
}

#[test]
fn prompt_templates_must_parse_and_name_known_filters() {
    let with = |prompt: &str| {
        let dataset =
            json!({"train": {"path": "/data/a.jsonl", "prompt": prompt, "answer": "answer"}});
        problems_with(&json!({ "dataset": dataset }))
    };
    assert_eq!(with("{{ question.strip() | upper }} {% if hint %}{{ hint }}{% endif %}").len(), 0);
    for (prompt, cause) in
        [("{{ question", "syntax error"), ("{{ question | shout }}", "filter shout is unknown")]
    {
        let problems = with(prompt);
        let [problem] = &problems[..] else { panic!("{prompt}: {problems:?}") };
        let start = "spec.dataset.train.prompt: is not a valid template: ";
        assert!(problem.starts_with(start) && problem.contains(cause), "{problem}");
    }
}

#[test]
fn system_turns_and_template_arguments_need_the_chat_template() {
    let dataset = json!({"train": {
        "path": "/data/a.jsonl", "prompt": "{{ q }}", "answer": "answer", "format": "Text",
        "system": "{{ q", "chatTemplateArguments": {"messages": []},
    }});
    let rollout = json!({"minNewTokens": 2048});
    let problems = problems_with(&json!({"dataset": dataset, "rollout": rollout}));
    let [template, system, arguments, standard, lengths] = &problems[..] else {
        panic!("{problems:?}")
    };
    assert!(template.starts_with("spec.dataset.train.system: is not a valid template"));
    let expected = [
        "spec.dataset.train.system: belongs to the chat template; format Text has none",
        "spec.dataset.train.chatTemplateArguments: belongs to the chat template; format Text has \
            none",
        "spec.dataset.train.chatTemplateArguments.messages: is set by the run; remove it",
        "spec.rollout.minNewTokens: must be at most maxNewTokens = 1024",
    ];
    assert_eq!([system, arguments, standard, lengths].map(String::as_str), expected);
}

#[test]
fn a_workflow_has_one_kind_whose_template_is_valid() {
    let workflow =
        |workflow: serde_json::Value| problems_with(&json!({"rollout": {"workflow": workflow}}));
    assert_eq!(workflow(json!({"multiTurn": {"feedback": "No: {{hint}}"}})), Vec::<String>::new());
    let expected = "spec.rollout.workflow: set exactly one of multiTurn, environment, tools and \
        agent, found none";
    assert_eq!(workflow(json!({})), [expected]);
    let both = json!({"multiTurn": {"feedback": "No"}, "agent": {"command": ["agent"]}});
    let expected = "spec.rollout.workflow: set exactly one of multiTurn, environment, tools and \
        agent, found multiTurn and agent";
    assert_eq!(workflow(both), [expected]);
    let environment = |own: serde_json::Value| workflow(json!({ "environment": own }));
    let command = json!({"command": ["maze"]});
    assert_eq!(environment(json!({ "command": command })), Vec::<String>::new());
    let both = environment(json!({"url": "http://games.lab", "command": command}));
    let path = "spec.rollout.workflow.environment";
    assert_eq!(
        both,
        [format!("{path}: set exactly one of url and command, found url and command")]
    );
    let token = environment(json!({"command": command, "tokenSecretRef": {"name": "games"}}));
    let expected = "tokenSecretRef: belongs to url: programs have no token";
    assert_eq!(token, [format!("{path}.{expected}")]);
    let problems = workflow(json!({"multiTurn": {"feedback": "{{"}}));
    let expected = "spec.rollout.workflow.multiTurn.feedback: is not a valid template: ";
    assert!(problems.len() == 1 && problems[0].starts_with(expected), "{problems:?}");
}

#[test]
fn steps_seconds_and_batches_must_be_consistent() {
    let spec = json!({
        "weightSync": {"everySteps": 3},
        "rollout": {"batchSize": 7, "maxStaleness": 1},
        "training": {"minibatches": 2},
        "optimizer": {"warmupSteps": 11, "epsilon": 0.0},
        "failurePolicy": {"backoff": {"initialSeconds": 60, "maxSeconds": 30}},
        "restoreFrom": {"path": "/rljob/runs/lab/other/checkpoints/step-11.attempt-0"},
        "inference": {"replicas": 0},
    });
    assert_eq!(
        problems_with(&spec),
        [
            "spec.inference.replicas: must be at least 1: algorithm.grpo samples from engines",
            "spec.rollout.batchSize: 7 groups cannot be split into training.minibatches = 2 equal \
                parts",
            "spec.weightSync.everySteps: must be at most rollout.maxStaleness + 1 = 2: the batch \
                of the next step could not be sampled",
            "spec.failurePolicy.backoff.initialSeconds: must not exceed maxSeconds = 30",
            "spec.optimizer.warmupSteps: must not exceed training.steps = 10: set \
                spec.optimizer.warmupSteps=10 or less",
            "spec.optimizer.epsilon: must be above 0",
            "spec.restoreFrom: step-11.attempt-0 has more steps than training.steps = 10",
        ]
    );
}

#[test]
fn batches_of_the_groups_that_finish_first_need_sampling_ahead_and_depend_on_timing() {
    let with = |staleness, is_deterministic| {
        let spec = json!({
            "rollout": {"maxStaleness": staleness, "batchOrder": "Finished"},
            "training": {"deterministic": is_deterministic},
        });
        problems_with(&spec)
    };
    assert_eq!(with(1, false), Vec::<String>::new());
    assert_eq!(
        with(0, true),
        [
            "spec.rollout.batchOrder: Finished needs maxStaleness of at least 1: without it no \
                group is sampled in place of a late one",
            "spec.rollout.batchOrder: Finished depends on timing, which training.deterministic \
                excludes: set one of them",
        ]
    );
}

#[test]
fn a_run_has_steps_or_epochs_and_rules_of_epochs_wait_for_the_data() {
    let of_epochs = json!({
        "training": {"steps": 0, "epochs": 3}, "optimizer": {"warmupSteps": 1000},
        "restoreFrom": {"path": "/rljob/runs/lab/other/checkpoints/step-11.attempt-0"},
    });
    assert_eq!(problems_with(&of_epochs), Vec::<String>::new());
    let both = "spec.training.epochs: is set beside training.steps; remove one of them";
    assert_eq!(problems_with(&json!({"training": {"epochs": 3}})), [both]);
    let neither = problems_with(&json!({"training": {"steps": 0}}));
    assert_eq!(neither, ["spec.training.steps: is missing; set it, or epochs"]);
}

#[test]
fn values_that_the_api_server_rejects_in_children_are_problems() {
    let privileged = json!({"privileged": true});
    let template = json!({"spec": {"containers": [
        {"name": "trainer", "securityContext": privileged},
        {"name": "sidecar", "image": "a:1", "securityContext": privileged},
    ]}});
    let spec = json!({
        "model": {"path": "/rljob/runs/lab/../../other/export"},
        "storage": {"persistentVolumeClaim": {"claimName": "Runs"}},
        "volumes": [
            {"name": "data", "mountPath": "/data", "persistentVolumeClaim": {"claimName": "a/b"}},
        ],
        "trainer": {
            "resources": {
                "requests": {"cpu": "1500m", "memory": "1Gi"},
                "limits": {"cpu": "1", "memory": "1.1G"},
            },
            "template": template,
        },
        "inference": {"sglang": {}, "resources": {"requests": {"nvidia.com/gpu": "1"}}},
    });
    let claim = "must be the name of a PersistentVolumeClaim, found";
    assert_eq!(
        problems_with(&spec),
        [
            "spec.model.path: must not contain `..` below /rljob/runs".to_owned(),
            format!("spec.volumes[0].persistentVolumeClaim.claimName: {claim} \"a/b\""),
            format!("spec.storage.persistentVolumeClaim.claimName: {claim} \"Runs\""),
            "spec.inference.resources.requests.nvidia.com/gpu: needs the same limit".to_owned(),
            "spec.trainer.resources.requests.cpu: must be at most the limit of 1".to_owned(),
            "spec.trainer.template.spec.containers[0].securityContext.privileged: needs \
                allowPrivilegeEscalation: true"
                .to_owned(),
        ]
    );
}

#[test]
fn verifier_pods_need_programs_and_ordered_bounds_and_keep_their_containers_apart() {
    let template = json!({"spec": {
        "shareProcessNamespace": true,
        "containers": [
            {"name": "rewards", "image": "judge:1", "command": ["x"]},
            {"name": "bridge", "image": "bridge:1"},
        ],
    }});
    let verifiers = json!({"minReplicas": 3, "maxReplicas": 2, "template": template});
    let path = "spec.verifiers";
    let sets = "the operator sets this field; remove it";
    assert_eq!(
        problems_with(&json!({ "verifiers": verifiers })),
        [
            format!("{path}.minReplicas: must be at most maxReplicas (2), found 3"),
            format!(
                "{path}: needs a reward, tool or agent that runs a program: code, python or \
                 command of a reward, command of a tool, or the workflow agent"
            ),
            format!("{path}.template.spec.containers[0].command: {sets}"),
            format!(
                "{path}.template.spec.containers[0].image: {sets} and use spec.verifiers.image"
            ),
            format!(
                "{path}.template.spec.containers[1].name: `bridge` is the name of a container of \
                 the operator"
            ),
            format!(
                "{path}.template.spec.shareProcessNamespace: must not be true: it gives the \
                 commands of rewards access to tokens"
            ),
        ]
    );
}
