//! HTTP requests to a hub: revisions, file lists and file content, with retries and limits.

use std::future::Future;
use std::time::{Duration, Instant};

use reqwest::header::{AUTHORIZATION, LINK, RANGE, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::repository::is_safe;
use crate::{Checksum, HubError, RemoteFile, Repository, Settings, TokenSource};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time without a byte.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: usize = 10;
/// Largest JSON response in bytes.
const MAX_JSON: usize = 64 << 20;
/// Most files of a repository, and most pages that list them.
const MAX_FILES: usize = 100_000;
const MAX_PAGES: usize = 1_000;
/// Longest wait that a server's Retry-After is honoured for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

/// A client of one hub with one token. Clones share connections.
#[derive(Clone, Debug)]
pub struct HubClient {
    http: reqwest::Client,
    base: Url,
    pub(crate) settings: Settings,
}

/// A failed attempt.
pub(crate) enum Attempt {
    /// May succeed later; the wait is what the server asks for.
    Transient {
        detail: String,
        wait: Option<Duration>,
    },
    Fatal(HubError),
}

impl From<HubError> for Attempt {
    fn from(error: HubError) -> Self {
        Self::Fatal(error)
    }
}

impl From<reqwest::Error> for Attempt {
    fn from(error: reqwest::Error) -> Self {
        if let Some(advice) = rljob_http::untrusted(&error) {
            let url = error.url().map(ToString::to_string).unwrap_or_default();
            return Self::Fatal(HubError::Untrusted { url, advice });
        }
        Self::Transient { detail: format!("{:#}", anyhow::Error::from(error)), wait: None }
    }
}

impl HubClient {
    /// Creates a client without connecting.
    pub fn new(settings: Settings) -> Result<Self, HubError> {
        let base: Option<Url> = settings.endpoint.parse().ok();
        let base = base
            .filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host())
            .ok_or_else(|| HubError::Endpoint(settings.endpoint.clone()))?;
        rljob_http::check_authorities().map_err(HubError::Authorities)?;
        let http = rljob_http::outside_client()
            .user_agent(concat!("rljob/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            // Redirects to another host lose the Authorization header.
            .redirect(reqwest::redirect::Policy::limited(MAX_REDIRECTS))
            .https_only(base.scheme() == "https")
            .build()
            .map_err(HubError::Client)?;
        Ok(Self { http, base, settings })
    }

    /// Resolves the repository's revision to a commit.
    pub async fn resolve(&self, repository: &Repository) -> Result<String, HubError> {
        #[derive(Deserialize)]
        struct Info {
            sha: String,
        }
        let url = repository.api_url(&self.base, &["revision", &repository.revision])?;
        let (info, _): (Info, _) = self.json(repository, &url).await?;
        let is_commit =
            info.sha.len() == 40 && info.sha.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_commit {
            Ok(info.sha.to_ascii_lowercase())
        } else {
            Err(response_error(&url, format!("`{}` is not a commit", info.sha)))
        }
    }

    /// Lists all files of a commit, sorted by path.
    pub async fn files(
        &self,
        repository: &Repository,
        commit: &str,
    ) -> Result<Vec<RemoteFile>, HubError> {
        let first = repository.api_url(&self.base, &["tree", commit])?;
        let (mut url, mut files, mut pages) = (first, Vec::new(), 0_usize);
        url.set_query(Some("recursive=true"));
        loop {
            let (entries, next): (Vec<TreeEntry>, _) = self.json(repository, &url).await?;
            for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
                files.push(entry.file(repository)?);
            }
            pages = pages.saturating_add(1);
            if files.len() > MAX_FILES || pages > MAX_PAGES {
                return Err(response_error(&url, format!("more than {MAX_FILES} files")));
            }
            let Some(next) = next else { break };
            if next.origin() != self.base.origin() {
                return Err(response_error(&url, format!("the next page is at {next}")));
            }
            url = next;
        }
        files.sort_by(|left, right| left.path.cmp(&right.path));
        Ok(files)
    }

    /// Requests a file's content from `offset` on.
    pub(crate) async fn content(
        &self,
        repository: &Repository,
        commit: &str,
        file: &RemoteFile,
        offset: u64,
    ) -> Result<Response, Attempt> {
        let url = repository.file_url(&self.base, commit, &file.path)?;
        let range = (offset > 0).then(|| format!("bytes={offset}-"));
        self.get(repository, &url, range, None).await
    }

    /// Retries `attempt` until it succeeds, fails fatally or makes no progress for the patience of
    /// the settings. The attempt returns whether it made progress beside its failure.
    pub(crate) async fn retry<T, F>(
        &self,
        url: &str,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, HubError>
    where
        F: Future<Output = Result<T, (Attempt, bool)>>,
    {
        let (mut since, mut backoff) = (Instant::now(), self.settings.backoff.0);
        loop {
            let (failure, progress) = match attempt().await {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            let (detail, wait) = match failure {
                Attempt::Fatal(error) => return Err(error),
                Attempt::Transient { detail, wait } => (detail, wait),
            };
            if progress {
                (since, backoff) = (Instant::now(), self.settings.backoff.0);
            }
            let wait = wait.unwrap_or(backoff).min(MAX_RETRY_AFTER);
            if since.elapsed().saturating_add(wait) > self.settings.patience {
                let seconds = since.elapsed().as_secs();
                return Err(HubError::Unavailable { url: url.to_owned(), seconds, detail });
            }
            tracing::warn!(url, detail, "request to the hub failed; retrying");
            tokio::time::sleep(wait).await;
            backoff = backoff.saturating_mul(2).min(self.settings.backoff.1);
        }
    }

    async fn json<T: DeserializeOwned>(
        &self,
        repository: &Repository,
        url: &Url,
    ) -> Result<(T, Option<Url>), HubError> {
        let attempt = || async {
            let mut response = self.get(repository, url, None, Some(READ_TIMEOUT)).await?;
            let next = response.headers().get(LINK).and_then(|link| next_page(link.to_str().ok()?));
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await? {
                body.extend_from_slice(&chunk);
                if body.len() > MAX_JSON {
                    return Err(response_error(url, format!("more than {MAX_JSON} bytes")).into());
                }
            }
            let value = serde_json::from_slice(&body)
                .map_err(|error| response_error(url, error.to_string()))?;
            Ok((value, next))
        };
        self.retry(url.as_str(), || async { attempt().await.map_err(|failed| (failed, false)) })
            .await
    }

    async fn get(
        &self,
        repository: &Repository,
        url: &Url,
        range: Option<String>,
        timeout: Option<Duration>,
    ) -> Result<Response, Attempt> {
        let mut request = self.http.get(url.clone());
        if let Some(token) = self.settings.token.header()? {
            request = request.header(AUTHORIZATION, token);
        }
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        let response = request.send().await?;
        match response.status() {
            status if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE => {
                Ok(response)
            }
            _ => Err(self.failure(repository, url, &response)),
        }
    }

    /// Classifies an error response. The hub answers 401 also for repositories that do not exist,
    /// and names the cause in `X-Error-Code`.
    fn failure(&self, repository: &Repository, url: &Url, response: &Response) -> Attempt {
        let header = |name: &str| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
        };
        let (status, code) = (response.status(), header("x-error-code"));
        let (endpoint, name) = (self.settings.endpoint.clone(), repository.to_string());
        let token = &self.settings.token;
        if status.is_server_error() || [408, 429].contains(&status.as_u16()) {
            let seconds = header(RETRY_AFTER.as_str()).parse().ok();
            let wait = seconds.map(Duration::from_secs);
            return Attempt::Transient { detail: status.to_string(), wait };
        }
        Attempt::Fatal(match (status.as_u16(), code) {
            (_, "RevisionNotFound") => HubError::RevisionNotFound {
                repository: name,
                revision: repository.revision.clone(),
            },
            (_, "EntryNotFound") => {
                HubError::FileNotFound { repository: name, file: url.path().to_owned() }
            }
            (401 | 403, "RepoNotFound") | (404, _) => HubError::RepositoryNotFound {
                endpoint,
                repository: name,
                token: token.to_string(),
            },
            (401 | 403, code) => HubError::AccessDenied {
                endpoint,
                repository: name,
                status: status.as_u16(),
                advice: advice(token, code),
            },
            _ => response_error(url, status.to_string()),
        })
    }
}

fn advice(token: &TokenSource, code: &str) -> String {
    match (token, code) {
        (TokenSource::Anonymous, _) => {
            "the request had no token; set tokenSecretRef, or HF_TOKEN in local runs".to_owned()
        }
        (token, "GatedRepo") => {
            format!("{token} belongs to a user who has not been granted access to it")
        }
        (token, _) => format!("{token} is invalid or lacks read permission"),
    }
}

pub(crate) fn response_error(url: &Url, detail: String) -> HubError {
    HubError::Response { url: url.to_string(), detail }
}

/// The URL with `rel="next"` of a Link header.
fn next_page(link: &str) -> Option<Url> {
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    next.split_once('<')?.1.split_once('>')?.0.parse().ok()
}

/// An entry of the tree API.
#[derive(Deserialize)]
struct TreeEntry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    /// Git's id of the blob or tree.
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    /// SHA-256 of the content.
    oid: String,
    size: u64,
}

impl TreeEntry {
    fn file(self, repository: &Repository) -> Result<RemoteFile, HubError> {
        if !is_safe(&self.path) {
            return Err(HubError::UnsafeFileName {
                repository: repository.to_string(),
                name: self.path,
            });
        }
        let (size, checksum) = match self.lfs {
            Some(large) => {
                let oid = large.oid.trim_start_matches("sha256:").to_ascii_lowercase();
                (large.size, Checksum::Sha256(oid))
            }
            None => (self.size, Checksum::GitSha1(self.oid.to_ascii_lowercase())),
        };
        Ok(RemoteFile { path: self.path, size, checksum })
    }
}
