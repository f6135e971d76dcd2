//! HTTP routes of the proxy.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use rljob_http::Limits;
use serde_json::{Value, json};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use super::answer::Completed;
use super::error::ProxyError;
use super::request::{self, Rules};
use super::sessions::{Call, Reply, Sessions};
use super::stream;

/// Largest body in bytes.
const MAX_BODY: usize = 8 << 20;
/// A client keeps its connection while its completion is sampled.
pub const LIMITS: Limits = Limits {
    connections: 16_384,
    headers: Duration::from_secs(120),
    body: Duration::from_secs(60),
};

/// Room for one call of a session.
type Place = mpsc::OwnedPermit<Call>;

#[derive(Clone)]
struct Shared {
    sessions: Arc<Sessions>,
    rules: Rules,
}

/// All routes; each needs the key of a session.
pub fn router(sessions: Arc<Sessions>, rules: Rules) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/models", get(models))
        .route("/v1/rljob/reward", post(reward))
        .route("/v1/rljob/finish", post(finish))
        .fallback(|uri: Uri| async move { ProxyError::Route(uri.path().to_owned()) })
        .with_state(Shared { sessions, rules })
}

async fn chat(State(shared): State<Shared>, request: Request) -> Result<Response, ProxyError> {
    let (place, body) = shared.open(request).await?;
    let request = request::chat(&body, &shared.rules)?;
    let asked = request.clone();
    let completed = call(place, |reply| Call::Chat(asked, reply));
    if !request.stream {
        return Ok(Json(completed.await?.object(&request, seconds())).into_response());
    }
    let chunks = move |completed: &Completed| completed.chunks(&request, seconds());
    stream::respond(Box::pin(completed), stream::INTERVAL, chunks).await
}

async fn models(State(shared): State<Shared>, request: Request) -> Result<Json<Value>, ProxyError> {
    shared.session(request.headers())?;
    let model = json!({"id": "policy", "object": "model", "created": 0, "owned_by": "rljob"});
    Ok(Json(json!({"object": "list", "data": [model]})))
}

async fn reward(State(shared): State<Shared>, request: Request) -> Result<Json<Value>, ProxyError> {
    let (place, body) = shared.open(request).await?;
    let (reward, completion) = request::reward(&body)?;
    call(place, |reply| Call::Reward(reward, completion, reply)).await?;
    Ok(Json(json!({})))
}

async fn finish(State(shared): State<Shared>, request: Request) -> Result<Json<Value>, ProxyError> {
    let (place, body) = shared.open(request).await?;
    let completion = request::finish(&body)?;
    call(place, |reply| Call::Finish(completion, reply)).await?;
    Ok(Json(json!({})))
}

impl Shared {
    /// A place among the waiting requests of the session, and the body. Both are checked before the
    /// body is read, so that a session has a bounded number of bodies in memory.
    async fn open(&self, request: Request) -> Result<(Place, Bytes), ProxyError> {
        let session = self.session(request.headers())?;
        let place = session.try_reserve_owned().map_err(|error| match error {
            TrySendError::Full(_) => ProxyError::Busy,
            TrySendError::Closed(_) => ProxyError::Ended,
        })?;
        let length = request.headers().get("content-length").and_then(|value| value.to_str().ok());
        let length = length.and_then(|length| length.parse::<usize>().ok()).unwrap_or_default();
        if length > MAX_BODY {
            return Err(ProxyError::BodyTooLarge(MAX_BODY));
        }
        let body = to_bytes(request.into_body(), MAX_BODY).await;
        Ok((place, body.map_err(|error| ProxyError::Body(error.to_string()))?))
    }

    fn session(&self, headers: &HeaderMap) -> Result<mpsc::Sender<Call>, ProxyError> {
        let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let key = header.and_then(|value| value.strip_prefix("Bearer ")).ok_or(ProxyError::Key)?;
        self.sessions.find(key)
    }
}

/// Sends a call to its session and waits for the reply.
async fn call<T>(place: Place, call: impl FnOnce(Reply<T>) -> Call) -> Result<T, ProxyError> {
    let (reply, answer) = oneshot::channel();
    place.send(call(reply));
    answer.await.map_err(|_| ProxyError::Ended)?
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
