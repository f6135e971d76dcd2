//! The journal for asynchronous callers: one at a time, on threads that may block.

use std::sync::{Arc, Mutex, PoisonError};

use crate::journal::{Journal, JournalError};

/// A journal call that failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The journal said no.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The thread ended before its call did: the process is shutting down.
    #[error("the journal call was given up")]
    GivenUp(#[from] tokio::task::JoinError),
}

/// A shared journal. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Store(Arc<Mutex<Journal>>);

impl Store {
    /// Shares a journal.
    pub fn new(journal: Journal) -> Self {
        Self(Arc::new(Mutex::new(journal)))
    }

    /// Makes one call. What it wrote is on the disk when this returns.
    pub async fn call<T, F>(&self, call: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Journal) -> Result<T, JournalError> + Send + 'static,
    {
        let journal = Arc::clone(&self.0);
        Ok(tokio::task::spawn_blocking(move || call(&mut journal.lock().unwrap_or_else(PoisonError::into_inner))).await??)
    }
}
