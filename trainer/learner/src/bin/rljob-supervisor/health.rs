//! `/healthz` of a supervisor: 200 while its loop turns. It says nothing of the coordinator or the
//! learners, whose failures a new pod would not mend.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;

/// A loop that has not turned for so long is stuck.
const STUCK: Duration = Duration::from_secs(30);

/// Serves `/healthz` on `port` of every interface until the process ends. `beat` holds the time of
/// the loop's last turn.
pub async fn serve(port: u16, beat: watch::Receiver<Instant>) -> std::io::Result<()> {
    let answer = move || {
        let stuck = beat.borrow().elapsed() > STUCK;
        async move {
            if stuck {
                (StatusCode::SERVICE_UNAVAILABLE, "the supervisor's loop is stuck\n")
            } else {
                (StatusCode::OK, "ok\n")
            }
        }
    };
    let listener = TcpListener::bind(("0.0.0.0", port)).await?;
    axum::serve(listener, Router::new().route("/healthz", get(answer))).await
}
