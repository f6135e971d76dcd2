//! The journal for asynchronous callers: one at a time, on threads that may block. What a replaced coordinator asks of it is not answered.

use std::sync::{Arc, Mutex, PoisonError};

use crate::fence::{Fence, FenceError};
use crate::journal::{Journal, JournalError};

/// A journal call that failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The journal said no.
    #[error(transparent)]
    Journal(#[from] JournalError),
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
    fence: Fence,
}

impl Store {
    /// Shares the journal of a claimed run directory.
    pub fn new(journal: Journal, fence: Fence) -> Self {
        Self { journal: Arc::new(Mutex::new(journal)), fence }
    }

    /// The claim.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Makes one call. What it wrote is on the disk when this returns, and this coordinator was not replaced before it was.
    pub async fn call<T, F>(&self, call: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Journal) -> Result<T, JournalError> + Send + 'static,
    {
        let (journal, fence) = (Arc::clone(&self.journal), self.fence.clone());
        let done = tokio::task::spawn_blocking(move || {
            let result = call(&mut journal.lock().unwrap_or_else(PoisonError::into_inner))?;
            fence.check()?;
            Ok(result)
        });
        done.await?
    }
}
