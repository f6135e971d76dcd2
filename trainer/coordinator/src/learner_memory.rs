//! Memory plans of the newest learners on GPUs, those of the trainer and of groups of
//! `trainer.groups`. The journal keeps them for the next coordinator, as learners report them once.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use rljob_crds::RLJobSpec;
use rljob_protocol::memory::MemoryPlan;

use crate::persistence::journal::JournalError;
use crate::persistence::journal::shared::{SharedJournal, SharedJournalError};

/// Key of the trainer's plan in the journal.
const KEY: &str = "memoryPlan";

/// The plans that are reported. Clones share them. `None` as a group is the trainer.
#[derive(Clone)]
pub struct LearnerMemory {
    journal: SharedJournal,
    /// By key in the journal.
    newest: Arc<Mutex<BTreeMap<String, MemoryPlan>>>,
}

impl LearnerMemory {
    /// Reads the plans of the trainer and of its group from the journal. Those that another release
    /// wrote in another form are ignored.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn open(
        journal: SharedJournal,
        spec: &RLJobSpec,
    ) -> Result<Self, SharedJournalError> {
        let group = spec.frozen_group().map(|group| key(Some(&group.name)));
        let mut newest = BTreeMap::new();
        for key in [key(None)].into_iter().chain(group) {
            let stored_key = key.clone();
            let stored = journal.call(move |journal| journal.get_state(&stored_key)).await?;
            let plan = stored.and_then(|json| serde_json::from_value(json).ok());
            newest.extend(plan.map(|plan| (key, plan)));
        }
        Ok(Self { journal, newest: Arc::new(Mutex::new(newest)) })
    }

    /// The newest plan of the trainer or a group.
    pub fn newest(&self, group: Option<&str>) -> Option<MemoryPlan> {
        self.newest.lock().get(&key(group)).cloned()
    }

    /// Replaces the plan of the trainer or a group.
    ///
    /// # Errors
    /// The journal takes no writes.
    pub async fn record(
        &self,
        group: Option<&str>,
        plan: MemoryPlan,
    ) -> Result<(), SharedJournalError> {
        let json = serde_json::to_value(&plan).map_err(|error| JournalError::Malformed {
            what: "state.value",
            source: error.into(),
        })?;
        let (key, stored_key) = (key(group), key(group));
        self.journal.call(move |journal| journal.put_state(&stored_key, &json)).await?;
        self.newest.lock().insert(key, plan);
        Ok(())
    }
}

fn key(group: Option<&str>) -> String {
    group.map_or_else(|| KEY.to_owned(), |group| format!("{KEY}/{group}"))
}
