//! Bearer tokens of servers outside the job. Each is a key of a Secret: a file that is read for
//! every use, so that it can be rotated.

use std::fmt;
use std::path::{Path, PathBuf};

use reqwest::header::HeaderValue;
use rljob_crds::names::{SECRETS_MOUNT, SECRETS_VARIABLE};
use rljob_crds::service_token::{self, MAX_TOKEN};
use rljob_crds::storage::SecretKeyReference;
use tokio::io::AsyncReadExt as _;

/// Length of the shortest token that is replaced in responses. A shorter one is guessed soon, and
/// may be a part of any response.
const SHORTEST_REPLACED: usize = 8;
/// Replaces tokens in messages of servers.
const REDACTED: &str = "[token]";

/// A token that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("failed to read {secret} from {}", path.display())]
    Read { secret: String, path: PathBuf, source: std::io::Error },
    #[error(
        "{secret} is not a token: it must be one line of at most {MAX_TOKEN} visible ASCII \
         characters without spaces"
    )]
    Content { secret: String },
}

/// File with the token of a server. `Display` names the Secret and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretToken {
    reference: SecretKeyReference,
    path: PathBuf,
}

impl SecretToken {
    /// The token of a reference in the mounted folder, or in that of `RLJOB_SECRETS`.
    pub fn new(reference: &SecretKeyReference) -> Self {
        let folder = std::env::var_os(SECRETS_VARIABLE).filter(|folder| !folder.is_empty());
        Self::in_folder(reference, Path::new(&folder.unwrap_or_else(|| SECRETS_MOUNT.into())))
    }

    /// The token of a reference in a folder of files `NAME/KEY`.
    pub fn in_folder(reference: &SecretKeyReference, folder: &Path) -> Self {
        Self { reference: reference.clone(), path: folder.join(reference.file()) }
    }

    /// Reads the file, without white space at its ends.
    pub async fn read(&self) -> Result<Token, TokenError> {
        let failed =
            |source| TokenError::Read { secret: self.to_string(), path: self.path.clone(), source };
        let file = tokio::fs::File::open(&self.path).await.map_err(failed)?;
        let mut bytes = Vec::new();
        let length = file.take(MAX_TOKEN.saturating_add(1)).read_to_end(&mut bytes).await;
        length.map_err(failed)?;
        let header = |text: &str| HeaderValue::from_str(&format!("Bearer {text}")).ok();
        let read = service_token::token(&bytes).and_then(|text| Some((text, header(text)?)));
        let (text, mut header) =
            read.ok_or_else(|| TokenError::Content { secret: self.to_string() })?;
        header.set_sensitive(true);
        Ok(Token { text: text.to_owned(), header })
    }
}

impl fmt::Display for SecretToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SecretKeyReference { name, key } = &self.reference;
        write!(formatter, "key {key} of Secret {name}")
    }
}

/// A token. `Debug` does not show it.
pub struct Token {
    text: String,
    header: HeaderValue,
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(…)")
    }
}

impl Token {
    /// The token, for clients that build the header.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Value of the header `Authorization`, marked as sensitive.
    pub fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    /// A message of a server, which may repeat the request, without the token.
    pub fn redact(&self, message: &str) -> String {
        message.replace(&self.text, REDACTED)
    }

    /// As [`Self::redact`], for a successful result, which may contain any text.
    pub fn redact_result(&self, text: String) -> String {
        if self.text.len() < SHORTEST_REPLACED { text } else { self.redact(&text) }
    }

    /// A successful response, which may repeat the request, for samples and for messages about it.
    pub fn redact_response(&self, response: Vec<u8>) -> Vec<u8> {
        let text = String::from_utf8_lossy(&response);
        if self.text.len() < SHORTEST_REPLACED || !text.contains(&self.text) {
            return response;
        }
        self.redact(&text).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reference() -> SecretKeyReference {
        serde_json::from_value(json!({"name": "calculator"})).unwrap()
    }

    #[tokio::test]
    async fn a_token_is_read_again_for_every_use_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("calculator")).unwrap();
        let file = folder.path().join("calculator/token");
        let secret = SecretToken::in_folder(&reference(), folder.path());
        for text in ["first-token", "second-token"] {
            std::fs::write(&file, format!("{text}\n")).unwrap();
            let token = secret.read().await.unwrap();
            let header = token.header();
            assert_eq!(header.to_str().unwrap(), format!("Bearer {text}"));
            assert_eq!(format!("{token:?} {header:?}"), "Token(…) Sensitive");
            assert_eq!(token.redact(&format!("no user has {text}")), "no user has [token]");
        }
    }

    #[test]
    fn responses_keep_short_tokens_and_bytes_that_are_no_text() {
        let token = |text: &str| Token { text: text.into(), header: HeaderValue::from_static("") };
        let read = |text: &str, response: &[u8]| token(text).redact_response(response.to_vec());
        assert_eq!(read("1", b"{\"reward\": 1}"), b"{\"reward\": 1}");
        assert_eq!(read("first-token", b"\xff first"), b"\xff first");
        assert_eq!(read("first-token", b"<p>first-token</p>"), b"<p>[token]</p>");
    }

    #[tokio::test]
    async fn unusable_files_are_errors_that_name_secret_and_key_without_the_content() {
        let folder = tempfile::tempdir().unwrap();
        let secret = SecretToken::in_folder(&reference(), folder.path());
        let missing = crate::error_line(&secret.read().await.unwrap_err());
        let path = folder.path().join("calculator/token");
        let expected = format!(
            "failed to read key token of Secret calculator from {}: No such file or directory \
             (os error 2)",
            path.display()
        );
        assert_eq!(missing, expected);
        std::fs::create_dir(folder.path().join("calculator")).unwrap();
        let long = "a".repeat(1 + (64 << 10));
        for content in ["", " \n", "two words", "two\nlines", "\u{fc}", long.as_str()] {
            std::fs::write(&path, content).unwrap();
            let error = secret.read().await.unwrap_err().to_string();
            assert_eq!(
                error,
                "key token of Secret calculator is not a token: it must be one line of at most \
                 65536 visible ASCII characters without spaces"
            );
        }
    }
}
