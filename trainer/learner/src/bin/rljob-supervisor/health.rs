//! Liveness endpoint `/healthz` of a supervisor: 200 while its loop runs. The coordinator and the
//! learners are not checked, because a new pod would not repair them.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use rljob_http::Limits;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time without an iteration after which the loop counts as stuck.
const STUCK: Duration = Duration::from_secs(30);

/// Limits of the server, which only kubelets call.
const LIMITS: Limits =
    Limits { connections: 64, headers: Duration::from_secs(30), body: Duration::from_secs(30) };

/// Serves `/healthz` on `port` of every interface until the process ends. `beat` holds the
/// start of the loop's last iteration.
pub async fn serve(port: u16, beat: watch::Receiver<Instant>) -> std::io::Result<()> {
    let health = move || {
        let stuck = beat.borrow().elapsed() > STUCK;
        async move {
            if stuck {
                (StatusCode::SERVICE_UNAVAILABLE, "the supervisor's loop is stuck\n")
            } else {
                (StatusCode::OK, "ok\n")
            }
        }
    };
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let listener = TcpListener::from_std(rljob_http::listen(any)?)?;
    let router = Router::new().route("/healthz", get(health));
    rljob_http::serve(listener, router, LIMITS, CancellationToken::new()).await;
    Ok(())
}
