//! Tests of reading job files.

use super::super::test_support::MINIMAL;
use super::*;

fn problems(text: &str) -> Vec<String> {
    parse_jobs(text).unwrap_err().problems.iter().map(ToString::to_string).collect()
}

/// Without the lists of known fields, which grow with the API.
fn problems_without_hints(text: &str) -> Vec<String> {
    problems(text)
        .iter()
        .map(|problem| problem.split("; expected one of").next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn a_minimal_job_gets_its_defaults() {
    let jobs = parse_jobs(MINIMAL).unwrap();
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].spec.rollout.batch_size, 32);
    assert_eq!(jobs[0].spec.managed_by, "rljob.dev/operator");
}

#[test]
fn every_problem_of_every_document_is_reported_with_path_and_line() {
    let text = "\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: a}
spec:
  model: {path: /m, weigths: Random}
  storage: {hostPath: {path: /runs}}
  dataset: {train: {path: /d, prompt: p}}
  algorithm: {grpo: {groupSize: 0}}
  rollout:
    batchSize: many
    temprature: 1
  training: {minibatches: 3}
---
apiVersion: v1
kind: ConfigMap
data: {a: b}
---
apiVersion: rljob.dev/v1
kind: RLJob
metadata: {name: b}
spec: 3
";
    assert_eq!(
        problems_without_hints(text),
        [
            "line 5: spec.model.weigths: unknown field",
            "line 5: spec.rewards: is missing; algorithm.grpo needs rewards",
            "line 7: spec.dataset.train.answer: is missing; algorithm.grpo compares with it",
            "line 8: spec.algorithm.grpo.groupSize: must be at least 1, found 0",
            "line 10: spec.rollout.batchSize: expected integer, found \"many\"",
            "line 11: spec.rollout.temprature: unknown field",
            "line 12: spec.training.steps: is missing; set it, or epochs",
            "line 18: apiVersion: expected rljob.dev/v1alpha1, found \"rljob.dev/v1\"",
            "line 21: spec: expected object, found 3",
        ]
    );
}

#[test]
fn rules_across_fields_are_checked_beside_unknown_fields() {
    let text = MINIMAL.replace("rewards: [", "judges: [");
    assert_eq!(
        problems_without_hints(&text),
        [
            "line 6: spec.rewards: is missing; algorithm.grpo needs rewards",
            "line 10: spec.judges: unknown field",
        ]
    );
}

#[test]
fn a_wrong_value_neither_hides_nor_causes_other_problems() {
    let text = "\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {}
spec:
  model: {path: /m, rljob: {name: other}}
  storage: []
  volumes:
  - {name: data, mountPath: data}
  - {name: data, mountPath: /tmp/x, hostPath: {path: /x}}
  dataset: 1
  algorithm: grpo
  optimizer: {warmupSteps: 10}
  training: {minibatches: 5, steps: many}
  inference: {replicas: 0, resources: {limits: {cpu: lots}}}
---
- no object
";
    assert_eq!(
        problems(text),
        [
            "line 3: metadata.name: is missing",
            "line 5: spec.model: set exactly one of path, huggingFace and rljob, found path \
                and rljob",
            "line 6: spec.storage: expected object, found a list",
            "line 8: spec.volumes[0].mountPath: must match ^/, found \"data\"",
            "line 8: spec.volumes[0]: set exactly one of configMap, csi, downwardAPI, \
                emptyDir, ephemeral, fc, hostPath, image, iscsi, nfs, \
                persistentVolumeClaim, projected and secret, found none",
            "line 9: spec.volumes[1].name: `data` is the name of an earlier volume",
            "line 9: spec.volumes[1].mountPath: `/tmp/x` covers a folder that rljob uses: \
                /rljob/runs, /rljob/config, /rljob/tokens, /rljob/s3, /rljob/hub, \
                /rljob/secrets, /rljob/rewards, /tmp, /dev/shm",
            "line 10: spec.dataset: expected object, found 1",
            "line 11: spec.algorithm: expected object, found \"grpo\"",
            "line 13: spec.training.steps: expected integer, found \"many\"",
            "line 14: spec.inference.resources.limits.cpu: must be a quantity such as 500m, 2 \
                or 4Gi, found \"lots\"",
            "line 16: expected an object of apiVersion rljob.dev/v1alpha1 and kind RLJob, \
                found a list",
        ]
    );
}

