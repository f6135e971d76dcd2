//! Tests of joint requests with a local server, which records them and sends events when the test
//! says so.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, mpsc};

use super::{JOINT, SENDING};
use crate::engines::client::EngineClient;
use crate::engines::output::Output;
use crate::engines::output::tests::request;
use crate::engines::streams::Streams;
use crate::tokens::Token;

/// What the server does and what it has seen.
#[derive(Default)]
struct Server {
    /// Bodies of requests for completions.
    bodies: Mutex<Vec<Value>>,
    /// Request ids of aborts.
    aborted: Mutex<Vec<String>>,
    /// Senders of the events of open responses.
    open: Mutex<Vec<mpsc::UnboundedSender<Result<Bytes, std::io::Error>>>>,
    seen: Notify,
    /// Requests with the prompt `[0]` are rejected.
    rejects: bool,
}

/// Lets responses begin.
type Gate = Arc<Semaphore>;

async fn generate(
    State((server, gate)): State<(Arc<Server>, Gate)>,
    axum::Json(body): axum::Json<Value>,
) -> Response {
    let is_rejected = server.rejects && body["input_ids"].to_string().contains("[0]");
    server.bodies.lock().push(body);
    server.seen.notify_one();
    gate.acquire().await.unwrap().forget();
    if is_rejected {
        // SGLang rejects a stream in its first event.
        let error = json!({"error": {"message": "empty prompt"}});
        return format!("data: {error}\n\ndata: [DONE]\n\n").into_response();
    }
    let (events, received) = mpsc::unbounded_channel();
    server.open.lock().push(events);
    server.seen.notify_one();
    let stream = futures::stream::unfold(received, async |mut received| {
        received.recv().await.map(|event| (event, received))
    });
    Body::from_stream(stream).into_response()
}

async fn abort(State((server, _)): State<(Arc<Server>, Gate)>, body: axum::Json<Value>) {
    server.aborted.lock().push(body["rid"].as_str().unwrap().to_owned());
    server.seen.notify_one();
}

impl Server {
    /// Waits until `condition` holds.
    async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let waited = async {
            while !condition(self) {
                self.seen.notified().await;
            }
        };
        let bodies = || self.bodies.lock().clone();
        let ended = tokio::time::timeout(Duration::from_secs(20), waited).await;
        assert!(ended.is_ok(), "{:?}", bodies());
    }

    /// Ends the sample of an index of an open response.
    fn finish(&self, response: usize, index: Option<usize>, token: i64) {
        let mut event = json!({"output_ids": [token], "meta_info": {
            "finish_reason": {"type": "length", "length": 1}, "weight_version": "default",
            "completion_tokens": 1, "output_token_logprobs": [[-0.5, token, null]],
        }});
        if let Some(index) = index {
            event["index"] = index.into();
        }
        self.open.lock()[response].send(Ok(format!("data: {event}\n\n").into())).unwrap();
    }
}

async fn serve(rejects: bool) -> (Arc<Server>, Gate, String) {
    let (server, gate) =
        (Arc::new(Server { rejects, ..Server::default() }), Arc::new(Semaphore::new(0)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let routes = Router::new()
        .route("/generate", post(generate))
        .route("/abort_request", post(abort))
        .with_state((Arc::clone(&server), Arc::clone(&gate)));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (server, gate, url)
}

fn client() -> EngineClient {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), "secret").unwrap();
    let token = Token::open(folder.path(), "key").unwrap();
    EngineClient::new(token.clone(), token, None)
}

/// Asks for a sample with this prompt; its task returns the tokens or the error.
async fn ask(
    (client, url, streams): (&EngineClient, &str, &Streams),
    prompt: i64,
    key: &str,
) -> tokio::task::JoinHandle<Result<Vec<i64>, String>> {
    let mut request = request(1);
    (request.rid, request.input_ids) = (format!("r.{prompt}."), vec![prompt]);
    request.extra_key = Some(key.to_owned());
    let output = Output::new(&request, Arc::default(), None);
    let (client, url, open) = (client.clone(), url.to_owned(), streams.open().unwrap());
    let (asked, task) = (Arc::new(Notify::new()), Arc::new(request));
    let begun = Arc::clone(&asked);
    let handle = tokio::spawn(async move {
        let ended = client.generate(&url, task, output.clone(), open);
        tokio::pin!(ended);
        // The first poll queues the sample.
        let first = futures::poll!(ended.as_mut());
        begun.notify_one();
        let ended = match first {
            std::task::Poll::Ready(ended) => ended,
            std::task::Poll::Pending => ended.await,
        };
        ended.map_err(|error| error.to_string())?;
        Ok(output.take().unwrap().tokens)
    });
    asked.notified().await;
    handle
}

