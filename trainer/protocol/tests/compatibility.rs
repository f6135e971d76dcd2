//! Bodies of release 0.1, recorded in `fixtures/v0.1`: this release reads them, and what it writes
//! for a peer of version 1 has only fields that release 0.1 accepts.
//!
//! Release 0.1 rejects unknown fields. `ACCEPTED` is a frozen copy of its field lists; a path ends
//! in `[]` for items of a list and in `{}` for values of a map.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rljob_protocol::batch::{BatchHeader, SegmentRow};
use rljob_protocol::checkpoint::Manifest;
use rljob_protocol::desired::Desired;
use rljob_protocol::learner::{
    CheckpointReport, Instruction, StepReport, ValidationReport, WeightsReady,
};
use rljob_protocol::metrics::{EvaluationMetrics, StepMetrics};
use rljob_protocol::peer::ProtocolUnsupported;
use rljob_protocol::run_config;
use rljob_protocol::status::CoordinatorStatus;
use rljob_protocol::supervisor::{Order, SupervisorReport};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Field names of release 0.1 by path; `!` marks a field that its readers require.
const ACCEPTED: &[(&str, &str)] = &[
    (
        "step-metrics",
        "step! attempt! reward loss! kl entropy! clipFraction clipFractionUpper clipFractionLower \
         clipFractionDual referenceKl behaviorWeight behaviorBounded mismatchMean mismatchMax \
         gradientNorm! learningRate! skipped! tokens! trainableTokens! completionTokens staleness \
         droppedGroups staleSamples rolloutSeconds trainSeconds! syncSeconds tokensPerSecond!",
    ),
    (
        "evaluation-metrics",
        "step! prompts! samples sampled greedy passAt majorityAt loss lossTokens seconds!",
    ),
    ("step-report", "attempt! metrics!"),
    ("validation-report", "attempt! loss! tokens! sequences! seconds!"),
    ("checkpoint-report", "attempt! version! path!"),
    ("weights-ready", "disk distributed"),
    ("weights-ready.disk", "attempt! version! path!"),
    ("weights-ready.distributed", "attempt! version! rank! storeAddress! storePort! tensors!"),
    ("weights-ready.distributed.tensors[]", "name! dtype! shape!"),
    ("instruction", "train validate publishToDisk publishByBroadcast checkpoint export"),
    ("instruction.train", "step!"),
    ("instruction.validate", "step!"),
    ("instruction.publishToDisk", "version! path!"),
    ("instruction.publishByBroadcast", "version! transfers!"),
    ("instruction.publishByBroadcast.transfers[]", "engine! sender! group! worldSize!"),
    ("instruction.checkpoint", "version! path!"),
    ("instruction.export", "version! path!"),
    (
        "supervisor-report",
        "instance! startedAt! address! rendezvousPort! processes! attempt learners! terminating",
    ),
    ("supervisor-report.learners[]", "running exited"),
    ("supervisor-report.learners[].running", "beatSeconds progressSeconds!"),
    ("supervisor-report.learners[].exited", "code! logTail!"),
    ("order", "run"),
    ("order.run", "attempt! firstRank! worldSize! rendezvousAddress! rendezvousPort! restore"),
    ("order.run.restore", "version! path!"),
    ("desired", "epoch! generation! mode! engines! checkpoint! restart!"),
    ("desired.engines[]", "name! url!"),
    ("desired.checkpoint", "everySteps! keepLast! exportEverySteps"),
    (
        "desired.restart",
        "maxRestarts! backoffInitialSeconds! backoffMaxSeconds! hangTimeoutSeconds! rules",
    ),
    ("desired.restart.rules[]", "action! onExitCodes onReasons roles"),
    ("desired.restart.rules[].onExitCodes", "operator! values!"),
    (
        "status",
        "epoch generation phase! attempt! restarts! lastFailure step! totalSteps! metrics \
         evaluation supervisors! engines! checkpoint",
    ),
    ("status.lastFailure", "reason! message! supervisor exitCode"),
    ("status.supervisors[]", "name! alive! learners!"),
    ("status.engines[]", "name! state! version silentSeconds"),
    ("manifest", "format! version! worldSize! model! optimizer! files!"),
    ("manifest.model", "sha256! blockNumels!"),
    ("manifest.optimizer", "updates! skippedInARow!"),
    ("manifest.files[]", "name! size! sha256!"),
    ("batch-header", "step! rank! worldSize! microBatchMinibatch! sequences! samples!"),
    ("batch-header.sequences[]", "sample! microBatch! tokens!"),
    ("batch-header.samples[]", "group! reward! trainableTokens! rank! minibatch! truncated!"),
];

