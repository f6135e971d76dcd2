//! Startup of SGLang 0.5.12, in pods and in local runs (docs/decisions/0007). Pure: where it runs
//! is a parameter.

use std::path::Path;

use rljob_crds::RLJobSpec;
use rljob_crds::names::{ENGINE_GROUP_PORT, SGLANG_CONFIG_FILE};
use rljob_crds::roles::InferenceSpec;
use rljob_http::Role;

use crate::served_model::ServedModel;

/// The release that rljob is tested with.
pub const DEFAULT_IMAGE: &str = "lmsysorg/sglang:v0.5.12";

/// Tokens of a sample between two events of its stream, after the first token.
const TOKENS_PER_EVENT: u32 = 32;

/// Flags that a run sets itself; `sglang.extraArgs` of engines must not.
pub const OWN_FLAGS: [&str; 32] = [
    "--model-path",
    "--model",
    "--host",
    "--port",
    "--load-format",
    "--is-embedding",
    "--dtype",
    "--random-seed",
    "--sampling-backend",
    "--tp-size",
    "--tensor-parallel-size",
    "--nnodes",
    "--node-rank",
    "--dist-init-addr",
    "--nccl-init-addr",
    "--enable-deterministic-inference",
    "--incremental-streaming-output",
    "--stream-output",
    "--stream-interval",
    "--skip-tokenizer-init",
    "--skip-server-warmup",
    "--log-level",
    "--log-level-http",
    "--config",
    "--api-key",
    "--admin-api-key",
    "--ssl-certfile",
    "--ssl-keyfile",
    "--ssl-keyfile-password",
    "--ssl-ca-certs",
    "--enable-ssl-refresh",
    "--enable-http2",
];

/// Variable of the server's process, and its value: seconds after which it closes an idle
/// connection. Connections idle while learners train, and with the default of 5 s each sample of
/// the next step would begin with a TLS handshake.
pub const KEEP_ALIVE: (&str, &str) = ("SGLANG_TIMEOUT_KEEP_ALIVE", "3600");

/// Becomes the command `$@` with the rank of this pod in its engine of `$0` pods, and with the
/// address of the first pod. The pods of an engine have consecutive ordinals. Torch resolves the
/// name again for every attempt to connect.
const RANK_SCRIPT: &str = "index=${POD_NAME##*-}; rank=$((index % $0)); \
    first=${POD_NAME%-*}-$((index - rank)); host=$1; shift; \
    exec \"$@\" --node-rank=$rank --dist-init-addr=$first.$host";
/// Time that an engine waits for the download of a model: the coordinator fails the run earlier.
pub const DOWNLOAD_SECONDS: u64 = 7 * 24 * 3600;

/// Flags of the server except `--port`, which the caller appends. `tokens` is the folder of the
/// keys, as written by [`config_text`], and of the certificate.
pub fn arguments(
    spec: &RLJobSpec,
    engines: &InferenceSpec,
    model: ServedModel<'_>,
    host: &str,
    tokens: &Path,
) -> Vec<String> {
    let certificate = tokens.join(Role::Inference.file());
    let mut arguments = model.arguments(host);
    arguments.extend([
        // At `info` the server logs its settings, keys included.
        "--log-level=warning".to_owned(),
        "--enable-metrics".to_owned(),
        // The server's own first request is greedy. In a batch with samples of the run it can make
        // FlashInfer compile a kernel that the run does not use (docs/training.md).
        "--skip-server-warmup".to_owned(),
        // With an event for each token, SGLang sampled 6,000 tokens a second for 512 requests
        // (docs/gpu-results.md). A sample of an engine that is lost loses at most these.
        format!("--stream-interval={TOKENS_PER_EVENT}"),
        // One file has the certificate and the key.
        format!("--ssl-certfile={}", certificate.display()),
        format!("--ssl-keyfile={}", certificate.display()),
    ]);
    if !model.is_given_texts() && !reads_text(spec) {
        // Requests and answers are tokens: without its tokenizer, no process decodes their text.
        arguments.push("--skip-tokenizer-init".to_owned());
    }
    if engines.ranks() > 1 {
        arguments.push(format!("--tp-size={}", engines.ranks()));
    }
    if engines.pods_per_engine() > 1 {
        arguments.push(format!("--nnodes={}", engines.pods_per_engine()));
    }
    if spec.training.deterministic {
        // Requests have seeds, which the sampler of flashinfer rejects.
        let flags = ["--enable-deterministic-inference", "--sampling-backend=pytorch"];
        arguments.extend(flags.map(ToOwned::to_owned));
    }
    arguments.extend(engines.extra_args().iter().cloned());
    // The server finds this one only as two words.
    let config_file = tokens.join(SGLANG_CONFIG_FILE);
    arguments.extend(["--config".to_owned(), config_file.display().to_string()]);
    arguments
}

