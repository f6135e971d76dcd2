//! Errors of trackers that fail at present, for the status of the run.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Most characters of an error.
const MAX_ERROR: usize = 500;

/// The newest error of each tracker that fails, by its name. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Failures(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl Failures {
    /// Sets the error of a tracker, cut to [`MAX_ERROR`] characters.
    pub fn set(&self, tracker: &'static str, error: &str) {
        self.0.lock().insert(tracker, error.chars().take(MAX_ERROR).collect());
    }

    pub(super) fn clear(&self, tracker: &'static str) {
        self.0.lock().remove(tracker);
    }

    /// The trackers with their errors, if any fails.
    pub fn text(&self) -> Option<String> {
        let failures = self.0.lock();
        let texts = failures.iter().map(|(tracker, error)| format!("{tracker}: {error}"));
        let texts: Vec<String> = texts.collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::{Failures, MAX_ERROR};

    #[test]
    fn errors_are_named_by_tracker_cut_and_cleared() {
        let failures = Failures::default();
        assert_eq!(failures.text(), None);
        failures.set("MLflow", "refused");
        failures.set("MLflow", "no route");
        failures.set("TensorBoard", &"é".repeat(MAX_ERROR + 1));
        let long = "é".repeat(MAX_ERROR);
        let expected = format!("MLflow: no route; TensorBoard: {long}");
        assert_eq!(failures.text(), Some(expected));
        failures.clear("TensorBoard");
        assert_eq!(failures.text().as_deref(), Some("MLflow: no route"));
    }
}
