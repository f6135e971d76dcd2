//! Text → RLJobs: several YAML documents, a `List`, or JSON. Every problem has its path and line.

use std::collections::HashSet;
use std::io::Read;

use kube::ResourceExt;
use rljob_crds::{RLJob, names};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{InvalidSpec, Policy, Problem, locate::line_of, rules, schema};

/// The API version that this program reads.
const API_VERSION: &str = "rljob.dev/v1alpha1";

/// Maximum size of a job file in bytes; the API server accepts objects of 1.5 MiB.
const MAX_FILE: u64 = 16 << 20;

/// Reads the text of a job file.
///
/// # Errors
/// It cannot be read, or is too large.
pub fn job_text(file: impl Read) -> std::io::Result<String> {
    let mut text = String::new();
    file.take(MAX_FILE.saturating_add(1)).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        let message = format!("the file is too large: more than {MAX_FILE} bytes");
        return Err(std::io::Error::other(message));
    }
    Ok(text)
}

/// Reads every RLJob of a file, in order. Objects of other API groups are skipped.
///
/// # Errors
/// [`InvalidSpec`] with every problem of every document: syntax, unknown fields, types, ranges and
/// what [`super::validate`] checks; or that the file contains no RLJob.
pub fn parse_jobs(text: &str) -> Result<Vec<RLJob>, InvalidSpec> {
    let mut jobs = Vec::new();
    let mut problems = Vec::new();
    for (index, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        match read_value(document, text) {
            // The rest of the file cannot be read after a syntax error.
            Err(problem) => {
                problems.push(problem);
                break;
            }
            Ok(value) => {
                let found = read_objects(value, &mut jobs);
                problems.extend(found.into_iter().map(|problem| Problem {
                    line: line_of(text, index, &problem.path),
                    ..problem
                }));
            }
        }
    }
    if problems.is_empty() && jobs.is_empty() {
        problems.push(Problem::new(
            "",
            format!("the file contains no object of apiVersion {API_VERSION} and kind RLJob"),
        ));
    }
    problems.extend(repeated(&jobs));
    problems.sort_by_key(|problem| problem.line);
    if problems.is_empty() { Ok(jobs) } else { Err(InvalidSpec { problems }) }
}

/// Jobs that have the namespace and name of an earlier one.
fn repeated(jobs: &[RLJob]) -> impl Iterator<Item = Problem> {
    let name = |job: &RLJob| {
        let namespace = job.namespace().unwrap_or_else(|| "default".to_owned());
        format!("{namespace}/{}", job.name_any())
    };
    let mut names = HashSet::new();
    let repeated = jobs.iter().map(name).filter(move |name| !names.insert(name.clone()));
    repeated.map(|name| {
        let message = format!("`{name}` is the name of an earlier job of the file");
        Problem::new("metadata.name", message)
    })
}

/// Reads a document: an RLJob, a list of objects, an object of another API group, or nothing.
fn read_objects(value: Value, jobs: &mut Vec<RLJob>) -> Vec<Problem> {
    if value.is_null() {
        return Vec::new();
    }
    let Some(items) = list_items(&value) else {
        if is_foreign(&value) {
            return Vec::new();
        }
        return read_job(value).map_or_else(
            |problems| problems,
            |job| {
                jobs.push(job);
                Vec::new()
            },
        );
    };
    let mut problems = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let found = read_objects(item.clone(), jobs).into_iter().map(|problem| {
            let dot = if problem.path.is_empty() { "" } else { "." };
            Problem { path: format!("items[{index}]{dot}{}", problem.path), ..problem }
        });
        problems.extend(found);
    }
    problems
}

/// The items of a `List` or an `RLJobList`.
fn list_items(value: &Value) -> Option<&Vec<Value>> {
    let kind = value.get("kind")?.as_str()?;
    value.get("items").filter(|_| kind == "List" || kind == "RLJobList")?.as_array()
}

fn read_value(document: serde_yaml::Deserializer<'_>, text: &str) -> Result<Value, Problem> {
    let problem = |error: serde_yaml::Error| {
        let (line, message) = (error.location().map(|at| at.line()), error.to_string());
        if let Some((path, number)) = beyond_64_bits(&message) {
            return Problem { line, ..Problem::new(path, format!("{number} is too large")) };
        }
        match line.and_then(|line| tab_near(text, line)) {
            Some(line) => Problem {
                line: Some(line),
                ..Problem::new("", "a tab indents this line; YAML allows spaces only")
            },
            None => Problem { line, ..Problem::new("", message) },
        }
    };
    // serde_yaml rejects duplicate keys; serde_json would drop them.
    let mut value = serde_yaml::Value::deserialize(document).map_err(problem)?;
    value.apply_merge().map_err(problem)?;
    if let Some(path) = non_finite(&value, "") {
        return Err(Problem::new(path, "must be a finite number"));
    }
    serde_json::to_value(value)
        .map_err(|error| Problem::new("", format!("the document is not JSON: {error}")))
}

