//! Each rule across fields with its message.

use serde_json::{Value, json};

use super::super::Policy;
use super::super::test_support::{merge, minimal};
use super::problems;

mod curriculum;
mod devices;
mod documents;
mod evaluation;
mod gangs;
mod groups;
mod lora;
mod pairs;
mod rewards;
mod service_tokens;
mod teacher;
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
fn a_group_of_one_sample_is_normalized_over_the_batch_or_not_at_all() {
    let with = |grpo: Value| problems_with(&json!({"algorithm": {"grpo": grpo}}));
    let group = |field: &str| {
        format!(
            "spec.algorithm.grpo.{field}: Group needs groupSize of at least 2: a group of one \
                sample is normalized by nothing but itself"
        )
    };
    let of_rewards = ["rewardNormalization.mean", "rewardNormalization.scaleLevel"].map(group);
    assert_eq!(with(json!({"groupSize": 1})), of_rewards);
    let none = json!({"mean": "None", "scale": "None"});
    assert_eq!(with(json!({"groupSize": 1, "rewardNormalization": none})), Vec::<String>::new());
    let divided = json!({"mean": "Batch", "scale": "Std"});
    assert_eq!(with(json!({"groupSize": 1, "rewardNormalization": divided})), of_rewards[1..]);
    let of_advantages =
        ["advantageNormalization.mean", "advantageNormalization.scaleLevel"].map(group);
    assert_eq!(
        with(json!({
            "groupSize": 1, "rewardNormalization": none, "advantageNormalization": {},
        })),
        of_advantages
    );
    let batch = json!({"mean": "Batch", "scale": "Std", "scaleLevel": "Batch"});
    let spec = json!({
        "algorithm": {"grpo": {"groupSize": 1, "rewardNormalization": batch}},
        "rollout": {"dynamicSampling": {}},
    });
    let dynamic = "spec.rollout.dynamicSampling: needs algorithm.grpo.groupSize of at least 2: the \
        rewards of one sample are equal";
    assert_eq!(problems_with(&spec), [dynamic]);
}

#[test]
fn ppo_trains_the_policy_after_the_warm_up_of_its_critic() {
    let steps = json!({"criticWarmupSteps": 5});
    let with = |ppo: Value, steps: u32| {
        problems_with(
            &json!({"algorithm": {"grpo": null, "ppo": ppo}, "training": {"steps": steps}}),
        )
    };
    assert_eq!(with(steps.clone(), 6), Vec::<String>::new());
    let warmup = "spec.algorithm.ppo.criticWarmupSteps: must be below training.steps = 5: the \
        policy would not be trained";
    assert_eq!(with(steps, 5), [warmup]);
    let adaptive =
        |coefficient: f64| json!({"klCoefficient": coefficient, "adaptiveKl": {"target": 0.1}});
    assert_eq!(with(adaptive(0.1), 5), Vec::<String>::new());
    let begins = "spec.algorithm.ppo.adaptiveKl: needs a klCoefficient above 0, with which it \
        begins";
    assert_eq!(with(adaptive(0.0), 5), [begins]);
    let head = json!({"valueHead": {}, "criticOptimizer": {"learningRate": 0.1}});
    let not_used = "spec.algorithm.ppo.criticOptimizer: is not used with valueHead, which has the \
        settings of spec.optimizer and valueHead.learningRate; remove it";
    assert_eq!(with(head, 5), [not_used]);
    assert_eq!(with(json!({"valueHead": {"learningRate": 0.1}}), 5), Vec::<String>::new());
    let others = json!({
        "rewardNormalization": {}, "overlongPenalty": {"tokens": 4096},
        "criticOptimizer": {"warmupSteps": 6, "epsilon": 0.0},
    });
    assert_eq!(
        with(others, 5),
        [
            "spec.algorithm.ppo.overlongPenalty.tokens: must not exceed rollout.maxNewTokens = \
                1024",
            "spec.algorithm.ppo.rewardNormalization.mean: Group needs groupSize of at least 2: a \
                group of one sample is normalized by nothing but itself",
            "spec.algorithm.ppo.rewardNormalization.scaleLevel: Group needs groupSize of at least \
                2: a group of one sample is normalized by nothing but itself",
            "spec.algorithm.ppo.criticOptimizer.warmupSteps: must not exceed training.steps = 5: \
                lower it to 5 or less",
            "spec.algorithm.ppo.criticOptimizer.epsilon: must be above 0",
        ]
    );
}

