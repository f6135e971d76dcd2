//! Connection settings: endpoint, access token and limits.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::HeaderValue;

use crate::HubError;

/// Endpoint unless `HF_ENDPOINT` is set.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Endpoint and token of a hub. `Debug` shows the source of the token, not the token.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Base URL of the hub.
    pub endpoint: String,
    pub token: TokenSource,
    /// Time for which requests are retried while no byte arrives.
    pub patience: Duration,
    /// First and longest wait between two attempts.
    pub backoff: (Duration, Duration),
    /// Largest total size of a snapshot in bytes.
    pub max_bytes: u64,
}

impl Settings {
    /// Settings from `HF_ENDPOINT`. Without `token`, the token is that of `HF_TOKEN` or of the file
    /// `HF_TOKEN_PATH`.
    pub fn from_environment(token: Option<TokenSource>) -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        let token = match (token, variable("HF_TOKEN"), variable("HF_TOKEN_PATH")) {
            (Some(token), ..) => token,
            (None, Some(_), _) => TokenSource::Variable("HF_TOKEN"),
            (None, None, Some(path)) => TokenSource::File(path.into()),
            (None, None, None) => TokenSource::Anonymous,
        };
        Self {
            endpoint: variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            token,
            patience: Duration::from_secs(600),
            backoff: (Duration::from_secs(1), Duration::from_secs(30)),
            max_bytes: 4 << 40,
        }
    }
}

/// Source of the access token. It is read for every request, so that it can be rotated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    File(PathBuf),
    /// A mounted key of a Kubernetes Secret.
    Secret {
        path: PathBuf,
        name: String,
        key: String,
    },
    /// Name of an environment variable.
    Variable(&'static str),
    /// Requests carry no token.
    Anonymous,
}

impl TokenSource {
    /// The `Authorization` header, marked as sensitive.
    pub(crate) fn header(&self) -> Result<Option<HeaderValue>, HubError> {
        let token = match self {
            Self::Anonymous => return Ok(None),
            Self::Variable(name) => std::env::var(name).unwrap_or_default(),
            Self::File(path) | Self::Secret { path, .. } => std::fs::read_to_string(path)
                .map_err(|source| HubError::TokenFile { path: path.clone(), source })?,
        };
        let token = token.trim();
        let header = HeaderValue::from_str(&format!("Bearer {token}")).ok();
        let mut header = header
            .filter(|_| !token.is_empty())
            .ok_or_else(|| HubError::TokenContent(self.to_string()))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

impl std::fmt::Display for TokenSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(formatter, "the token in {}", path.display()),
            Self::Secret { name, key, .. } => {
                write!(formatter, "the token in key {key} of Secret {name}")
            }
            Self::Variable(name) => write!(formatter, "the token in {name}"),
            Self::Anonymous => write!(formatter, "no token"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Settings, TokenSource};

    #[test]
    fn a_token_is_trimmed_and_never_part_of_debug_output() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hf_secret\n").unwrap();
        let token = TokenSource::File(file.path().to_owned());
        let settings = Settings::from_environment(Some(token));
        let header = settings.token.header().unwrap().unwrap();
        assert_eq!(header.to_str().unwrap(), "Bearer hf_secret");
        assert!(!format!("{settings:?} {header:?} {}", settings.token).contains("hf_secret"));
        std::fs::write(file.path(), "\n").unwrap();
        let error = TokenSource::File(file.path().to_owned()).header().unwrap_err();
        assert!(error.to_string().contains("is empty or not a token"), "{error}");
    }
}