/// Path and digits of a number that the parser rejects because it has more than 64 bits.
fn beyond_64_bits(message: &str) -> Option<(&str, &str)> {
    let (path, rest) = message.split_once("invalid type: integer `")?;
    let (number, rest) = rest.split_once('`')?;
    let is_wide = rest.starts_with(" as u128") || rest.starts_with(" as i128");
    is_wide.then(|| (path.trim_end_matches(": "), number))
}

/// The line or the one before it if a tab indents it; the parser may fail at the end of a line.
fn tab_near(text: &str, line: usize) -> Option<usize> {
    let is_tab = |line: &usize| {
        let text = line.checked_sub(1).and_then(|index| text.lines().nth(index));
        text.is_some_and(|text| text.trim_start_matches(' ').starts_with('\t'))
    };
    [line, line.saturating_sub(1)].into_iter().find(is_tab)
}

/// Path of the first number that JSON cannot express: not a number, or infinite.
fn non_finite(value: &serde_yaml::Value, path: &str) -> Option<String> {
    match value {
        serde_yaml::Value::Number(number) => {
            let is_finite = number.as_f64().is_none_or(f64::is_finite);
            (!is_finite).then(|| path.to_owned())
        }
        serde_yaml::Value::Sequence(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(index, item)| non_finite(item, &format!("{path}[{index}]")))
        }
        serde_yaml::Value::Mapping(fields) => fields.iter().find_map(|(key, value)| {
            let dot = if path.is_empty() { "" } else { "." };
            non_finite(value, &format!("{path}{dot}{}", key.as_str().unwrap_or("?")))
        }),
        _ => None,
    }
}

fn is_foreign(value: &Value) -> bool {
    let group = value
        .get("apiVersion")
        .and_then(Value::as_str)
        .map(|version| version.split_once('/').map_or("", |(group, _)| group));
    group.is_some_and(|group| group != names::GROUP) && value.get("kind").is_some()
}

fn read_job(mut value: Value) -> Result<RLJob, Vec<Problem>> {
    let Value::Object(object) = &mut value else {
        return Err(vec![Problem::new(
            "",
            format!(
                "expected an object of apiVersion {API_VERSION} and kind RLJob, found {}",
                schema::describe(&value)
            ),
        )]);
    };
    let mut problems = Vec::new();
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", "RLJob")] {
        match object.get(field) {
            Some(found) if found == expected => {}
            Some(found) => problems.push(Problem::new(
                field,
                format!("expected {expected}, found {}", schema::describe(found)),
            )),
            None => problems.push(Problem::new(field, format!("is missing; expected {expected}"))),
        }
    }
    problems.extend(schema::check_and_repair(object));
    object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let mut found = match serde_path_to_error::deserialize::<_, RLJob>(&value) {
        Ok(job) => match rules::problems(&job, Policy::LOCAL) {
            found if found.is_empty() && problems.is_empty() => return Ok(job),
            found => found,
        },
        Err(error) => vec![Problem::new(error.path().to_string(), error.inner().to_string())],
    };
    // Rules also see replaced values; their problems are dropped.
    found.retain(|problem| !problems.iter().any(|known| contains(&known.path, &problem.path)));
    problems.extend(found);
    Err(problems)
}

/// Whether `other` is the path or lies below it.
fn contains(path: &str, other: &str) -> bool {
    other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
mod tests {
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
                "line 12: spec.training.steps: is missing",
                "line 18: apiVersion: expected rljob.dev/v1alpha1, found \"rljob.dev/v1\"",
                "line 21: spec: expected object, found 3",
            ]
        );
    }

    #[test]
    fn rules_across_fields_are_checked_beside_unknown_fields() {
        let text = MINIMAL.replace("rewards: [", "rewrads: [");
        assert_eq!(
            problems_without_hints(&text),
            [
                "line 6: spec.rewards: is missing; algorithm.grpo needs rewards",
                "line 10: spec.rewrads: unknown field",
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
                    /rljob/rewards, /tmp, /dev/shm",
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
    fn an_evaluation_measures_accuracy_or_the_loss_of_sft() {
        let grpo = |fields: &str| {
            MINIMAL.replace(
                "answer: answer}}",
                &format!("answer: answer}}, evaluation: {{path: /e, prompt: p{fields}}}}}"),
            )
        };
        let neither = "line 9: spec.dataset.evaluation: set answer, which the reward compares \
            with, completion, whose loss sft measures, or chosen and rejected, whose loss dpo \
            and rewardModel measure";
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
        assert!(
            parse_jobs(&sft(", completion: c")).is_ok(),
            "sft needs neither rewards nor engines"
        );
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
}
