//! Bearer-token authentication by SGLang's rules (`srt/utils/auth.py`): the admin key guards
//! control routes; without one, the API key guards them too.

use std::path::Path;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// API keys. Without keys, all routes are open.
#[derive(Clone, Default)]
pub struct Keys {
    api: Option<String>,
    admin: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("failed to read the key file {0}")]
    File(String, #[source] std::io::Error),
    #[error("the key file {0} is empty")]
    Empty(String),
}

impl std::fmt::Debug for Keys {
    /// Shows which keys are set, not their values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys")
            .field("api", &self.api.is_some())
            .field("admin", &self.admin.is_some())
            .finish()
    }
}

impl Keys {
    /// Reads the key files and trims white space.
    pub fn read(api: Option<&Path>, admin: Option<&Path>) -> Result<Self, KeyError> {
        let read = |path: &Path| {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .map_err(|error| KeyError::File(name.clone(), error))?;
            let key = text.trim();
            if key.is_empty() { Err(KeyError::Empty(name)) } else { Ok(key.to_owned()) }
        };
        Ok(Self { api: api.map(read).transpose()?, admin: admin.map(read).transpose()? })
    }
}

/// Requires the API key.
pub async fn normal(State(keys): State<Arc<Keys>>, request: Request, next: Next) -> Response {
    guard(keys.api.as_deref(), request, next).await
}

/// Requires the key of control routes.
pub async fn admin(State(keys): State<Arc<Keys>>, request: Request, next: Next) -> Response {
    guard(keys.admin.as_deref().or(keys.api.as_deref()), request, next).await
}

async fn guard(key: Option<&str>, request: Request, next: Next) -> Response {
    if key.is_none_or(|key| opens(request.headers(), key)) {
        return next.run(request).await;
    }
    (StatusCode::UNAUTHORIZED, Json(serde_json::json!({"error": "Unauthorized"}))).into_response()
}

fn opens(headers: &HeaderMap, key: &str) -> bool {
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((scheme, token)) = value.and_then(|value| value.split_once(' ')) else { return false };
    scheme.eq_ignore_ascii_case("bearer") && equal(token.as_bytes(), key.as_bytes())
}

/// Compares in constant time for equal lengths.
fn equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len()
        && std::hint::black_box(a.iter().zip(b).fold(0, |different, (x, y)| different | (x ^ y)))
            == 0
}
