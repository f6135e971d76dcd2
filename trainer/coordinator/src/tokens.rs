//! Bearer tokens, one file each, reread periodically for rotation and never logged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// Time after which the file of a token is read again.
const REREAD: Duration = Duration::from_secs(10);

/// A token file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("failed to read the token `{}`", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// Nothing is in it.
    #[error("the token `{}` is empty", .0.display())]
    Empty(PathBuf),
}

/// A token in a file. Clones share the value.
#[derive(Clone)]
pub struct Token {
    path: Arc<PathBuf>,
    read: Arc<Mutex<(Instant, String)>>,
}

impl Token {
    /// Reads the token `name` of a folder of tokens.
    pub fn open(folder: &Path, name: &str) -> Result<Self, TokenError> {
        let path = folder.join(name);
        let text = read(&path)?;
        Ok(Self { path: Arc::new(path), read: Arc::new(Mutex::new((Instant::now(), text))) })
    }

    /// The token's text. If the file cannot be reread, the previous text is kept.
    pub fn text(&self) -> String {
        let mut guard = self.read.lock();
        if guard.0.elapsed() > REREAD {
            guard.0 = Instant::now();
            match read(&self.path) {
                Ok(text) => guard.1 = text,
                Err(error) => tracing::warn!(%error, "failed to reread a token; using the \
                    previous one"),
            }
        }
        guard.1.clone()
    }

    /// Whether `presented` is the token. Takes the same time wherever the two differ: digests are
    /// compared, and all of their bytes.
    pub fn matches(&self, presented: &str) -> bool {
        let (own, other) = (Sha256::digest(self.text()), Sha256::digest(presented));
        own.iter().zip(other.iter()).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
    }
}

fn read(path: &Path) -> Result<String, TokenError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
    let text = text.trim();
    if text.is_empty() { Err(TokenError::Empty(path.to_owned())) } else { Ok(text.to_owned()) }
}
