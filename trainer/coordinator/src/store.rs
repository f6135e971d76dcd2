//! The journal for asynchronous callers: one at a time, on threads that may block. What a replaced
//! coordinator asks of it is not answered.

use std::sync::{Arc, Mutex, PoisonError};

use crate::fence::{Fence, FenceError};
use crate::journal::{Journal, JournalError};
use crate::mirror::{Mirror, MirrorError};

/// A journal call that failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The journal said no.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal's copy in the bucket could not be written.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// Another coordinator was started in this one's place; or it cannot be told.
    #[error(transparent)]
    Fenced(#[from] FenceError),
    /// The thread ended before its call did: the process is shutting down.
    #[error("the journal call was given up")]
    GivenUp(#[from] tokio::task::JoinError),
}

/// A shared journal. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Store {
    journal: Arc<Mutex<Journal>>,
    mirror: Option<Arc<Mirror>>,
    fence: Fence,
}

impl Store {
    /// Shares the journal of a claimed run directory.
    pub fn new(journal: Journal, fence: Fence) -> Self {
        Self { journal: Arc::new(Mutex::new(journal)), mirror: None, fence }
    }

    /// Shares a journal that is kept in a bucket.
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

    /// Removes what the journal's copy has no use for any more.
    pub async fn tidy(&self) -> Result<(), StoreError> {
        let (journal, Some(mirror)) = (Arc::clone(&self.journal), self.mirror.clone()) else {
            return Ok(());
        };
        Ok(tokio::task::spawn_blocking(move || mirror.tidy(&journal)).await??)
    }

    /// The claim.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Makes one call. What it wrote is on the disk, or in the bucket but for samples of no batch,
    /// when this returns, and this coordinator was not replaced before it was.
    pub async fn call<T, F>(&self, call: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Journal) -> Result<T, JournalError> + Send + 'static,
    {
        let store = self.clone();
        tokio::task::spawn_blocking(move || store.call_blocking(call)).await?
    }

    /// [`Self::call`] from where it may block.
    pub fn call_blocking<T>(
        &self,
        call: impl FnOnce(&mut Journal) -> Result<T, JournalError>,
    ) -> Result<T, StoreError> {
        let (result, changed) = {
            let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
            let result = call(&mut journal)?;
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
