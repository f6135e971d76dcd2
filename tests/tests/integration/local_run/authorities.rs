//! Servers whose certificates an organization's authority has signed: `SSL_CERT_FILE` names it, and
//! a run that does not trust it fails at once.

use std::process::Command;

use axum::routing::post;
use axum::{Json, Router};
use rljob_tests::S3;
use rljob_tests::files::binary;
use rljob_tests::https::Https;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{LocalRun, folder_with};

const JOB: &str = include_str!("authorities.yaml");
const UNTRUSTED: &str = "the authority of the server's certificate is not trusted: name a file \
    with the authority's certificate in SSL_CERT_FILE";

/// Scores completions by the parity of their length.
fn judge() -> Router {
    let score = async |Json(question): Json<Value>| {
        let length = question["completion"].as_str().unwrap().len();
        Json(json!({"reward": length % 2}))
    };
    Router::new().route("/score", post(score))
}

struct Fixture {
    server: Https,
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let server = Https::start(judge()).unwrap();
        let folder = folder_with(&JOB.replace("ENDPOINT", &server.endpoint()));
        Self { server, folder }
    }

    fn run(
        &self,
        runs: &str,
        more: &[&str],
        environment: &[(&str, &str)],
    ) -> (Option<i32>, String) {
        LocalRun::start_in(self.folder.path(), runs, more, environment).end()
    }
}

#[test]
fn a_reward_behind_https_needs_its_authority_which_ssl_cert_file_adds() {
    let fixture = Fixture::new();
    let (code, output) = fixture.run("unknown", &[], &[]);
    assert!(code == Some(1) && output.contains(UNTRUSTED), "{code:?}\n{output}");
    let service = format!("reward judge (http {}/score)", fixture.server.endpoint());
    assert!(output.contains(&service), "{output}");

    let authority = fixture.server.authority().display().to_string();
    let (code, output) = fixture.run("unknown", &[], &[("SSL_CERT_FILE", &authority)]);
    assert_eq!(code, Some(0), "{output}");
}

#[test]
fn an_unreadable_file_of_authorities_fails_runs_and_coordinators_at_their_start() {
    let fixture = Fixture::new();
    let missing = fixture.folder.path().join("missing.crt").display().to_string();
    let (code, output) = fixture.run("runs", &[], &[("SSL_CERT_FILE", &missing)]);
    let expected = format!("failed to read the certificates of SSL_CERT_FILE={missing}");
    assert!(code == Some(1) && output.contains(&expected), "{code:?}\n{output}");
    assert!(output.contains(": No such file or directory"), "{output}");
    assert!(!fixture.folder.path().join("runs/default").exists(), "{output}");

    let coordinator = Command::new(binary("rljob-coordinator").unwrap())
        .args(["--config", "run.json", "--tokens", "tokens", "--listen", "127.0.0.1:0"])
        .env("SSL_CERT_FILE", &missing)
        .output()
        .unwrap();
    let line = String::from_utf8_lossy(&coordinator.stderr);
    assert_eq!(coordinator.status.code(), Some(1), "{line}");
    assert!(line.starts_with(&format!("error: {expected}")) && line.lines().count() == 1, "{line}");
}

#[test]
fn hubs_and_buckets_of_unknown_authorities_fail_the_run_at_once() {
    let fixture = Fixture::new();
    let endpoint = fixture.server.endpoint();
    let hub = ["--set", "spec.model={huggingFace: {repo: lab/tiny}, weights: Random}"];
    let (code, output) = fixture.run("hub", &hub, &[("HF_ENDPOINT", &endpoint)]);
    let expected = format!("failed to reach {endpoint}/api/models/lab/tiny/revision/main: ");
    assert!(code == Some(1) && output.contains(&(expected + UNTRUSTED)), "{code:?}\n{output}");

    let storage = format!("spec.storage={{s3: {{bucket: runs, endpoint: '{endpoint}'}}}}");
    let bucket = ["--use-bucket", "--set", &storage];
    let (code, output) = fixture.run("bucket", &bucket, &S3::environment());
    let place = "`s3://runs/default/judged/identity.json`: ";
    assert!(
        code == Some(1) && output.contains(&format!("{place}{UNTRUSTED}")),
        "{code:?}\n{output}"
    );
}