/// Objects with any keys: numbers by number.
const MAPS: [&str; 3] = ["staleness", "passAt", "majorityAt"];

fn recorded(name: &str) -> Vec<Value> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v0.1");
    let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Fails unless a strict reader of release 0.1 accepts the fields of `value`.
fn assert_accepted(path: &str, value: &Value) {
    match value {
        Value::Object(fields) => {
            // Metrics are nested in two messages.
            let path = match path {
                "step-report.metrics" | "status.metrics" => "step-metrics",
                "status.evaluation" => "evaluation-metrics",
                path => path,
            };
            let accepted: BTreeMap<&str, &str> = ACCEPTED.iter().copied().collect();
            let names = accepted.get(path).unwrap_or_else(|| panic!("{path} is not in the list"));
            let names: Vec<&str> = names.split_whitespace().collect();
            let known: BTreeSet<&str> =
                names.iter().map(|name| name.trim_end_matches('!')).collect();
            for (name, field) in fields {
                assert!(known.contains(name.as_str()), "release 0.1 rejects {path}.{name}");
                if !MAPS.contains(&name.as_str()) {
                    assert_accepted(&format!("{path}.{name}"), field);
                }
            }
            for name in names.iter().filter_map(|name| name.strip_suffix('!')) {
                let present = fields.get(name).is_some_and(|field| !field.is_null());
                assert!(present, "release 0.1 requires {path}.{name}");
            }
        }
        Value::Array(items) => {
            for item in items {
                assert_accepted(&format!("{path}[]"), item);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Equality with numbers by value, and null equal to an absent field.
fn normalized(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, field)| !field.is_null())
            .map(|(name, field)| (name.clone(), normalized(field)))
            .collect(),
        Value::Array(items) => items.iter().map(normalized).collect(),
        Value::Number(number) => number.as_f64().map_or(value.clone(), Value::from),
        value => value.clone(),
    }
}

/// Reads the recorded bodies, also with fields of a later release, and writes them for version 1.
fn check<T: DeserializeOwned + Serialize>(name: &str, for_version_1: impl Fn(T) -> T) {
    let bodies = recorded(name);
    assert!(!bodies.is_empty());
    for body in bodies {
        assert_accepted(name, &body);
        let read: T = serde_json::from_value(body.clone()).unwrap();
        let written = serde_json::to_value(for_version_1(read)).unwrap();
        assert_accepted(name, &written);
        assert_eq!(normalized(&written), normalized(&body), "{name}");
        let later = with_later_fields(&body, name);
        let read: T = serde_json::from_value(later).unwrap();
        let written = serde_json::to_value(for_version_1(read)).unwrap();
        assert_eq!(
            normalized(&written),
            normalized(&body),
            "{name} with fields of a later release"
        );
    }
}

/// Adds a field to every object that is a message and not a union.
fn with_later_fields(value: &Value, path: &str) -> Value {
    let unions = ["weights-ready", "instruction", "order", "supervisor-report.learners[]"];
    match value {
        Value::Object(fields) => {
            let mut all: serde_json::Map<_, _> = fields
                .iter()
                .map(|(name, field)| {
                    let inner = format!("{path}.{name}");
                    let is_map = MAPS.contains(&name.as_str()) || inner == "desired.restart.rules";
                    let changed =
                        if is_map { field.clone() } else { with_later_fields(field, &inner) };
                    (name.clone(), changed)
                })
                .collect();
            if !unions.contains(&path) {
                all.insert("later".to_owned(), json!({"field": [1]}));
            }
            Value::Object(all)
        }
        Value::Array(items) => {
            items.iter().map(|item| with_later_fields(item, &format!("{path}[]"))).collect()
        }
        value => value.clone(),
    }
}

#[test]
fn messages_of_release_0_1_are_read_and_written() {
    check("step-metrics", |metrics: StepMetrics| metrics.for_peer(1));
    check("evaluation-metrics", |metrics: EvaluationMetrics| metrics.for_peer(1));
    check("step-report", |report: StepReport| report.for_peer(1));
    check("validation-report", |report: ValidationReport| report);
    check("checkpoint-report", |report: CheckpointReport| report);
    check("weights-ready", |ready: WeightsReady| ready);
    check("instruction", |instruction: Instruction| instruction);
    check("supervisor-report", |report: SupervisorReport| report);
    check("order", |order: Order| order);
    check("desired", |desired: Desired| desired);
    check("status", |status: CoordinatorStatus| status.for_peer(1));
    check("manifest", |manifest: Manifest| manifest);
    check("batch-header", |header: BatchHeader| header.for_peer(1));
}

#[test]
fn metrics_of_this_release_reach_a_peer_of_version_1_without_new_names() {
    let metrics = StepMetrics::with_scalars(1, [("loss", 0.5), ("reward/format", 1.0)]);
    let evaluation = EvaluationMetrics {
        sampled_standard_error: Some(0.1),
        greedy_standard_error: Some(0.1),
        pass_at_standard_error: BTreeMap::from([(1, 0.1)]),
        majority_at_standard_error: BTreeMap::from([(1, 0.1)]),
        rejected: Some(1),
        newer_tokens: Some(0.5),
        scalars: [("reward/format", 1.0)].into_iter().collect(),
        ..EvaluationMetrics::default()
    };
    let mut status: CoordinatorStatus =
        serde_json::from_value(recorded("status")[1].clone()).unwrap();
    status.metrics = Some(metrics.clone());
    status.evaluation = Some(evaluation);
    let too_old = ProtocolUnsupported::check("supervisor a", 1, 2, "the run configuration");
    status.unsupported = too_old.err();
    let written = serde_json::to_value(status.for_peer(1)).unwrap();
    assert_accepted("status", &written);
    assert_eq!(written["lastFailure"]["reason"], "ProtocolUnsupported");
    assert_accepted("step-metrics", &serde_json::to_value(metrics.for_peer(1)).unwrap());
}

#[test]
fn batches_of_this_release_reach_a_peer_of_version_1_without_segments() {
    let mut header: BatchHeader =
        serde_json::from_value(recorded("batch-header")[0].clone()).unwrap();
    header.sequences[0].segments = vec![SegmentRow { turn: 0, tokens: 3, version: Some(1) }];
    header.samples[0].turn_rewards = vec![0.5];
    let written = serde_json::to_value(header.for_peer(1)).unwrap();
    assert_accepted("batch-header", &written);
    assert_eq!(normalized(&written), normalized(&recorded("batch-header")[0]));
}

#[test]
fn run_configurations_of_release_0_1_are_converted() {
    let configs: Vec<_> = recorded("run-config")
        .iter()
        .map(|config| run_config::parse(&config.to_string()).unwrap())
        .collect();
    assert!(configs.iter().all(|(config, ignored)| config.protocol == 1 && ignored.is_empty()));
    let spec = |index: usize| serde_json::to_value(&configs[index].0.spec).unwrap();
    let [grpo, command, sft] = [spec(0), spec(1), spec(2)];
    assert_eq!(grpo["rewards"][0]["name"], "reward");
    assert!(grpo["rewards"][0]["math"].is_object());
    assert!(grpo["inference"]["embedded"].is_object());
    assert_eq!(grpo["training"]["precision"], "FP32");
    assert_eq!(command["model"]["rljob"], json!({"name": "warmup"}));
    assert_eq!(command["rewards"][0]["command"]["command"], json!(["python3", "score.py"]));
    assert_eq!(command["restoreFrom"]["rljob"]["name"], "earlier");
    assert_eq!(command["inference"]["sglang"]["extraArgs"], json!(["--mem-fraction-static=0.5"]));
    assert_eq!(configs[1].0.spec.inference.gpus(), 2);
    assert_eq!(configs[1].0.spec.trainer.world_size(), 4);
    assert_eq!(command["volumes"][0]["persistentVolumeClaim"]["claimName"], "data");
    assert_eq!(sft["restoreFrom"]["s3"]["uri"], "s3://runs/lab/other/checkpoints/step-7.attempt-1");
    assert_eq!(configs[2].0.run_store().to_str(), Some("s3://runs/lab/sums"));
}

#[test]
fn a_run_configuration_of_a_later_release_is_read_if_it_needs_no_later_protocol() {
    let mut config =
        serde_json::to_value(run_config::parse(&recorded("run-config")[0].to_string()).unwrap().0)
            .unwrap();
    config["protocol"] = json!(3);
    config["later"] = json!(1);
    config["spec"]["training"]["later"] = json!(1);
    let (_, ignored) = run_config::parse(&config.to_string()).unwrap();
    assert_eq!(ignored, ["spec.training.later"]);
    config["protocol"] = json!(4);
    let error = run_config::parse(&config.to_string()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ProtocolUnsupported: this process speaks protocol version 3, and the run configuration \
         needs version 4; run it from an image of the newer release"
    );
    let malformed = run_config::parse(r#"{"protocol": 2, "spec": {}}"#).unwrap_err();
    assert!(malformed.to_string().contains("is not one of protocol version 2"), "{malformed}");
}