#[tokio::test]
async fn samples_that_wait_while_requests_are_sent_travel_together_by_key() {
    let (server, gate, url) = serve(false).await;
    let (client, streams) = (client(), Streams::default());
    let asker = (&client, url.as_str(), &streams);
    let mut tasks = Vec::new();
    for prompt in 0..20 {
        tasks.push(ask(asker, prompt, "a").await);
    }
    tasks.push(ask(asker, 20, "b").await);
    server.until(|server| server.bodies.lock().len() == SENDING).await;
    gate.add_permits(9);
    server.until(|server| server.open.lock().len() == 5).await;
    let mut prompts: Vec<Value> =
        server.bodies.lock().iter().map(|body| body["input_ids"].clone()).collect();
    prompts[..SENDING].sort_by_key(Value::to_string);
    let joint = |range: std::ops::Range<i64>| json!(range.map(|one| [one]).collect::<Vec<_>>());
    let rest = SENDING as i64 + JOINT as i64;
    let expected = [json!([0]), json!([1]), joint(SENDING as i64..rest), joint(rest..20)];
    assert_eq!(prompts[..4], expected);
    assert_eq!(prompts[4], json!([20]), "another key");
    // The samples of the third request end in another order.
    for index in (0..JOINT).rev() {
        server.finish(2, Some(index), 100 + index as i64);
    }
    for (index, task) in tasks.iter_mut().skip(SENDING).take(JOINT).enumerate() {
        assert_eq!(task.await.unwrap(), Ok(vec![100 + index as i64]));
    }
    // The update of the weights waits for the end of the response, and nothing is aborted.
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    let ended = tokio::time::timeout(Duration::from_millis(200), streams.ended());
    assert!(ended.await.is_err(), "the response of complete samples is open");
    server.open.lock().clear();
    tokio::time::timeout(Duration::from_secs(20), streams.ended()).await.unwrap();
    assert_eq!(*server.aborted.lock(), Vec::<String>::new());
}

#[tokio::test]
async fn an_unwanted_sample_is_aborted_alone_and_its_response_closed_with_the_last() {
    let (server, gate, url) = serve(false).await;
    let (client, streams) = (client(), Streams::default());
    let asker = (&client, url.as_str(), &streams);
    let mut tasks = Vec::new();
    for prompt in 0..5 {
        tasks.push(ask(asker, prompt, "a").await);
    }
    gate.add_permits(3);
    server.until(|server| server.open.lock().len() == 3).await;
    assert_eq!(server.bodies.lock()[2]["input_ids"], json!([[2], [3], [4]]));
    tasks[3].abort();
    server.until(|server| *server.aborted.lock() == ["r.3."]).await;
    server.finish(2, Some(0), 7);
    assert_eq!((&mut tasks[2]).await.unwrap(), Ok(vec![7]));
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    tokio::time::timeout(Duration::from_secs(20), streams.ended()).await.unwrap();
}

#[tokio::test]
async fn of_a_rejected_joint_request_only_the_sample_at_fault_fails() {
    let (server, gate, url) = serve(true).await;
    let (client, streams) = (client(), Streams::default());
    let asker = (&client, url.as_str(), &streams);
    let mut tasks = Vec::new();
    for prompt in [8, 9, 1, 0, 2] {
        tasks.push(ask(asker, prompt, "a").await);
    }
    gate.add_permits(9);
    server.until(|server| server.bodies.lock().len() == 6).await;
    server.until(|server| server.open.lock().len() == 4).await;
    let ids: Vec<Value> =
        server.bodies.lock()[3..].iter().map(|body| body["rid"].clone()).collect();
    assert_eq!(ids, ["alone.r.1.", "alone.r.0.", "alone.r.2."]);
    for response in 0..4 {
        server.finish(response, None, 5);
    }
    let mut ended = Vec::new();
    for task in tasks {
        ended.push(task.await.unwrap());
    }
    let rejected = ended.remove(3).unwrap_err();
    assert!(
        rejected.contains("400 Bad Request") && rejected.contains("empty prompt"),
        "{rejected}"
    );
    assert_eq!(ended, vec![Ok(vec![5]); 4]);
}
