//! Tests of an exchange with a coordinator.

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::{get, put};
use rljob_http::{Limits, Role, Routes, ServerTls};
use rljob_protocol::status::{LearnerFailure, Phase};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::decide::test_support::{facts, report};
use crate::desired::tokens::{TokenKey, Tokens};

/// A coordinator that answers with this code and this status body.
async fn asked(desired: StatusCode, body: &'static str) -> String {
    asked_for(desired, async move || body.into_response()).await
}

async fn asked_for<F>(
    desired: StatusCode,
    status: impl Fn() -> F + Clone + Send + Sync + 'static,
) -> String
where
    F: Future<Output = axum::response::Response> + Send + 'static,
{
    let routes = Router::new()
        .route("/v1/desired", put(async move || (desired, "unknown field `later`")))
        .route("/v1/status", get(status));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let tokens = Tokens::derive(&TokenKey::new(&[7; 32]).unwrap(), "uid");
    let clients = [Role::Operator.server_name("uid")];
    let pem = tokens.certificates.of(Role::Coordinator);
    let tls = ServerTls::of_pem(pem, &clients).unwrap();
    let routes = Routes::new(Router::new(), routes, &tls);
    let stop = CancellationToken::new();
    let server = tokio::spawn(rljob_http::serve(listener, routes, Limits::default(), stop.clone()));
    let job = crate::validate::test_support::validated();
    let order = CoordinatorOrder {
        identity: "pod".to_owned(),
        url,
        restarts: 0,
        token: "secret".to_owned(),
        certificate: tokens.certificates.of(Role::Operator).clone(),
        server_name: Role::Coordinator.server_name("uid"),
        max_steps: 10,
        desired: crate::decide::desired_for_coordinator(&job, &facts()).unwrap(),
    };
    let result = exchange(&mut Link::default(), &order, &mut Sent::default()).await;
    server.abort();
    match result {
        Ok(status) => format!("{:?}", status.phase),
        Err(ExchangeError::Unsupported(message)) => message,
        Err(ExchangeError::Unanswered(error)) => error.replace(&order.url, ""),
    }
}

#[tokio::test]
async fn requests_that_another_release_cannot_serve_are_distinguished_from_failures() {
    let status: &'static str = serde_json::to_string(&report()).unwrap().leak();
    assert_eq!(asked(StatusCode::OK, status).await, "Running");
    assert_eq!(asked(StatusCode::CONFLICT, status).await, "Running");
    assert_eq!(
        asked(StatusCode::UNPROCESSABLE_ENTITY, status).await,
        "the coordinator speaks protocol version 1 and this operator version 3: it answers PUT \
         /v1/desired with 422 Unprocessable Entity: unknown field `later`; run the coordinator \
         from an image of the operator's release"
    );
    assert_eq!(
        asked(StatusCode::OK, r#"{"phase": "Paused"}"#).await,
        "the coordinator speaks protocol version 1 and this operator version 3: its status is \
         unreadable: unknown variant `Paused`, expected one of `Starting`, `Running`, \
         `Restarting`, `Draining`, `Drained`, `Finished`, `Failed` at line 1 column 18; run \
         the coordinator from an image of the operator's release"
    );
    for passing in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::UNAUTHORIZED] {
        let class = if passing.is_server_error() { "server" } else { "client" };
        let expected = format!("HTTP status {class} error ({passing}) for url (/v1/desired)");
        assert_eq!(asked(passing, status).await, expected);
    }
}

#[tokio::test]
async fn a_status_is_read_within_limits() {
    let endless = async || {
        let chunks = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 65536]));
        Body::from_stream(chunks).into_response()
    };
    let expected = format!("the response has more than {MAX_STATUS} bytes");
    assert_eq!(asked_for(StatusCode::OK, endless).await, expected);
    let silent = async || {
        Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>())
            .into_response()
    };
    let answer = asked_for(StatusCode::OK, silent).await;
    assert!(answer.ends_with("operation timed out"), "{answer}");
    for (step, total_steps) in [(11, 10), (3, 11)] {
        let other = CoordinatorStatus { step, total_steps, ..report() };
        let other: &'static str = serde_json::to_string(&other).unwrap().leak();
        let answer = asked(StatusCode::OK, other).await;
        assert!(answer.contains("its status has 11 steps of a run of 10 steps"), "{answer}");
    }
    let failure = LearnerFailure {
        reason: COORDINATOR_INPUT.to_owned(),
        message: "training.steps is 10, but the run has done 11 steps".to_owned(),
        supervisor: None,
        exit_code: None,
    };
    let status = CoordinatorStatus {
        step: 11,
        phase: Phase::Failed,
        last_failure: Some(failure),
        ..report()
    };
    let status: &'static str = serde_json::to_string(&status).unwrap().leak();
    assert_eq!(asked(StatusCode::OK, status).await, "Failed", "the run rejects the spec");
}

#[tokio::test]
async fn an_epoch_far_above_the_recorded_one_is_invalid() {
    let recorded = facts().epoch.number;
    let highest = recorded + MAX_LOST_EPOCHS;
    for (epoch, is_valid) in [(highest, true), (highest + 1, false), (u64::MAX, false)] {
        let status = CoordinatorStatus { epoch: Some(epoch), ..report() };
        let status: &'static str = serde_json::to_string(&status).unwrap().leak();
        let answer = asked(StatusCode::CONFLICT, status).await;
        let problem = format!("its status has epoch {epoch} of a run in epoch {recorded};");
        assert_eq!(answer == "Running", is_valid, "{answer}");
        assert_eq!(answer.contains(&problem), !is_valid, "{answer}");
    }
}
