//! Requests for completions. Samples that are asked for while a request is being sent to their
//! engine travel together in the next one:
//!
//! ```text
//!  sample a ──▶ POST /generate [a]           a is alone: nothing was being sent
//!  sample b ─┐
//!  sample c ─┼▶ POST /generate [b, c, d] ──▶ events with an index ──▶ output of b, c or d
//!  sample d ─┘
//! ```
//! SGLang's server needs about 1.5 ms of one core for a request and a quarter of that for a sample
//! of a joint one. A sample that is no longer wanted is aborted alone.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use hyper::StatusCode;
use parking_lot::Mutex;
use rljob_protocol::sglang::{AbortRequest, GenerateRequest, GenerateRequests};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::engines::error::{CONTROL_TIMEOUT, EngineError, GENERATE};
use crate::engines::output::{self, Output};
use crate::engines::received;
use crate::engines::stream::Events;
use crate::engines::streams::OpenStream;
use crate::engines::transport::{Call, Transport};
use crate::tokens::Token;

/// Most samples of a request.
const JOINT: usize = 16;
/// Most requests to an engine whose responses have not begun.
const SENDING: usize = 2;
/// Fixed part of the deadline of a request; each token of its longest completion adds a second.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Requests for completions to all engines.
pub struct Completions {
    transport: Transport,
    api: Token,
    admin: Token,
    engines: Mutex<HashMap<String, Queue>>,
}

/// Samples of an engine that are not requested yet.
#[derive(Default)]
struct Queue {
    /// Requests whose responses have not begun.
    sending: usize,
    samples: VecDeque<Sample>,
}

/// A sample until its completion has ended.
struct Sample {
    request: Arc<GenerateRequest>,
    output: Output,
    ended: Option<oneshot::Sender<Result<(), EngineError>>>,
    /// Whether the engine has ended the completion.
    complete: Arc<AtomicBool>,
    /// Cancelled when no caller waits for the sample any more.
    unwanted: CancellationToken,
    /// Whether it is requested without others.
    alone: bool,
    /// The engine's weights do not change while the request is open.
    _open: OpenStream,
}

impl Sample {
    fn end(&mut self, result: Result<(), EngineError>) {
        self.complete.store(result.is_ok(), Ordering::Release);
        if let Some(ended) = self.ended.take() {
            // The caller may have given up.
            let _ = ended.send(result);
        }
    }

    /// The sample in a separate request, with another id: SGLang aborts those of a response that
    /// has ended, and what they are a prefix of, two seconds later.
    fn alone(mut self) -> Self {
        let request = Arc::make_mut(&mut self.request);
        request.rid = format!("alone.{}", request.rid);
        self.alone = true;
        self
    }

    fn joins(&self, other: &Self) -> bool {
        let alone = self.alone || other.alone;
        !alone && self.request.extra_key == other.request.extra_key
    }
}

/// Counts a request until its response begins.
struct Sending {
    completions: Arc<Completions>,
    url: String,
}

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(queue) = self.completions.engines.lock().get_mut(&self.url) {
            queue.sending = queue.sending.saturating_sub(1);
        }
        self.completions.send_waiting(&self.url);
    }
}

impl Completions {
    pub fn new(transport: Transport, api: Token, admin: Token) -> Arc<Self> {
        Arc::new(Self { transport, api, admin, engines: Mutex::default() })
    }

    /// Streams a completion into `output`, which keeps what was received before an error or a
    /// cancellation.
    pub async fn generate(
        self: &Arc<Self>,
        url: &str,
        request: Arc<GenerateRequest>,
        output: Output,
        open: OpenStream,
    ) -> Result<(), EngineError> {
        let (ended, result) = oneshot::channel();
        let unwanted = CancellationToken::new();
        let _wanted = unwanted.clone().drop_guard();
        let sample = Sample {
            request,
            output,
            ended: Some(ended),
            complete: Arc::default(),
            unwanted,
            alone: false,
            _open: open,
        };
        self.engines.lock().entry(url.to_owned()).or_default().samples.push_back(sample);
        self.send_waiting(url);
        result.await.unwrap_or_else(|_| Err(EngineError::Aborted("it is not requested".to_owned())))
    }

