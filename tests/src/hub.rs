//! Server with the Hugging Face hub's HTTP API: revisions, paged file lists, content by redirect to
//! a content server of another origin, ranges, access tokens. Dropping the value stops it.
//!
//! Tests inject faults: truncated bodies, altered bytes, error statuses.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use parking_lot::Mutex;
use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

/// Page size of the tree API, in files.
const PAGE: usize = 3;
/// Chunk size of response bodies, in bytes.
const PIECE: usize = 1 << 14;

/// A fault of the next content request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks after this many bytes.
    Break(usize),
    /// The connection stays open but transfers nothing after this many bytes.
    Stall(usize),
    /// The first byte of the body is altered.
    Corrupt,
    /// Responds with this status instead of the body.
    Status(u16),
    /// Ignores the range: responds 200 with the whole file.
    IgnoreRange,
}

/// A request for content or for the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubRequest {
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
    /// Whether the content server received it.
    pub content_server: bool,
}

#[derive(Default)]
struct Contents {
    /// By `models/NAME` or `datasets/NAME`.
    repositories: BTreeMap<String, HostedRepository>,
    faults: VecDeque<Fault>,
    requests: Vec<HubRequest>,
}

#[derive(Default)]
struct HostedRepository {
    token: Option<String>,
    revisions: BTreeMap<String, String>,
    commits: BTreeMap<String, BTreeMap<String, HostedFile>>,
}

#[derive(Clone)]
struct HostedFile {
    bytes: Bytes,
    large: bool,
}

#[derive(Clone)]
struct Shared {
    contents: Arc<Mutex<Contents>>,
    ports: [u16; 2],
    content_server: bool,
}

/// A running server.
pub struct Hub {
    shared: Shared,
    runtime: Option<Runtime>,
}

impl Hub {
    /// Starts a server without repositories.
    pub fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("failed to start a runtime")?;
        let listeners = [listen()?, listen()?];
        let ports = [listeners[0].local_addr()?.port(), listeners[1].local_addr()?.port()];
        let shared = Shared { contents: Arc::default(), ports, content_server: false };
        for (listener, content_server) in listeners.into_iter().zip([false, true]) {
            let state = Shared { content_server, ..shared.clone() };
            let app = Router::new().fallback(serve).with_state(state);
            runtime.spawn(async move {
                axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await
            });
        }
        Ok(Self { shared, runtime: Some(runtime) })
    }

    /// URL for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.shared.ports[0])
    }

    /// Commits files to a branch and returns the commit. `repository` is `models/NAME` or
    /// `datasets/NAME`. Files above 1 KiB are in large-file storage.
    pub fn commit(&self, repository: &str, branch: &str, files: &[(&str, &[u8])]) -> String {
        let hosted = |bytes: &[u8]| HostedFile {
            bytes: Bytes::copy_from_slice(bytes),
            large: bytes.len() > 1024,
        };
        let mut hash = Sha1::new();
        for (path, bytes) in files {
            hash.update(path);
            hash.update(bytes);
        }
        let commit = format!("{:x}", hash.finalize());
        let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), hosted(bytes))).collect();
        let mut contents = self.shared.contents();
        let repository = contents.repositories.entry(repository.to_owned()).or_default();
        repository.revisions.insert(branch.to_owned(), commit.clone());
        repository.commits.insert(commit.clone(), files);
        commit
    }

    /// Makes a repository readable only with this token.
    pub fn require_token(&self, repository: &str, token: &str) {
        let mut contents = self.shared.contents();
        contents.repositories.entry(repository.to_owned()).or_default().token =
            Some(token.to_owned());
    }

    /// Injects faults into the next content requests, one each.
    pub fn inject(&self, faults: impl IntoIterator<Item = Fault>) {
        self.shared.contents().faults.extend(faults);
    }

    /// Requests so far.
    pub fn requests(&self) -> Vec<HubRequest> {
        self.shared.contents().requests.clone()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, which panics inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    fn contents(&self) -> parking_lot::MutexGuard<'_, Contents> {
        self.contents.lock()
    }
}

fn listen() -> Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("failed to listen")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(State(shared): State<Shared>, request: Request) -> Response {
    let header = |name: header::HeaderName| {
        request.headers().get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned)
    };
    let request = HubRequest {
        path: request.uri().to_string().replace("%2F", "\u{1}"),
        range: header(header::RANGE),
        authorization: header(header::AUTHORIZATION),
        content_server: shared.content_server,
    };
    let mut contents = shared.contents();
    contents.requests.push(request.clone());
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let parts: Vec<String> =
        path.split('/').skip(1).map(|part| part.replace('\u{1}', "/")).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    match parts.as_slice() {
        ["content", collection, owner, name, commit, file @ ..] if shared.content_server => {
            let repository = format!("{collection}/{owner}/{name}");
            let found = contents
                .repositories
                .get(&repository)
                .and_then(|repository| repository.commits.get(*commit)?.get(&file.join("/")))
                .cloned();
            let fault = contents.faults.pop_front();
            found.map_or_else(
                || error(404, "EntryNotFound"),
                |file| body(&request, &file, fault.as_ref()),
            )
        }
        ["api", collection, owner, name, rest @ ..] => {
            let repository = format!("{collection}/{owner}/{name}");
            contents.authorized(&repository, &request).map_or_else(
                |denied| *denied,
                |hosted| api(hosted, rest, query, &format!("http://{}{path}", shared.host())),
            )
        }
        ["datasets", owner, name, "resolve", commit, file @ ..] => {
            contents.resolve(&shared, &request, ("datasets", owner, name), commit, &file.join("/"))
        }
        [owner, name, "resolve", commit, file @ ..] => {
            contents.resolve(&shared, &request, ("models", owner, name), commit, &file.join("/"))
        }
        _ => error(404, ""),
    }
}

