//! Server fixtures in fp32 and generations in progress.

use std::path::Path;

use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::server::{LIMIT, Server};

impl Server {
    pub async fn embedded(model: &Path) -> Self {
        Self::embedded_of(model, "float32").await
    }

    /// SGLang in fp32; `None` if it is not installed.
    pub async fn sglang(model: &Path) -> Option<Self> {
        Self::sglang_of(model, "float32").await
    }

    /// Starts a generation and waits for its first token.
    pub async fn running(&self, mut body: Value) -> Running {
        body["stream"] = json!(true);
        let response = self
            .client
            .post(format!("{}/generate", self.url))
            .timeout(LIMIT)
            .json(&body)
            .send()
            .await
            .unwrap();
        let mut stream = response.bytes_stream().boxed();
        let first = stream.next().await.unwrap().unwrap();
        Running { text: first.to_vec(), stream }
    }

    /// Starts a generation in the background.
    pub fn spawn(&self, body: &Value) -> tokio::task::JoinHandle<Value> {
        let request = self.client.post(format!("{}/generate", self.url)).timeout(LIMIT).json(body);
        tokio::spawn(async move { request.send().await.unwrap().json().await.unwrap() })
    }
}

/// A started stream.
pub struct Running {
    text: Vec<u8>,
    stream: futures::stream::BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
}

impl Running {
    pub async fn events(mut self) -> Vec<Value> {
        while let Some(bytes) = self.stream.next().await {
            self.text.extend(bytes.unwrap());
        }
        let text = String::from_utf8(self.text).unwrap();
        let mut events: Vec<&str> = text
            .split_terminator("\n\n")
            .map(|event| event.strip_prefix("data: ").unwrap())
            .collect();
        assert_eq!(events.pop(), Some("[DONE]"));
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// The final response.
    pub async fn answer(self) -> Value {
        joined(&self.events().await)
    }
}

/// The whole response of a stream: outputs in order, the rest from the last event.
pub fn joined(events: &[Value]) -> Value {
    let mut whole = events.last().unwrap().clone();
    let list = |pointer: &str| {
        let parts = events.iter().filter_map(|event| event.pointer(pointer)?.as_array());
        json!(parts.flatten().collect::<Vec<_>>())
    };
    whole["output_ids"] = list("/output_ids");
    if whole["meta_info"]["output_token_logprobs"].is_array() {
        whole["meta_info"]["output_token_logprobs"] = list("/meta_info/output_token_logprobs");
    }
    let texts = events.iter().map(|event| event["text"].as_str().unwrap());
    whole["text"] = json!(texts.collect::<String>());
    whole
}

/// A greedy request that ignores the end-of-sequence token.
pub fn greedy(rid: &str, input_ids: &[i64], max_new_tokens: u32) -> Value {
    json!({"rid": rid, "input_ids": input_ids, "sampling_params": {"temperature": 0,
        "max_new_tokens": max_new_tokens, "ignore_eos": true}})
}