    /// Forgets engines for which `exists` is false.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        self.engines.lock().retain(|url, _| exists(url));
    }

    /// Requests waiting samples, unless other requests are being sent.
    fn send_waiting(self: &Arc<Self>, url: &str) {
        while let Some(samples) = self.next(url) {
            let (completions, url) = (Arc::clone(self), url.to_owned());
            tokio::spawn(async move { completions.request(&url, samples).await });
        }
    }

    /// The samples of the next request, which counts as being sent.
    fn next(&self, url: &str) -> Option<Vec<Sample>> {
        let mut engines = self.engines.lock();
        let queue = engines.get_mut(url)?;
        if queue.sending >= SENDING {
            return None;
        }
        queue.samples.retain(|sample| !sample.unwanted.is_cancelled());
        let first = queue.samples.pop_front()?;
        let joining = queue.samples.iter().take(JOINT - 1).take_while(|next| next.joins(&first));
        let others = joining.count();
        let joint = std::iter::once(first).chain(queue.samples.drain(..others)).collect();
        queue.sending = queue.sending.saturating_add(1);
        Some(joint)
    }

    /// Requests samples and waits until they have ended.
    async fn request(self: Arc<Self>, url: &str, mut samples: Vec<Sample>) {
        let sending = Sending { completions: Arc::clone(&self), url: url.to_owned() };
        let handles: Vec<_> = samples.iter().map(Handle::new).collect();
        let result = tokio::select! {
            result = self.stream(url, &handles, &mut samples, sending) => result,
            () = self.abort_unwanted(url, &handles) => return,
        };
        self.settle(url, samples, result);
    }

    /// Streams the response into the outputs of the samples.
    async fn stream(
        &self,
        url: &str,
        handles: &[Handle],
        samples: &mut [Sample],
        sending: Sending,
    ) -> Result<(), EngineError> {
        let requests: Vec<_> = handles.iter().map(|handle| &*handle.request).collect();
        let call = match requests.as_slice() {
            [only] => Call::post(GENERATE, &self.api, *only)?,
            several => Call::post(GENERATE, &self.api, &GenerateRequests::new(several))?,
        };
        let longest = requests.iter().map(|request| request.sampling_params.max_new_tokens).max();
        let sampling = Duration::from_secs(longest.unwrap_or_default().into());
        let bytes = samples.iter().map(|sample| sample.output.max_bytes());
        let mut events = Events::new(bytes.fold(0, usize::saturating_add));
        let take = |bytes: &[u8]| events.push(bytes, |event| take(event, samples));
        let deadline = TIMEOUT.saturating_add(sampling);
        self.transport.stream(url, &call, deadline, || drop(sending), take).await
    }

    /// Aborts incomplete samples that are unwanted. Returns if all are unwanted and one is
    /// incomplete: the caller closes the connection, and the engine aborts the rest.
    async fn abort_unwanted(self: &Arc<Self>, url: &str, handles: &[Handle]) {
        let mut unwanted: FuturesUnordered<_> = handles.iter().map(Handle::unwanted).collect();
        while let Some(handle) = unwanted.next().await {
            if handle.complete.load(Ordering::Acquire) {
                continue;
            }
            if handles.iter().all(|handle| handle.unwanted.is_cancelled()) {
                return;
            }
            let (completions, url) = (Arc::clone(self), url.to_owned());
            let rid = handle.request.rid.clone();
            tokio::spawn(async move { completions.abort(&url, rid).await });
        }
        // All are complete, and the response is about to end.
        std::future::pending::<()>().await;
    }

    async fn abort(&self, url: &str, rid: String) {
        let body = AbortRequest { rid, abort_all: false };
        let aborted = async {
            let call = Call::post("/abort_request", &self.admin, &body)?;
            self.transport.exchange(url, &call, CONTROL_TIMEOUT).await
        };
        if let Err(error) = aborted.await {
            let error = crate::error_line(&error);
            tracing::debug!(url, rid = body.rid, error, "failed to abort a sample");
        }
    }

    /// Ends the samples of a response that has ended. If the engine rejected a joint request, those
    /// without tokens are requested alone, so that only the one at fault fails; the others continue
    /// with their tokens. Another error is that of one sample, so that the engine is blamed once.
    fn settle(
        self: &Arc<Self>,
        url: &str,
        mut samples: Vec<Sample>,
        result: Result<(), EngineError>,
    ) {
        let is_joint = samples.len() > 1;
        samples.retain(|sample| sample.ended.is_some());
        let rejected = is_joint
            && matches!(result, Err(EngineError::Rejected { status: StatusCode::BAD_REQUEST, .. }));
        if rejected && let Some(queue) = self.engines.lock().get_mut(url) {
            let again = samples.extract_if(.., |sample| sample.output.is_empty());
            queue.samples.extend(again.map(Sample::alone));
        }
        self.send_waiting(url);
        let failed = result.is_err();
        let mut own = result.err().filter(|_| !rejected);
        for sample in &mut samples {
            sample.end(if failed { Err(own.take().unwrap_or(EngineError::Joint)) } else { Ok(()) });
        }
    }
}

/// What is known of a sample while its response streams.
struct Handle {
    request: Arc<GenerateRequest>,
    complete: Arc<AtomicBool>,
    unwanted: CancellationToken,
}

impl Handle {
    fn new(sample: &Sample) -> Self {
        Self {
            request: Arc::clone(&sample.request),
            complete: Arc::clone(&sample.complete),
            unwanted: sample.unwanted.clone(),
        }
    }

    async fn unwanted(&self) -> &Self {
        self.unwanted.cancelled().await;
        self
    }
}

/// Appends an event to the output of its sample.
fn take(event: &[u8], samples: &mut [Sample]) -> Result<(), EngineError> {
    let answer = output::parse(event)?;
    let index = answer.index.unwrap_or(0);
    let Some(sample) = samples.get_mut(index) else {
        return Err(received::invalid(format!("an event has index {index}")));
    };
    match sample.output.push(answer) {
        Ok(()) if !sample.output.is_finished() => {}
        ended => sample.end(ended),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
