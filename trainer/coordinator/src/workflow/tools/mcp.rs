//! Tool of an MCP server over streamable HTTP: a `tools/call` per call, in one session of the run.
//!
//! ```text
//!  first call ─▶ initialize, tools/list ─▶ session ─▶ tools/call, tools/call, …
//!                     ▲                                    │ connection lost, or no response
//!                     └────────── next try ────────────────┘
//! ```

mod client;

use std::sync::Arc;
use std::time::Duration;

use rljob_crds::workflow::McpTool;
use rmcp::ServiceExt as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ContentBlock, ErrorCode, MetaObject, RequestMetaObject,
    ResourceContents,
};
use rmcp::service::{RoleClient, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::json;
use tokio::sync::{Mutex, Semaphore};

use super::call::{Answer, Outcome, Request};
use crate::reward::{MAX_RESPONSE, SecretToken, Token, VerifierError, excerpt, unexpected};
use client::{client, failure};

/// A session, and the token of its requests.
#[derive(Debug)]
struct Session {
    service: RunningService<RoleClient, ()>,
    token: Option<Token>,
}

#[derive(Debug)]
pub struct McpServer {
    /// Name of the tool at the server.
    tool: String,
    url: String,
    /// Read when a session starts. A session whose token expires ends with the rejected call.
    token: Option<SecretToken>,
    client: rmcp_reqwest::Client,
    timeout: Duration,
    concurrency: u32,
    slots: Semaphore,
    session: Mutex<Option<Arc<Session>>>,
}

impl McpServer {
    /// Opens no session; `call` opens one on demand. `name` is that of the tool in the job.
    pub fn new(
        spec: &McpTool,
        name: &str,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self {
            tool: spec.tool.as_deref().unwrap_or(name).to_owned(),
            url: spec.url.clone(),
            token: spec.token_secret_ref.as_ref().map(SecretToken::new),
            client: client()?,
            timeout: Duration::from_secs(spec.timeout_seconds.into()),
            concurrency: spec.concurrency,
            slots: Semaphore::new(spec.concurrency as usize),
            session: Mutex::default(),
        })
    }

    pub async fn call(&self, request: &Request<'_>) -> Result<Answer, VerifierError> {
        // The semaphore is never closed. The timeout starts after the wait for a slot.
        let _slot = self.slots.acquire().await.ok();
        let mut used = None;
        let called = tokio::time::timeout(self.timeout, self.exchange(request, &mut used)).await;
        let called = called.unwrap_or(Err(VerifierError::Timeout(self.timeout)));
        if let (Err(error), Some(used)) = (&called, used)
            && !matches!(error, VerifierError::Mcp { .. })
        {
            // Other calls may have opened another one meanwhile.
            self.session.lock().await.take_if(|open| Arc::ptr_eq(open, &used));
        }
        called
    }

    async fn exchange(
        &self,
        request: &Request<'_>,
        used: &mut Option<Arc<Session>>,
    ) -> Result<Answer, VerifierError> {
        let session = self.session().await?;
        *used = Some(Arc::clone(&session));
        let mut parameters =
            CallToolRequestParams::new(self.tool.clone()).with_arguments(request.arguments.clone());
        parameters.meta = Some(metadata(request));
        let result = session.service.call_tool(parameters).await;
        let token = session.token.as_ref();
        let (outcome, text) =
            result.map_or_else(|error| self.failed(error, token), |result| answer(&result))?;
        let text = match token {
            Some(token) => token.redact_result(text),
            None => text,
        };
        Ok((outcome, text))
    }

    /// The open session, or a new one of a server that has the tool.
    async fn session(&self) -> Result<Arc<Session>, VerifierError> {
        let mut open = self.session.lock().await;
        if let Some(session) = open.as_ref().filter(|open| !open.service.is_closed()) {
            return Ok(Arc::clone(session));
        }
        let mut config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str())
            .max_concurrent_requests(self.concurrency as usize);
        config.max_sse_event_size = MAX_RESPONSE;
        config.max_json_response_size = MAX_RESPONSE;
        let token = match &self.token {
            Some(secret) => Some(secret.read().await?),
            None => None,
        };
        if let Some(token) = &token {
            config = config.auth_header(token.expose());
        }
        let transport = StreamableHttpClientTransport::with_client(self.client.clone(), config);
        let sent = self.token.as_ref().zip(token.as_ref());
        let service = ().serve(transport).await;
        let service = service.map_err(|error| failure(&error, &self.url, sent))?;
        let tools = service.list_all_tools().await;
        let tools = tools.map_err(|error| failure(&error, &self.url, sent))?;
        if !tools.iter().any(|tool| tool.name == self.tool) {
            let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
            let tools = excerpt(names.join(", ").as_bytes());
            return Err(VerifierError::McpTool { tool: self.tool.clone(), tools });
        }
        Ok(Arc::clone(open.insert(Arc::new(Session { service, token }))))
    }

    fn failed(&self, error: ServiceError, token: Option<&Token>) -> Result<Answer, VerifierError> {
        match error {
            ServiceError::McpError(error) => {
                let message = token.map(|token| token.redact(&error.message));
                let message = excerpt(message.as_deref().unwrap_or(&error.message).as_bytes());
                if error.code == ErrorCode::INVALID_PARAMS {
                    return Ok((Outcome::Error, format!("error: {message}")));
                }
                Err(VerifierError::Mcp { code: error.code.0, message })
            }
            error => Err(failure(&error, &self.url, self.token.as_ref().zip(token))),
        }
    }
}

/// What identifies the call, for servers with state.
fn metadata(request: &Request<'_>) -> RequestMetaObject {
    let named = [
        ("rljob.dev/session", json!(request.session)),
        ("rljob.dev/turn", json!(request.turn)),
        ("rljob.dev/call", json!(request.call)),
    ];
    let named = named.into_iter().map(|(name, value)| (name.to_owned(), value));
    RequestMetaObject(MetaObject(named.collect()))
}

/// The result for the model: all texts, or the structured content of a result without content.
fn answer(result: &CallToolResult) -> Result<Answer, VerifierError> {
    let texts: Option<Vec<&str>> = result.content.iter().map(text).collect();
    let structured = result.structured_content.as_ref().filter(|_| result.content.is_empty());
    let Some(texts) = texts else {
        return Err(unexpected(b"", "text", &"the result has an image, audio or a link"));
    };
    let text = structured.map_or_else(|| texts.join("\n"), ToString::to_string);
    Ok(if result.is_error == Some(true) {
        (Outcome::Error, format!("error: {}", excerpt(text.as_bytes())))
    } else {
        (Outcome::Result, text)
    })
}

fn text(content: &ContentBlock) -> Option<&str> {
    match content {
        ContentBlock::Text(text) => Some(&text.text),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => Some(text),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests;