impl Shared {
    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }
}

impl Contents {
    /// The repository, or the hub's response to an unauthorized request.
    fn authorized(
        &self,
        repository: &str,
        request: &HubRequest,
    ) -> Result<&HostedRepository, Box<Response>> {
        // Like the hub, responds to anonymous requests for a missing repository with 401.
        let missing =
            || error(if request.authorization.is_some() { 404 } else { 401 }, "RepoNotFound");
        let hosted = self.repositories.get(repository).ok_or_else(missing)?;
        let expected = hosted.token.as_ref().map(|token| format!("Bearer {token}"));
        match (&expected, &request.authorization) {
            (None, _) => Ok(hosted),
            (Some(expected), Some(found)) if expected == found => Ok(hosted),
            (Some(_), Some(_)) => Err(Box::new(error(401, ""))),
            (Some(_), None) => Err(Box::new(error(401, "GatedRepo"))),
        }
    }

    fn resolve(
        &mut self,
        shared: &Shared,
        request: &HubRequest,
        (collection, owner, name): (&str, &str, &str),
        commit: &str,
        path: &str,
    ) -> Response {
        let file = match self.authorized(&format!("{collection}/{owner}/{name}"), request) {
            Err(denied) => return *denied,
            Ok(hosted) => hosted.commits.get(commit).and_then(|files| files.get(path)).cloned(),
        };
        match file {
            None => error(404, "EntryNotFound"),
            Some(file) if file.large => {
                let url = format!(
                    "http://127.0.0.1:{}/content/{collection}/{owner}/{name}/{commit}/{path}",
                    shared.ports[1]
                );
                (StatusCode::FOUND, [(header::LOCATION, url)]).into_response()
            }
            Some(file) => body(request, &file, None),
        }
    }
}

fn api(hosted: &HostedRepository, rest: &[&str], query: &str, url: &str) -> Response {
    match rest {
        ["revision", revision] => {
            let commit = hosted.revisions.get(*revision).map(String::as_str);
            match commit.or_else(|| hosted.commits.contains_key(*revision).then_some(*revision)) {
                Some(commit) => axum::Json(json!({"sha": commit})).into_response(),
                None => error(404, "RevisionNotFound"),
            }
        }
        ["tree", commit] => {
            let Some(files) = hosted.commits.get(*commit) else {
                return error(404, "RevisionNotFound");
            };
            let start = query.split("cursor=").nth(1).and_then(|start| start.parse().ok());
            let start: usize = start.unwrap_or(0);
            let page: Vec<_> = files.iter().skip(start).take(PAGE).map(tree_entry).collect();
            let mut headers = HeaderMap::new();
            if start + PAGE < files.len() {
                let next = format!("<{url}?recursive=true&cursor={}>; rel=\"next\"", start + PAGE);
                headers.extend(next.parse().ok().map(|next| (header::LINK, next)));
            }
            (headers, axum::Json(page)).into_response()
        }
        _ => error(404, ""),
    }
}

fn tree_entry((path, file): (&String, &HostedFile)) -> serde_json::Value {
    let blob = Sha1::new_with_prefix(format!("blob {}\0", file.bytes.len()));
    let blob = format!("{:x}", blob.chain_update(&file.bytes).finalize());
    let mut entry = json!({"type": "file", "path": path, "oid": blob, "size": file.bytes.len()});
    if file.large {
        let sha256 = format!("{:x}", Sha256::digest(&file.bytes));
        entry["oid"] = json!("0".repeat(40));
        entry["lfs"] = json!({"oid": sha256, "size": file.bytes.len(), "pointerSize": 130});
    }
    entry
}

/// Responds with a file's content from the requested offset.
fn body(request: &HubRequest, file: &HostedFile, fault: Option<&Fault>) -> Response {
    if let Some(Fault::Status(status)) = fault {
        return error(*status, "");
    }
    let range = request.range.as_deref().filter(|_| fault != Some(&Fault::IgnoreRange));
    let start =
        range.and_then(|range| range.strip_prefix("bytes=")?.split('-').next()?.parse().ok());
    let start: usize = start.unwrap_or(0);
    let total = file.bytes.len();
    if start > total {
        return error(416, "");
    }
    let mut bytes = file.bytes.slice(start..).to_vec();
    if fault == Some(&Fault::Corrupt)
        && let Some(first) = bytes.first_mut()
    {
        *first ^= 1;
    }
    let limit = match fault {
        Some(Fault::Break(limit) | Fault::Stall(limit)) => *limit,
        _ => usize::MAX,
    };
    let length = bytes.len();
    let mut pieces: Vec<std::io::Result<Bytes>> = bytes[..length.min(limit)]
        .chunks(PIECE)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    if limit < length {
        pieces.push(Err(std::io::ErrorKind::ConnectionReset.into()));
    }
    let stalls = matches!(fault, Some(Fault::Stall(_)));
    // The delay lets the client receive the pieces before a break.
    let pieces = futures::stream::iter(pieces).then(move |piece| async move {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        if stalls && piece.is_err() {
            std::future::pending::<()>().await;
        }
        piece
    });
    let (status, mut headers) = (
        if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK },
        HeaderMap::new(),
    );
    headers.insert(header::CONTENT_LENGTH, length.into());
    if range.is_some() {
        let range = format!("bytes {start}-{}/{total}", total.saturating_sub(1));
        headers.extend(range.parse().ok().map(|range| (header::CONTENT_RANGE, range)));
    }
    (status, headers, Body::from_stream(pieces)).into_response()
}

fn error(status: u16, code: &'static str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, [("x-error-code", code)]).into_response()
}
