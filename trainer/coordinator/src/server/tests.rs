//! The interface over real HTTP on loopback: who may call what, and which answers fence.

mod fixture;

use reqwest::{Method, StatusCode};
use rljob_protocol::batch::RankBatch;
use rljob_protocol::learner::Instruction;
use rljob_protocol::peer::{PROTOCOL_HEADER, PROTOCOL_VERSION, STATUS_UNSUPPORTED};
use rljob_protocol::status::{CoordinatorStatus, Phase, RequestCounts, StepMetrics};
use rljob_protocol::supervisor::Order;
use serde_json::{Value, json};

use self::fixture::{config, open, server, server_of, server_with};

#[tokio::test]
async fn a_run_with_fewer_steps_than_are_done_fails_and_resumes_with_enough() {
    let directory = tempfile::tempdir().unwrap();
    let with_steps =
        |steps: u32| config(directory.path(), |spec| spec["training"]["steps"] = json!(steps));
    let first = open(directory.path(), with_steps(3), 1).await;
    let done = StepMetrics::with_scalars(3, [("reward", 0.5)]);
    first.journal.call(move |journal| journal.report_step(&done)).await.unwrap();
    drop(first);

    let lowered = open(directory.path(), with_steps(2), 2).await;
    let failure = lowered.run.read(|run| run.record().trainer.last_failure.clone()).await.unwrap();
    assert_eq!(
        failure.message,
        "training.steps is 2, but the run has done 3 steps: set it to 3 or more"
    );
    lowered.run.change(|_, _| ()).await.unwrap();
    drop(lowered);

    let raised = open(directory.path(), with_steps(4), 3).await;
    assert_eq!(raised.run.read(|run| run.record().trainer.last_failure.clone()).await, None);
}

