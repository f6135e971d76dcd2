//! Connection of a session: to the reward runner of this pod or of a verifier pod, or to a session
//! that this process starts.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use axum::routing::post;
use axum::{Json, Router};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::reward::session::{AGENT_PATH, Answer, EXIT_PATH, MAX_LINE, Start, environment};
use crate::reward::verifier::VerifierError;
use crate::reward::verifier_pods::{VerifierPod, VerifierPods};

/// Where programs run.
#[derive(Clone, Debug)]
pub enum Runner {
    /// Socket of the runner in another container of the pod.
    Socket(PathBuf),
    /// Program of the runner on this machine.
    Program(PathBuf),
    /// Runners in verifier pods.
    Pods(Arc<VerifierPods>),
}

/// A running process. Dropping it closes the connection.
pub struct Session {
    requests: Box<dyn AsyncWrite + Send + Sync + Unpin>,
    answers: BufReader<Box<dyn AsyncRead + Send + Sync + Unpin>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

impl Session {
    /// Starts the program on the runner, which is that of `pod` if it is one of verifier pods.
    pub async fn open(
        runner: &Runner,
        pod: Option<&VerifierPod>,
        program: &Start,
    ) -> Result<Self, VerifierError> {
        let failed = |what: String| {
            move |error: std::io::Error| {
                VerifierError::Runner(std::io::Error::other(format!("{what}: {error}")))
            }
        };
        let mut session = match (runner, pod) {
            (Runner::Socket(path), _) => {
                let stream = UnixStream::connect(path).await;
                Self::new(stream.map_err(failed(path.display().to_string()))?)
            }
            (Runner::Program(path), _) => {
                Self::new(start(path, program).map_err(failed(path.display().to_string()))?)
            }
            (Runner::Pods(pods), Some(pod)) => {
                let stream = pods.connect(pod).await;
                Self::new(stream.map_err(failed(format!("verifier pod {}", pod.name())))?)
            }
            (Runner::Pods(_), None) => {
                return Err(failed("verifier pods".to_owned())(std::io::Error::other("no pod")));
            }
        };
        session.send(program).await?;
        Ok(session)
    }

    fn new(stream: impl AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static) -> Self {
        let (answers, requests) = tokio::io::split(stream);
        Self { requests: Box::new(requests), answers: BufReader::new(Box::new(answers)) }
    }

    pub async fn exchange(&mut self, request: &impl Serialize) -> Result<Answer, VerifierError> {
        self.send(request).await?;
        let mut line = Vec::new();
        let mut limited = (&mut self.answers).take(MAX_LINE as u64);
        limited.read_until(b'\n', &mut line).await.map_err(VerifierError::Pipe)?;
        serde_json::from_slice(&line)
            .map_err(|error| VerifierError::Runner(std::io::Error::other(error)))
    }

    /// Sends the input of an agent, and answers its requests with `proxy` until it has ended.
    pub async fn serve(
        mut self,
        input: &impl Serialize,
        proxy: Router,
    ) -> Result<Answer, VerifierError> {
        self.send(input).await?;
        let (sender, mut exited) = mpsc::channel(1);
        let exit = post(async move |Json(answer): Json<Answer>| {
            // The receiver waits until the connection is closed.
            let _ = sender.send(answer).await;
        });
        let router = Router::new().route(EXIT_PATH, exit).nest(AGENT_PATH, proxy);
        let stream = TokioIo::new(tokio::io::join(self.answers, self.requests));
        let connection = http2::Builder::new(TokioExecutor::new())
            .serve_connection(stream, TowerToHyperService::new(router));
        tokio::select! {
            Some(answer) = exited.recv() => Ok(answer),
            closed = connection => Err(VerifierError::Pipe(match closed {
                Ok(()) => std::io::ErrorKind::UnexpectedEof.into(),
                Err(error) => std::io::Error::other(error),
            })),
        }
    }

    async fn send(&mut self, message: &impl Serialize) -> Result<(), VerifierError> {
        let mut line =
            serde_json::to_vec(message).map_err(|error| VerifierError::Pipe(error.into()))?;
        line.push(b'\n');
        self.requests.write_all(&line).await.map_err(VerifierError::Pipe)?;
        self.requests.flush().await.map_err(VerifierError::Pipe)
    }
}

/// Starts a session on this machine. It ends, and kills its command, when the connection closes.
/// The command can read the session's environment, which must not contain keys.
fn start(program: &PathBuf, start: &Start) -> std::io::Result<UnixStream> {
    let (own, other) = UnixStream::pair()?;
    let other = OwnedFd::from(other.into_std()?);
    // The runtime collects its exit status.
    let _child = tokio::process::Command::new(program)
        .arg("session")
        .args(matches!(start, Start::Agent { .. }).then_some("--network"))
        .env_clear()
        .envs(environment())
        .stdin(Stdio::from(other))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(own)
}