#[test]
fn a_dataset_without_a_prompt_and_an_empty_list_are_one_problem_each() {
    let text = "\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: a}
spec:
  model: {path: /m}
  storage: {hostPath: {path: /runs}}
  dataset: {train: {path: /t, completion: a}}
  algorithm: {sft: {}}
  training: {steps: 1}
  rewards: [{name: c, command: {command: []}}]
  inference: {replicas: 0}
";
    assert_eq!(
        problems(text),
        [
            "line 7: spec.dataset.train: set exactly one of prompt and conversation, found none",
            "line 10: spec.rewards[0].command.command: must have at least 1 items, found 0",
        ]
    );
}

#[test]
fn an_evaluation_measures_accuracy_or_the_loss_of_sft() {
    let grpo = |fields: &str| {
        MINIMAL.replace(
            "answer: answer}}",
            &format!("answer: answer}}, evaluation: {{path: /e, prompt: p{fields}}}}}"),
        )
    };
    let neither = "line 9: spec.dataset.evaluation: set answer, which the reward compares \
        with, completion, whose loss sft measures, or chosen and rejected, whose loss dpo, \
        orpo and rewardModel measure";
    assert_eq!(problems(&grpo("")), [neither]);
    let unused =
        "line 9: spec.dataset.evaluation.completion: is not used by algorithm.grpo; remove it";
    assert_eq!(problems(&grpo(", answer: a, completion: c")), [unused]);
    assert!(parse_jobs(&grpo(", answer: a")).is_ok());
    let sft = |fields: &str| {
        let text = grpo(fields)
            .replace("answer: answer}", "completion: c}")
            .replace("grpo: {}", "sft: {}");
        text.replace("  rewards: [{name: correct, math: {}}]\n", "")
            .replace("{replicas: 2}", "{replicas: 0}")
    };
    assert!(parse_jobs(&sft(", completion: c")).is_ok(), "sft needs neither rewards nor engines");
    let missing = "line 6: spec.rewards: is missing; rewards score completions by \
        dataset.evaluation.answer";
    let engines = "line 12: spec.inference.replicas: must be at least 1: \
        dataset.evaluation.answer samples from engines";
    assert_eq!(problems(&sft(", answer: a, completion: c")), [missing, engines]);
}

#[test]
fn hugging_face_sources_are_accepted_with_valid_names_only() {
    let model = |fields: &str| {
        MINIMAL.replace("{path: /models/tiny}", &format!("{{huggingFace: {{{fields}}}}}"))
    };
    for fields in [
        "repo: gpt2",
        "repo: Qwen/Qwen2.5-1.5B-Instruct, revision: 989aa79",
        "repo: lab/tiny, revision: refs/pr/1, tokenSecretRef: {name: hf}",
        "repo: lab/tiny, tokenSecretRef: {name: hf, key: read}",
    ] {
        assert!(parse_jobs(&model(fields)).is_ok(), "{fields}");
    }
    let path = "line 6: spec.model.huggingFace";
    for (fields, problem) in [
        ("revision: main", ".repo: is missing"),
        ("repo: a b", ".repo: must match"),
        ("repo: a/b/c", ".repo: must match"),
        ("repo: ../b", ".repo: must match"),
        ("repo: a/b, revision: ''", ".revision: must"),
        ("repo: a/b, token: hf_x", ".token: unknown field"),
        ("repo: a/b, tokenSecretRef: {key: read}", ".tokenSecretRef.name: is missing"),
        ("repo: a/b, tokenSecretRef: {name: ../other}", ".tokenSecretRef.name: must match"),
        ("repo: a/b, tokenSecretRef: {name: hf, key: ..}", ".tokenSecretRef.key: must match"),
    ] {
        let found = problems(&model(fields));
        let expected = format!("{path}{problem}");
        assert!(found.iter().any(|line| line.starts_with(&expected)), "{fields}: {found:?}");
    }
}

#[test]
fn an_unknown_field_names_the_known_ones() {
    let text = MINIMAL.replace("{path: /models/tiny}", "{path: /models/tiny, weigths: Random}");
    assert_eq!(
        problems(&text),
        ["line 6: spec.model.weigths: unknown field; expected one of huggingFace, path, \
                rljob, weights"]
    );
}

#[test]
fn numbers_that_json_cannot_express_are_rejected_with_their_path() {
    for number in [".nan", ".inf", "-.inf"] {
        let text = MINIMAL.replace("steps: 10", &format!("steps: {number}"));
        let error = parse_jobs(&text).unwrap_err().to_string();
        assert_eq!(error, "spec.training.steps: must be a finite number");
    }
}

