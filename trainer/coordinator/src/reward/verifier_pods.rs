//! Verifier pods: their addresses from the operator's orders, and the calls that they run.
//!
//! ```text
//!  operator ── order ─▶ VerifierPods ─▶ Pool of each program ─▶ Session ── TLS ─▶ bridge of a pod
//!           ◀─ status ── load: running, waiting, needed pods
//! ```
//!
//! The operator scales the pods by the load: at once to more, and to fewer once they were not
//! needed for [`WINDOW`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rljob_http::ClientTls;
use rljob_protocol::desired::VerifierEndpoint;
use rljob_protocol::status::VerifierLoad;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time for which pods that are no longer needed are kept.
const WINDOW: Duration = Duration::from_secs(300);
/// Time until a pod that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Timeout of a connection with its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A verifier pod of the newest order.
#[derive(Debug)]
pub struct VerifierPod {
    endpoint: VerifierEndpoint,
    /// Cancelled when orders no longer list the pod.
    pub removed: CancellationToken,
    failed_at: Mutex<Option<Instant>>,
}

impl VerifierPod {
    fn new(endpoint: VerifierEndpoint) -> Arc<Self> {
        let (removed, failed_at) = (CancellationToken::new(), Mutex::default());
        Arc::new(Self { endpoint, removed, failed_at })
    }

    pub fn name(&self) -> &str {
        &self.endpoint.name
    }

    pub fn uid(&self) -> &str {
        &self.endpoint.uid
    }

    /// Avoids the pod for [`RETRY`].
    pub fn failed(&self) {
        *self.failed_at.lock() = Some(Instant::now());
    }

    pub fn is_usable(&self) -> bool {
        self.failed_at.lock().is_none_or(|at| at.elapsed() >= RETRY)
    }
}

/// The verifier pods of the job.
#[derive(Debug)]
pub struct VerifierPods {
    tls: ClientTls,
    pods: watch::Sender<Vec<Arc<VerifierPod>>>,
    programs: Mutex<Vec<Weak<Calls>>>,
    needed: Mutex<Peak>,
}

impl VerifierPods {
    pub fn new(tls: ClientTls) -> Arc<Self> {
        let (programs, needed) = (Mutex::default(), Mutex::default());
        Arc::new(Self { tls, pods: watch::Sender::default(), programs, needed })
    }

    /// Applies an order.
    pub fn set(&self, endpoints: &[VerifierEndpoint]) {
        // A coordinator that has just started does not know what was needed before.
        self.needed.lock().start(endpoints.len(), Instant::now());
        self.pods.send_if_modified(|pods| {
            if pods.iter().map(|pod| &pod.endpoint).eq(endpoints) {
                return false;
            }
            let mut old = std::mem::take(pods);
            for endpoint in endpoints {
                let known = old.iter().position(|pod| pod.endpoint == *endpoint);
                let pod = known.map(|index| old.swap_remove(index));
                pods.push(pod.unwrap_or_else(|| VerifierPod::new(endpoint.clone())));
            }
            for pod in old {
                pod.removed.cancel();
            }
            true
        });
    }

    /// The pods of the newest order, and its changes.
    pub fn subscribe(&self) -> watch::Receiver<Vec<Arc<VerifierPod>>> {
        self.pods.subscribe()
    }

    /// Counts the calls of a program of which each pod runs this many at a time.
    pub fn count_calls(&self, per_pod: u32) -> Arc<Calls> {
        let calls = Arc::new(Calls { per_pod, running: AtomicU32::new(0), all: AtomicU32::new(0) });
        self.programs.lock().push(Arc::downgrade(&calls));
        calls
    }

    /// Connects to the reward runner of a pod.
    pub async fn connect(
        &self,
        pod: &VerifierPod,
    ) -> std::io::Result<impl AsyncRead + AsyncWrite + Send + Sync + Unpin + use<>> {
        let connect = async {
            let stream = TcpStream::connect(pod.endpoint.address).await?;
            rljob_http::configure(&stream)?;
            self.tls.connect(stream).await
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connect).await?
    }

    /// The current calls, and the pods that they needed within [`WINDOW`].
    pub fn load(&self) -> VerifierLoad {
        let mut programs = self.programs.lock();
        programs.retain(|program| program.strong_count() > 0);
        let (mut load, mut needed) = (VerifierLoad::default(), 0);
        for program in programs.iter().filter_map(Weak::upgrade) {
            let all = program.all.load(Ordering::Relaxed);
            let running = program.running.load(Ordering::Relaxed).min(all);
            load.running = load.running.saturating_add(running);
            load.waiting = load.waiting.saturating_add(all.saturating_sub(running));
            needed = needed.max(all.div_ceil(program.per_pod.max(1)));
        }
        load.needed_pods = self.needed.lock().add(needed, Instant::now());
        load
    }
}

/// Calls of a program.
#[derive(Debug)]
pub struct Calls {
    per_pod: u32,
    running: AtomicU32,
    all: AtomicU32,
}

impl Calls {
    /// A call that waits or runs until this is dropped.
    pub fn begin(self: &Arc<Self>) -> Counted {
        Counted::new(self, |calls| &calls.all)
    }

    /// A call that runs until this is dropped.
    pub fn run(self: &Arc<Self>) -> Counted {
        Counted::new(self, |calls| &calls.running)
    }
}

/// A counted call.
#[derive(Debug)]
pub struct Counted {
    calls: Arc<Calls>,
    counter: fn(&Calls) -> &AtomicU32,
}

impl Counted {
    fn new(calls: &Arc<Calls>, counter: fn(&Calls) -> &AtomicU32) -> Self {
        counter(calls).fetch_add(1, Ordering::Relaxed);
        Self { calls: Arc::clone(calls), counter }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.counter)(&self.calls).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Maximum of the numbers of the last [`WINDOW`]. Numbers that a later one exceeds are dropped.
#[derive(Debug, Default)]
struct Peak {
    is_started: bool,
    /// Falling, with their times.
    numbers: VecDeque<(Instant, u32)>,
}

impl Peak {
    /// Begins with this number.
    fn start(&mut self, number: usize, now: Instant) {
        if !std::mem::replace(&mut self.is_started, true) {
            self.add(u32::try_from(number).unwrap_or(u32::MAX), now);
        }
    }

    fn add(&mut self, number: u32, now: Instant) -> u32 {
        while self.numbers.back().is_some_and(|(_, last)| *last <= number) {
            self.numbers.pop_back();
        }
        self.numbers.push_back((now, number));
        while self.numbers.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            self.numbers.pop_front();
        }
        self.numbers.front().map_or(number, |(_, peak)| *peak)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn needed_pods_rise_at_once_and_fall_after_the_window() {
        let (mut peak, start) = (Peak::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        peak.start(2, at(0));
        peak.start(7, at(1));
        let numbers = [(1, 0), (2, 5), (60, 1), (100, 3), (302, 0), (303, 0), (401, 0), (700, 0)];
        let peaks = numbers.map(|(second, number)| peak.add(number, at(second)));
        assert_eq!(peaks, [2, 5, 5, 5, 5, 3, 0, 0]);
    }
}