#[test]
fn a_limit_of_the_second_moment_needs_recomputed_log_probabilities() {
    let grpo = json!({"secondMomentLimit": 0.04, "proximalLogprobs": "Sampler"});
    let problem = "spec.algorithm.grpo.secondMomentLimit: needs proximalLogprobs Recompute: with \
        the log-probabilities of the sampler, every moment is 0";
    assert_eq!(problems_with(&json!({"algorithm": {"grpo": grpo}})), [problem]);
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
fn a_behavior_weight_needs_recomputed_log_probabilities_and_bounds_in_order() {
    let weight = json!({"upper": 2.0, "lower": 3.0, "action": "Clamp", "metric": "K1"});
    let spec = json!({
        "algorithm": {
            "grpo": {
                "proximalLogprobs": "Sampler", "behaviorWeight": weight,
                "overlongPenalty": {"tokens": 2000, "factor": 1.0},
            },
        },
    });
    assert_eq!(
        problems_with(&spec),
        [
            "spec.algorithm.grpo.overlongPenalty.tokens: must not exceed rollout.maxNewTokens = \
                1024",
            "spec.algorithm.grpo.behaviorWeight: needs proximalLogprobs Recompute: with the \
                log-probabilities of the sampler, every weight is 1",
            "spec.algorithm.grpo.behaviorWeight.lower: must not exceed upper = 2",
            "spec.algorithm.grpo.behaviorWeight.metric: must be Ratio: action Clamp bounds the \
                weight itself",
        ]
    );
}

#[test]
fn host_paths_are_rejected_unless_the_operator_allows_them() {
    let mut job = serde_json::to_value(minimal()).unwrap();
    let host_path = json!({"path": "/srv"});
    merge(
        &mut job["spec"],
        &json!({
            "storage": {"persistentVolumeClaim": null, "hostPath": host_path},
            "volumes": [{"name": "data", "mountPath": "/data", "hostPath": host_path}],
            "trainer": {"template": {"spec": {"volumes": [{"name": "x", "hostPath": host_path}]}}},
        }),
    );
    let job = serde_json::from_value(job).unwrap();
    let paths = |policy| -> Vec<String> {
        problems(&job, policy).into_iter().map(|problem| problem.path).collect()
    };
    assert_eq!(paths(Policy::LOCAL), Vec::<String>::new());
    assert_eq!(
        paths(Policy::of_operator(false)),
        [
            "spec.volumes[0].hostPath",
            "spec.storage.hostPath",
            "spec.trainer.template.spec.volumes[0].hostPath",
        ]
    );
}

#[test]
fn pods_that_download_the_model_separately_need_a_commit() {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let rejected = |storage: Value, revision: &str, policy| -> Vec<String> {
        let mut job = serde_json::to_value(minimal()).unwrap();
        let hub = json!({"repo": "lab/tiny", "revision": revision});
        let spec = json!({
            "storage": storage,
            "model": {"path": null, "huggingFace": hub},
            "weightSync": {"method": "Distributed"},
        });
        merge(&mut job["spec"], &spec);
        let job = serde_json::from_value(job).unwrap();
        problems(&job, policy).into_iter().map(|problem| problem.to_string()).collect()
    };
    let bucket = json!({"persistentVolumeClaim": null, "s3": {"bucket": "runs"}});
    let operator = Policy::of_operator(false);
    assert_eq!(
        rejected(bucket.clone(), "main", operator),
        ["spec.model.huggingFace.revision: must be a commit of 40 hexadecimal digits with \
                storage.s3: each pod downloads the model separately"]
    );
    assert_eq!(rejected(bucket.clone(), commit, operator), Vec::<String>::new());
    assert_eq!(rejected(bucket, "main", Policy::LOCAL), Vec::<String>::new());
    assert_eq!(rejected(json!({}), "main", operator), Vec::<String>::new());
}

#[test]
fn a_template_cannot_override_fields_of_the_operator() {
    let container = json!({
        "name": "engine",
        "command": ["sh"],
        "image": "x",
        "resources": {},
        "env": [{"name": "POD_IP", "value": "::"}],
        "volumeMounts": [{"name": "x", "mountPath": "/rljob/runs"}],
    });
    let template = json!({
        "metadata": {"labels": {"rljob.dev/role": "x", "team": "a"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                container,
                {"name": "proxy", "image": "proxy:1", "command": ["p"]},
                {"name": "engin", "env": []},
            ],
            "initContainers": [{"name": "fetch", "image": ""}],
            "volumes": [{"name": "rljob-tmp", "emptyDir": {}}, {"name": "models", "emptyDir": {}}],
        },
    });
    let sets = "the operator sets this field; remove it";
    let image = "is missing; the operator sets that of `engine` only";
    let path = "spec.inference.template.spec";
    assert_eq!(
        problems_with(&json!({"inference": {"template": template}})),
        [
            format!("spec.inference.template.metadata.labels.rljob.dev/role: {sets}"),
            format!("{path}.restartPolicy: {sets}"),
            format!("{path}.containers[0].volumeMounts[0].mountPath: {sets}"),
            format!("{path}.containers[0].command: {sets}"),
            format!("{path}.containers[0].resources: {sets} and use spec.inference.resources"),
            format!("{path}.containers[0].image: {sets} and use spec.inference.image"),
            format!("{path}.containers[0].env[0]: {sets}"),
            format!("{path}.containers[2].image: {image}"),
            format!("{path}.initContainers[0].image: {image}"),
            format!("{path}.volumes[0].name: names that start with `rljob-` are reserved"),
            format!("{path}.volumes[1].name: `models` is the name of a volume of spec.volumes"),
        ]
    );
    let wrong = json!({"inference": {"template": {"spec": {"nodeSelector": {"a": 1}}}}});
    assert_eq!(
        problems_with(&wrong),
        [format!("{path}.nodeSelector.a: invalid type: integer `1`, expected a string")]
    );
}

#[test]
fn commands_of_rewards_cannot_be_let_out_of_their_container() {
    let template = json!({"spec": {
        "shareProcessNamespace": true, "hostPID": false, "automountServiceAccountToken": true,
        "containers": [{
            "name": "rewards", "args": ["x"], "image": "judge:1",
            "volumeMounts": [{"name": "rljob-tokens", "mountPath": "/mnt"}],
        }],
    }});
    let rewards = json!([{"name": "judge", "command": {"command": ["judge"]}}]);
    let path = "spec.coordinator.template.spec";
    let why = "must not be true: it gives the commands of rewards access to tokens";
    assert_eq!(
        problems_with(&json!({"rewards": rewards, "coordinator": {"template": template}})),
        [
            format!(
                "{path}.containers[0].volumeMounts[0].name: \
                 names that start with `rljob-` are reserved"
            ),
            format!("{path}.containers[0].args: the operator sets this field; remove it"),
            format!("{path}.shareProcessNamespace: {why}"),
            format!("{path}.automountServiceAccountToken: {why}"),
        ]
    );
}

#[test]
fn engines_of_a_run_in_a_bucket_cannot_read_its_files() {
    let s3 = json!({"persistentVolumeClaim": null, "s3": {"bucket": "runs"}});
    let in_bucket = |more: Value| {
        let mut spec = json!({
            "storage": s3, "weightSync": {"method": "Distributed"},
            "restoreFrom": {"s3": {"uri": "s3://other/lab/a/checkpoints/step-2.attempt-0"}},
        });
        merge(&mut spec, &more);
        problems_with(&spec)
    };
    assert_eq!(in_bucket(json!({})), Vec::<String>::new());
    assert_eq!(
        in_bucket(json!({"weightSync": {"method": "Disk"}, "model": {
            "path": null, "rljob": {"name": "warmup"},
        }, "volumes": [
            {"name": "keys", "mountPath": "/rljob/s3", "configMap": {"name": "x"}}
        ]})),
        [
            "spec.volumes[0].mountPath: `/rljob/s3` covers a folder that rljob uses: /rljob/runs, \
                /rljob/config, /rljob/tokens, /rljob/s3, /rljob/hub, /rljob/secrets, \
                /rljob/rewards, /tmp, /dev/shm",
            "spec.model.rljob: needs a volume: engines cannot read a model from storage.s3; copy \
                the export to a volume and set model.path",
            "spec.weightSync.method: must be Distributed: engines cannot read weights from \
                storage.s3; or store the run on a volume",
        ]
    );
    assert_eq!(
        in_bucket(json!({"storage": {"s3": null, "hostPath": {"path": "/srv"}}})),
        ["spec.restoreFrom.s3: needs storage.s3, which configures the access"]
    );
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
            "spec.optimizer.warmupSteps: must not exceed training.steps = 10: lower it to 10 or \
                less",
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
