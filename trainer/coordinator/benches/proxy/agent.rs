//! Agent: a conversation over one HTTP connection, with the engine or with the proxy.

use std::time::Instant;

use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// Messages of a conversation and its connection, which stays open.
pub struct Conversation {
    /// Base URL of the API without its scheme: authority and path.
    place: (String, String),
    key: String,
    messages: Vec<Value>,
    connection: SendRequest<Full<hyper::body::Bytes>>,
}

/// An answered turn.
pub struct Turn {
    /// From the request to the last byte of the answer.
    pub milliseconds: f64,
    pub prompt_tokens: u64,
    /// Of prompt and completion.
    pub total_tokens: u64,
}

impl Conversation {
    /// Connects to an API.
    pub async fn open(base_url: &str, key: &str) -> Self {
        let (authority, path) = base_url.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let stream = TcpStream::connect(authority).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (connection, task) = handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(task);
        Self {
            place: (authority.to_owned(), format!("/{path}/chat/completions")),
            key: format!("Bearer {key}"),
            messages: Vec::new(),
            connection,
        }
    }

    /// Asks a question and keeps the answer.
    pub async fn turn(&mut self, question: String, max_tokens: u32) -> Turn {
        self.messages.push(json!({"role": "user", "content": question}));
        let body = json!({
            "model": "policy", "messages": self.messages, "max_tokens": max_tokens,
            "temperature": 1.0,
        });
        let request = Request::post(&self.place.1)
            .header(HOST, &self.place.0)
            .header(AUTHORIZATION, &self.key)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body.to_string()))
            .unwrap();
        self.connection.ready().await.unwrap();
        let began = Instant::now();
        let response = self.connection.send_request(request).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let milliseconds = began.elapsed().as_secs_f64() * 1000.0;
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(status, StatusCode::OK, "{answer}");
        // A completion without text has no content.
        let content = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
        self.messages.push(json!({"role": "assistant", "content": content}));
        let tokens = |name: &str| answer["usage"][name].as_u64().unwrap();
        Turn {
            milliseconds,
            prompt_tokens: tokens("prompt_tokens"),
            total_tokens: tokens("total_tokens"),
        }
    }
}
