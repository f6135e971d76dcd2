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
use tokio::sync::{mpsc, oneshot, watch};

use super::answer::Completed;
use super::chunks::{Chunks, Shape};
use super::error::ProxyError;
use super::request::{self, CompletionRequest, Rules};
use super::response_answer::Events;
use super::sessions::{Answer, Call, Reply, Sessions};
use super::stream::{self, Encoder, Progress};
use super::{
    chat_answer, chat_request, prompt_answer, prompt_request, response_answer, response_request,
};

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

/// Parser and answers of a route of completions.
struct Route {
    parse: fn(&[u8], &Rules) -> Result<CompletionRequest, ProxyError>,
    object: fn(&Completed, &CompletionRequest, u64) -> Value,
    encoder: fn(CompletionRequest, u64) -> Box<dyn Encoder>,
}

/// All routes; each needs the key of a session.
pub fn router(sessions: Arc<Sessions>, rules: Rules) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/v1/responses", post(responses))
        .route("/v1/models", get(models))
        .route("/v1/rljob/reward", post(reward))
        .route("/v1/rljob/finish", post(finish))
        .fallback(|uri: Uri| async move { ProxyError::Route(uri.path().to_owned()) })
        .with_state(Shared { sessions, rules })
}

async fn chat(State(shared): State<Shared>, request: Request) -> Result<Response, ProxyError> {
    const CHAT: Route = Route {
        parse: chat_request::chat,
        object: chat_answer::object,
        encoder: |request, created| {
            let shape = Shape { object: chat_answer::CHUNK, part: chat_answer::chunks };
            Box::new(Chunks::new(shape, request, created))
        },
    };
    shared.complete(request, CHAT).await
}

async fn completions(
    State(shared): State<Shared>,
    request: Request,
) -> Result<Response, ProxyError> {
    const COMPLETIONS: Route = Route {
        parse: prompt_request::prompt,
        object: prompt_answer::object,
        encoder: |request, created| {
            let shape = Shape { object: prompt_answer::OBJECT, part: prompt_answer::chunks };
            Box::new(Chunks::new(shape, request, created))
        },
    };
    shared.complete(request, COMPLETIONS).await
}

async fn responses(State(shared): State<Shared>, request: Request) -> Result<Response, ProxyError> {
    const RESPONSES: Route = Route {
        parse: response_request::response,
        object: response_answer::object,
        encoder: |request, created| Box::new(Events::new(request, created)),
    };
    shared.complete(request, RESPONSES).await
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
    /// Completions in the shape of a route, as one object or a stream.
    async fn complete(&self, request: Request, route: Route) -> Result<Response, ProxyError> {
        let (place, body) = self.open(request).await?;
        let request = (route.parse)(&body, &self.rules)?;
        let asked = request.clone();
        let (sender, partial) = watch::channel(Completed::default());
        let completed =
            call(place, |reply| Call::Complete(asked, Answer { partial: sender, reply }));
        if !request.stream {
            drop(partial);
            let object = (route.object)(&completed.await?, &request, seconds());
            return Ok(Json(object).into_response());
        }
        let encoder = (route.encoder)(request, seconds());
        let progress = Progress { partial, completed: Some(Box::pin(completed)), encoder };
        stream::respond(progress, stream::INTERVAL).await
    }

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
