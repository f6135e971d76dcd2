//! Shared journal for asynchronous callers: serializes calls on blocking threads, saves them to the
//! bucket's copy and rejects those of a superseded coordinator.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Journal, JournalError};
use crate::persistence::fence::{Fence, FenceError};
use crate::persistence::mirror::{Mirror, MirrorError};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

#[derive(Debug, thiserror::Error)]
pub enum SharedJournalError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// This coordinator was superseded, or the fence cannot be read.
    #[error(transparent)]
    Fenced(#[from] FenceError),
    /// The process is shutting down, or the call panicked.
    #[error("the journal call did not complete")]
    Task(#[from] JoinError),
}

/// Time for which a failure counts. Calls that failed are repeated sooner.
const RECENT: Duration = Duration::from_secs(30);

/// A shared journal. Clones refer to the same journal.
#[derive(Clone, Debug)]
pub struct SharedJournal {
    journal: Arc<Mutex<Journal>>,
    mirror: Option<Arc<Mirror>>,
    fence: Fence,
    /// Cancelled by the first call that finds the file damaged.
    damaged: CancellationToken,
    /// Message of the first call that panicked.
    panicked: watch::Sender<Option<String>>,
    /// Time and cause of the newest call that the storage failed.
    failure: Arc<Mutex<Option<(Instant, String)>>>,
}

impl SharedJournal {
    /// Shares the journal of a claimed run directory.
    pub fn new(journal: Journal, fence: Fence) -> Self {
        Self {
            journal: Arc::new(Mutex::new(journal)),
            mirror: None,
            fence,
            damaged: CancellationToken::new(),
            panicked: watch::channel(None).0,
            failure: Arc::default(),
        }
    }

    /// Shares a journal with a copy in a bucket.
    pub fn mirrored(journal: Journal, mirror: Mirror, fence: Fence) -> Self {
        Self { mirror: Some(Arc::new(mirror)), ..Self::new(journal, fence) }
    }

    /// Completes when another coordinator has written the journal in the bucket.
    pub async fn replaced(&self) {
        match &self.mirror {
            Some(mirror) => mirror.replaced.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Completes when a call has found the file damaged.
    pub async fn damaged(&self) {
        self.damaged.cancelled().await;
    }

    /// Waits until a call has panicked. Returns its message.
    pub async fn panicked(&self) -> String {
        let mut messages = self.panicked.subscribe();
        let message = messages.wait_for(Option::is_some).await.map(|message| message.clone());
        match message {
            Ok(Some(message)) => message,
            _ => std::future::pending().await,
        }
    }

    /// Why the storage failed a call within [`RECENT`].
    pub fn failure(&self, now: Instant) -> Option<String> {
        let failure = self.failure.lock();
        let (at, cause) = failure.as_ref()?;
        (now.saturating_duration_since(*at) < RECENT).then(|| cause.clone())
    }

    /// Removes objects of the bucket that the journal no longer needs.
    pub async fn tidy(&self) -> Result<(), SharedJournalError> {
        let (journal, Some(mirror)) = (Arc::clone(&self.journal), self.mirror.clone()) else {
            return Ok(());
        };
        Ok(tokio::task::spawn_blocking(move || mirror.tidy(&journal)).await??)
    }

    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Runs one call. When this returns, its writes are on disk (in a bucket: except samples of no
    /// batch), and this coordinator was not superseded before they were.
    pub async fn call<T, F>(&self, call: F) -> Result<T, SharedJournalError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Journal) -> Result<T, JournalError> + Send + 'static,
    {
        let journal = self.clone();
        let called = tokio::task::spawn_blocking(move || journal.call_blocking(call)).await;
        called.inspect_err(|error| {
            if error.is_panic() {
                self.panicked.send_replace(Some(error.to_string()));
            }
        })?
    }

    /// [`Self::call`] for blocking threads.
    pub fn call_blocking<T>(
        &self,
        call: impl FnOnce(&mut Journal) -> Result<T, JournalError>,
    ) -> Result<T, SharedJournalError> {
        let (result, changed) = {
            let mut journal = self.journal.lock();
            let result = call(&mut journal).inspect_err(|error| {
                if error.is_damage() {
                    tracing::error!(%error, "the journal is damaged");
                    self.damaged.cancel();
                } else if error.is_of_storage() {
                    let failure = (Instant::now(), crate::error_line(error));
                    *self.failure.lock() = Some(failure);
                }
            })?;
            (
                result,
                self.mirror
                    .as_ref()
                    .map(|mirror| Ok::<_, JournalError>((mirror, journal.has_changed()?)))
                    .transpose()?,
            )
        };
        if let Some((mirror, true)) = changed {
            mirror.save(&self.journal)?;
        }
        self.fence.check()?;
        Ok(result)
    }
}