#[tokio::test]
async fn each_route_takes_its_own_token_and_no_other() {
    let server = server().await;
    for path in ["/v1/status"] {
        assert_eq!(
            server.call(Method::GET, path, "secret-learner", None).await.0,
            StatusCode::UNAUTHORIZED,
            "{path}"
        );
        assert_eq!(
            server.call(Method::GET, path, "secret-operator", None).await.0,
            StatusCode::OK,
            "{path}"
        );
    }
    for path in ["/v1/instructions?attempt=0&step=0", "/v1/batches/1?attempt=0&rank=0&world=1"] {
        for token in ["secret-operator", "", "secret-learne", "secret-learner2"] {
            assert_eq!(
                server.call(Method::GET, path, token, None).await.0,
                StatusCode::UNAUTHORIZED,
                "{path}"
            );
        }
    }
    for path in ["/healthz", "/metrics"] {
        assert_eq!(server.call(Method::GET, path, "", None).await.0, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn a_lower_epoch_gets_409() {
    let server = server().await;
    assert_eq!(server.set_desired(2).await, StatusCode::OK);
    assert_eq!(server.set_desired(1).await, StatusCode::CONFLICT);
    assert_eq!(server.status().await.epoch, Some(2));
}

#[tokio::test]
async fn a_stale_attempt_gets_409_everywhere() {
    let server = server().await;
    server.set_desired(1).await;
    assert!(matches!(server.report(None, json!([])).await, Order::Run(_)));
    let metrics = json!({
        "step": 1, "attempt": 9, "reward": null, "loss": 0, "kl": null, "entropy": 0,
        "clipFraction": null, "mismatchMean": null, "mismatchMax": null, "gradientNorm": 0,
        "learningRate": 0, "skipped": 0, "tokens": 0, "trainableTokens": 0,
        "completionTokens": null, "rolloutSeconds": null, "trainSeconds": 0, "syncSeconds": null,
        "tokensPerSecond": 0,
    });
    assert_eq!(server.get("/v1/instructions?attempt=9&step=0").await.0, StatusCode::CONFLICT);
    assert_eq!(server.get("/v1/batches/1?attempt=9&rank=0&world=1").await.0, StatusCode::CONFLICT);
    assert_eq!(
        server.post("/v1/steps/1", json!({"attempt": 9, "metrics": metrics})).await.0,
        StatusCode::CONFLICT
    );
    let weights = json!({"disk": {"attempt": 9, "version": "step-0.attempt-9", "path": "/x"}});
    assert_eq!(server.post("/v1/weights", weights).await.0, StatusCode::CONFLICT);
}

#[tokio::test]
async fn memory_plans_are_in_the_status_and_in_that_of_the_next_coordinator() {
    let with_group = |spec: &mut Value| {
        spec["algorithm"]["grpo"]["klCoefficient"] = json!(0.1);
        spec["trainer"] = json!({"groups": [{"name": "frozen", "roles": ["Reference"]}]});
    };
    let server = server_with(with_group).await;
    server.set_desired(1).await;
    assert!(matches!(server.report(None, json!([])).await, Order::Run(_)));
    let supervisor = json!({
        "instance": "b", "startedAt": 1, "address": "localhost", "rendezvousPort": 7,
        "processes": 1, "attempt": null, "learners": [], "group": "frozen",
    });
    assert_eq!(server.post("/v1/supervisors/g-0", supervisor).await.0, StatusCode::OK);
    let plan = |parts: usize| {
        let part = |index| json!({"name": format!("part {index}"), "bytes": 1_u64 << 40});
        json!({
            "parts": (0..parts).map(part).collect::<Vec<_>>(), "totalBytes": 3_u64 << 40,
            "usableBytes": 1_u64 << 41, "fits": false, "sharding": "Full", "recomputedLayers": 2,
            "layers": 28,
        })
    };
    let report = async |path: &str, attempt: u32, plan: Value| {
        server.post(path, json!({"attempt": attempt, "plan": plan})).await.0
    };
    let plans = |status: &CoordinatorStatus| {
        (status.memory.clone(), status.groups.first().unwrap().memory.clone())
    };
    let [of_trainer, of_group] = ["/v1/memory", "/v1/groups/frozen/memory"];
    for path in [of_trainer, of_group] {
        assert_eq!(report(path, 9, plan(1)).await, StatusCode::CONFLICT);
        assert_eq!(report(path, 0, plan(17)).await, StatusCode::BAD_REQUEST);
    }
    assert_eq!(report("/v1/groups/other/memory", 0, plan(1)).await, StatusCode::BAD_REQUEST);
    assert_eq!(plans(&server.coordinator.status().await), (None, None));
    assert_eq!(report(of_trainer, 0, plan(3)).await, StatusCode::NO_CONTENT);
    assert_eq!(report(of_group, 0, plan(2)).await, StatusCode::NO_CONTENT);
    let read = |plan| serde_json::from_value(plan).unwrap();
    let expected = (read(plan(3)), read(plan(2)));
    let status = server.coordinator.status().await;
    assert_eq!((plans(&status), status.requests), (expected, Some(RequestCounts::default())));
    let directory = &server.coordinator.config.run_directory;
    let next = open(directory, config(directory, with_group), 2).await;
    assert_eq!(plans(&next.status().await), plans(&status));
}

#[tokio::test]
async fn a_fixed_batch_is_trained_on_reported_and_counted() {
    let server = server().await;
    server.set_desired(1).await;
    assert!(matches!(server.report(None, json!([])).await, Order::Run(_)));
    assert_eq!(
        server.get("/v1/batches/1?attempt=0&rank=0&world=1").await.0,
        StatusCode::BAD_REQUEST,
        "not fixed yet"
    );
    server.fix_first_batch().await;
    let (_, body) = server.get("/v1/instructions?attempt=0&step=0").await;
    assert_eq!(serde_json::from_slice::<Instruction>(&body).unwrap(), Instruction::train(1));
    let (_, bytes) = server.get("/v1/batches/1?attempt=0&rank=0&world=1").await;
    let batch = RankBatch::from_bytes(&bytes).unwrap();
    assert_eq!(
        (batch.tokens_T, batch.loss_mask_T),
        (vec![1, 2, 3, 1, 2, 3], vec![0, 0, 1, 0, 0, 1])
    );
    let metrics = rljob_protocol::metrics::StepMetrics::with_scalars(1, [("tokens", 6.0)]);
    for _ in 0..2 {
        assert_eq!(
            server.post("/v1/steps/1", json!({"attempt": 0, "metrics": metrics})).await.0,
            StatusCode::NO_CONTENT,
            "a repeated report is fine"
        );
    }
    let status = server.status().await;
    assert_eq!((status.phase, status.step), (Phase::Running, 1));
    assert_eq!(
        status.metrics.map(|metrics| (metrics.get("reward"), metrics.get("completionTokens"))),
        Some((Some(0.5), Some(1.0)))
    );
    let written =
        std::fs::read_to_string(server.coordinator.config.run_directory.join("metrics.jsonl"))
            .unwrap();
    assert_eq!(written.lines().count(), 1);
}

#[tokio::test]
async fn a_validation_is_recorded_once_however_often_it_is_reported() {
    let server = server_with(|spec| {
        spec["algorithm"] = json!({"sft": {}});
        spec["dataset"]["train"]["completion"] = "{{answer}}".into();
        spec["dataset"]["evaluation"] = json!({
            "path": "/data/none.jsonl", "prompt": "{{question}}", "completion": "{{answer}}",
        });
    });
    let server = server.await;
    server.set_desired(1).await;
    assert!(matches!(server.report(None, json!([])).await, Order::Run(_)));
    server.coordinator.run.change(|run, _| run.data_opened(None)).await.unwrap();
    let (_, body) = server.get("/v1/instructions?attempt=0&step=0").await;
    assert_eq!(
        serde_json::from_slice::<Instruction>(&body).unwrap(),
        Instruction::Validate { step: 0 }
    );
    assert_eq!(
        server.get("/v1/validations/0?attempt=0&rank=0&world=1").await.0,
        StatusCode::SERVICE_UNAVAILABLE,
        "there is no data"
    );
    assert_eq!(
        server.get("/v1/validations/0?attempt=9&rank=0&world=1").await.0,
        StatusCode::CONFLICT
    );
    for loss in [2.5, 2.75] {
        let report =
            json!({"attempt": 0, "loss": loss, "tokens": 40, "sequences": 10, "seconds": 1.5});
        assert_eq!(server.post("/v1/validations/0", report).await.0, StatusCode::NO_CONTENT);
    }
    let expected = json!({
        "step": 0, "prompts": 10, "samples": 0, "loss": 2.5, "lossTokens": 40, "seconds": 1.5,
        "perplexity": 2.5_f64.exp(),
    });
    let written =
        std::fs::read_to_string(server.coordinator.config.run_directory.join("evaluations.jsonl"))
            .unwrap();
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), expected);
    assert_eq!(
        server.coordinator.journal.call(|journal| journal.evaluated_steps()).await.unwrap(),
        [0].into()
    );
}

#[tokio::test]
async fn unknown_fields_are_ignored() {
    let server = server().await;
    let desired = json!({
        "epoch": 1, "generation": 1, "mode": "Run", "engines": [], "later": true,
        "checkpoint": {"everySteps": 2, "keepLast": 2, "later": true},
        "restart": {"maxRestarts": 1, "backoffInitialSeconds": 0, "backoffMaxSeconds": 1,
                    "hangTimeoutSeconds": 1800, "later": 1},
    });
    let (status, body) =
        server.call(Method::PUT, "/v1/desired", "secret-operator", Some(desired)).await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
}

#[tokio::test]
async fn every_response_announces_the_protocol_version() {
    let server = server().await;
    for path in ["/healthz", "/metrics", "/v1/status", "/v1/instructions", "/none"] {
        let response = server.http.get(format!("{}{path}", server.url)).send().await.unwrap();
        assert_eq!(response.headers()[PROTOCOL_HEADER], PROTOCOL_VERSION.to_string(), "{path}");
    }
}

#[tokio::test]
async fn a_supervisor_that_is_too_old_is_rejected_with_a_reason_that_the_status_has() {
    let server = server_of(2, |_| ()).await;
    assert_eq!(server.set_desired(1).await, StatusCode::OK);
    let report = json!({
        "instance": "a", "startedAt": 1, "address": "localhost", "rendezvousPort": 7,
        "processes": 1, "attempt": null, "learners": [],
    });
    let (status, body) = server.post("/v1/supervisors/t-0", report.clone()).await;
    assert_eq!(status.as_u16(), STATUS_UNSUPPORTED);
    let body: Value = serde_json::from_slice(&body).unwrap();
    let message = "supervisor t-0 speaks protocol version 1, and the run configuration needs \
                   version 2; run it from an image of the newer release";
    let detail = json!({
        "peer": "supervisor t-0", "announced": 1, "required": 2,
        "feature": "the run configuration",
    });
    let expected = json!({"error": message, "reason": "ProtocolUnsupported", "detail": detail});
    assert_eq!(body, expected);
    let of_version_1 = server.status().await;
    assert_eq!(of_version_1.unsupported, None);
    assert_eq!(of_version_1.last_failure.unwrap().message, message);
    let request = |path: &str, token: &str| {
        let request = server.http.post(format!("{}{path}", server.url)).bearer_auth(token);
        request.header(PROTOCOL_HEADER, PROTOCOL_VERSION)
    };
    let response = request("/v1/supervisors/t-0", "secret-learner").json(&report).send().await;
    assert_eq!(response.unwrap().status(), StatusCode::OK);
    let response = server.http.get(format!("{}/v1/status", server.url));
    let response = response.bearer_auth("secret-operator").header(PROTOCOL_HEADER, 2).send().await;
    let status: CoordinatorStatus = response.unwrap().json().await.unwrap();
    assert_eq!(status.unsupported.unwrap().to_string(), message);
    assert_eq!(status.last_failure, None);
}