#[test]
fn tabs_and_numbers_that_are_too_large_are_named() {
    let tab = "a tab indents this line; YAML allows spaces only";
    let indented = MINIMAL.replace("  training: {steps: 10}", "\ttraining: {steps: 10}");
    assert_eq!(problems(&indented), [format!("line 12: {tab}")]);
    let mixed = MINIMAL.replace("  training: {steps: 10}", "  training:\n  \tsteps: 10");
    assert_eq!(problems(&mixed), [format!("line 13: {tab}")]);
    for number in ["99999999999999999999", "-99999999999999999999", "1e300"] {
        let found = problems(&MINIMAL.replace("steps: 10", &format!("steps: {number}")));
        let [problem] = &found[..] else { panic!("{found:?}") };
        assert!(problem.starts_with("line 12: spec.training.steps: "), "{problem}");
        assert!(problem.contains("is too large"), "{problem}");
    }
}

#[test]
fn syntax_errors_have_a_line_and_duplicate_keys_are_rejected() {
    assert_eq!(
        problems("a: [1,\nb: 2"),
        ["line 3: did not find expected ',' or ']' at line 3 column 1, while parsing a flow \
                sequence at line 1 column 4"]
    );
    let twice = MINIMAL
        .replace("  training: {steps: 10}", "  training: {steps: 10}\n  training: {steps: 11}");
    assert_eq!(
        problems(&twice),
        ["line 6: spec: duplicate entry with key \"training\" at line 6 column 3"]
    );
}

#[test]
fn a_file_without_an_rljob_is_rejected() {
    assert_eq!(
        problems("---\n"),
        ["the file contains no object of apiVersion rljob.dev/v1alpha1 and kind RLJob"]
    );
}

#[test]
fn a_list_json_and_anchors_are_read() {
    let item = MINIMAL.trim().replace('\n', "\n  ");
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {item}\n");
    assert_eq!(parse_jobs(&list).unwrap(), parse_jobs(MINIMAL).unwrap());
    let wrong = list.replace("{steps: 10}", "{steps: 0}");
    assert_eq!(
        problems(&wrong),
        ["line 14: items[0].spec.training.steps: must be at least 1, found 0"]
    );
    let yaml: Value = serde_yaml::from_str(MINIMAL).unwrap();
    let json = serde_json::to_string_pretty(&yaml).unwrap();
    assert_eq!(parse_jobs(&json).unwrap(), parse_jobs(MINIMAL).unwrap());
    let anchors = MINIMAL
        .replace("inference: {replicas: 2}", "inference: &pods {replicas: 2}")
        .replace("trainer: {processesPerReplica: 2}", "trainer: {<<: *pods}");
    assert_eq!(parse_jobs(&anchors).unwrap()[0].spec.trainer.replicas, 2);
}

#[test]
fn a_conversation_takes_the_place_of_a_prompt() {
    let sft = |train: &str, evaluation: &str| {
        let prompted =
            "prompt: '{{question}}', answer: answer}}\n  rewards: [{name: correct, math: {}}]";
        MINIMAL
            .replace(prompted, &format!("{train}}}{evaluation}}}"))
            .replace("grpo: {}", "sft: {}")
            .replace("{replicas: 2}", "{replicas: 0}")
    };
    let evaluation = ", evaluation: {path: /e, conversation: {}}";
    let jobs = parse_jobs(&sft("conversation: {tools: tools}", evaluation)).unwrap();
    let train = &jobs[0].spec.dataset.train;
    assert_eq!(train.conversation.as_ref().unwrap().messages, "messages");
    assert!(jobs[0].spec.dataset.evaluation.as_ref().unwrap().measures_loss());
    let both = "line 9: spec.dataset.train: set exactly one of prompt and conversation, found \
        prompt and conversation";
    assert_eq!(problems(&sft("prompt: p, conversation: {}", "")), [both]);
    let whole = "line 9: spec.dataset.train.completion: belongs to prompt: conversation has the \
        messages of all roles";
    assert_eq!(problems(&sft("completion: c, conversation: {}", "")), [whole]);
    let tools = "line 9: spec.dataset.train.tools: belongs to prompt: set conversation.tools";
    assert_eq!(problems(&sft("tools: t, conversation: {}", "")), [tools]);
    let text = "line 9: spec.dataset.train.conversation: belongs to the chat template; format Text \
        has none";
    assert_eq!(problems(&sft("format: Text, conversation: {}", "")), [text]);
}
