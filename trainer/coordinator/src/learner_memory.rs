//! Memory plan of the newest learners on GPUs. The journal keeps it for the next coordinator, as
//! learners report it once.

use std::sync::Arc;

use parking_lot::Mutex;
use rljob_protocol::memory::MemoryPlan;

use crate::persistence::journal::JournalError;
use crate::persistence::journal::shared::{SharedJournal, SharedJournalError};

/// Key of the plan in the journal.
const KEY: &str = "memoryPlan";

/// The plan, once it is reported. Clones share it.
#[derive(Clone)]
pub struct LearnerMemory {
    journal: SharedJournal,
    newest: Arc<Mutex<Option<MemoryPlan>>>,
}

impl LearnerMemory {
    /// Reads the plan from the journal. One that another release wrote in another form is ignored.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn open(journal: SharedJournal) -> Result<Self, SharedJournalError> {
        let stored = journal.call(|journal| journal.get_state(KEY)).await?;
        let newest = stored.and_then(|json| serde_json::from_value(json).ok());
        Ok(Self { journal, newest: Arc::new(Mutex::new(newest)) })
    }

    /// The newest plan.
    pub fn newest(&self) -> Option<MemoryPlan> {
        self.newest.lock().clone()
    }

    /// Replaces the plan.
    ///
    /// # Errors
    /// The journal takes no writes.
    pub async fn record(&self, plan: MemoryPlan) -> Result<(), SharedJournalError> {
        let json = serde_json::to_value(&plan).map_err(|error| JournalError::Malformed {
            what: "state.value",
            source: error.into(),
        })?;
        self.journal.call(move |journal| journal.put_state(KEY, &json)).await?;
        *self.newest.lock() = Some(plan);
        Ok(())
    }
}