/// Whether the server needs its tokenizer: it searches the text of completions for stop strings, of
/// the run or of an agent's requests, and its minimum length names the tokenizer's end of sequence.
fn reads_text(spec: &RLJobSpec) -> bool {
    let rollout = &spec.rollout;
    spec.agent().is_some() || rollout.min_new_tokens > 0 || !rollout.stop.is_empty()
}

/// Starts `command` as one of the processes of an engine that spans pods. `service` is the DNS name
/// of the pods' Service; `POD_NAME` of the environment has the pod's ordinal.
pub fn across_pods(
    engines: &InferenceSpec,
    service: &str,
    command: impl IntoIterator<Item = String>,
) -> Vec<String> {
    let pods = Some(engines.pods_per_engine()).filter(|pods| *pods > 1);
    let rank = pods.map(|pods| {
        let host = format!("{service}:{ENGINE_GROUP_PORT}");
        ["sh".to_owned(), "-c".to_owned(), RANK_SCRIPT.to_owned(), pods.to_string(), host]
    });
    rank.into_iter().flatten().chain(command).collect()
}

/// The keys as SGLang's configuration file.
pub fn config_text(api_key: &str, admin_api_key: &str) -> String {
    // Keys are hexadecimal; a quoted text is YAML whatever they are made of.
    format!("api-key: {api_key:?}\nadmin-api-key: {admin_api_key:?}\n")
}

/// The flag of an argument such as `--flag=value`, if a run sets it itself.
pub fn own_flag(argument: &str) -> Option<&'static str> {
    let name = argument.split('=').next().unwrap_or_default().replace('_', "-");
    OWN_FLAGS.into_iter().find(|own| *own == name)
}

#[cfg(test)]
mod tests {
    use rljob_crds::algorithm::Precision;
    use rljob_crds::model::InitialWeights;
    use rljob_crds::{EnginePurpose, RunConfig};
    use serde_json::json;

    use super::*;
    use crate::desired::run_config;
    use crate::validate::test_support::validated;

    /// A run of the spec with the model in this folder.
    fn served(spec: &RLJobSpec, folder: &str) -> RunConfig {
        let model_directory = folder.into();
        RunConfig { spec: spec.clone(), model_directory, ..run_config(&validated()) }
    }

    #[test]
    fn the_flags_follow_the_spec_and_hold_no_key() {
        let mut spec = validated().spec.clone();
        let plain = [
            "--model-path=/models/tiny",
            "--host=0.0.0.0",
            "--load-format=auto",
            "--dtype=float32",
            "--random-seed=1",
            "--incremental-streaming-output",
            "--log-level=warning",
            "--enable-metrics",
            "--skip-server-warmup",
            "--stream-interval=32",
            "--ssl-certfile=/tokens/tls-inference.pem",
            "--ssl-keyfile=/tokens/tls-inference.pem",
            "--skip-tokenizer-init",
            "--config",
            "/tokens/sglang.yaml",
        ];
        let tokens = Path::new("/tokens");
        let of = |spec: &RLJobSpec, folder: &str, host: &str| {
            let config = served(spec, folder);
            let model = ServedModel::new(&config, EnginePurpose::Rollouts);
            arguments(spec, &spec.inference, model, host, tokens)
        };
        assert_eq!(of(&spec, "/models/tiny", "0.0.0.0"), plain);
        spec.model.weights = InitialWeights::Random;
        spec.training.precision = Some(Precision::BF16);
        spec.training.deterministic = true;
        spec.inference = serde_json::from_value(json!({
            "sglang": {"extraArgs": ["--mem-fraction-static=0.8"]},
            "resources": {"limits": {"nvidia.com/gpu": 4}},
        }))
        .unwrap();
        let all = of(&spec, "/m", "::");
        assert_eq!(all[2..4], ["--load-format=dummy", "--dtype=bfloat16"]);
        assert_eq!(
            all[13..17],
            [
                "--tp-size=4",
                "--enable-deterministic-inference",
                "--sampling-backend=pytorch",
                "--mem-fraction-static=0.8",
            ]
        );
    }

    #[test]
    fn the_server_has_a_tokenizer_only_for_stop_strings_and_minimum_lengths() {
        let spec = &validated().spec;
        assert!(!reads_text(spec));
        for rollout in [json!({"stop": ["\n"]}), json!({"minNewTokens": 1})] {
            let mut rollout = rollout;
            rollout["batchSize"] = json!(1);
            let rollout = serde_json::from_value(rollout).unwrap();
            assert!(reads_text(&RLJobSpec { rollout, ..spec.clone() }));
        }
    }

    #[test]
    fn pods_of_an_engine_have_consecutive_ranks_and_the_address_of_the_first() {
        let mut spec = validated().spec.clone();
        let command = |spec: &RLJobSpec| {
            across_pods(
                &spec.inference,
                "sums-inference.lab.svc",
                ["echo".to_owned(), "a b".to_owned()],
            )
        };
        assert_eq!(command(&spec), ["echo", "a b"]);
        spec.inference = serde_json::from_value(json!({
            "sglang": {}, "podsPerReplica": 3, "resources": {"limits": {"nvidia.com/gpu": 8}},
        }))
        .unwrap();
        let config = served(&spec, "/m");
        let model = ServedModel::new(&config, EnginePurpose::Rollouts);
        let flags = arguments(&spec, &spec.inference, model, "::", Path::new("/tokens"));
        assert_eq!(flags[13..15], ["--tp-size=24", "--nnodes=3"]);
        let words = command(&spec);
        let printed = |pod: &str| {
            let mut shell = std::process::Command::new(&words[0]);
            let output = shell.args(&words[1..]).env("POD_NAME", pod).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        for (pod, rank, first) in [(0, 0, 0), (2, 2, 0), (3, 0, 3), (10, 1, 9)] {
            assert_eq!(
                printed(&format!("sums-inference-{pod}")),
                format!(
                    "a b --node-rank={rank} --dist-init-addr=sums-inference-{first}\
                        .sums-inference.lab.svc:30001\n"
                )
            );
        }
    }

    #[test]
    fn flags_of_the_run_are_known_in_every_spelling() {
        for (argument, own) in [
            ("--tp-size", Some("--tp-size")),
            ("--api_key=x", Some("--api-key")),
            ("--tp-sizes=2", None),
            ("2", None),
            ("--context-length=9", None),
        ] {
            assert_eq!(own_flag(argument), own, "{argument}");
        }
    }

    #[test]
    fn the_configuration_file_is_yaml() {
        let value: serde_yaml::Value = serde_yaml::from_str(&config_text("a1", "b:2")).unwrap();
        assert_eq!(
            (value["api-key"].as_str(), value["admin-api-key"].as_str()),
            (Some("a1"), Some("b:2"))
        );
    }
}
