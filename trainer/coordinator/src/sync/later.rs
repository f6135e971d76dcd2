//! Checks of weights while an engine samples.
//!
//! ```text
//!  first update of a process   receive ─▶ version ─▶ elements ─▶ resume
//!  later updates               receive ─▶ version ─▶ resume ─▶ every EVERY updates: elements
//! ```

use rljob_protocol::probe::WeightProbe;
use rljob_protocol::version::Version;

use super::{WeightSync, probes, report};
use crate::engines::EngineError;
use crate::engines::slot::Slot;

/// Updates from one check of a process to the next. A check holds the scheduler of SGLang for some
/// milliseconds.
const EVERY: u32 = 10;

/// Reads elements back after an update, while the engine samples, if that is due. An engine that
/// holds other elements, or does not answer, is replaced.
pub async fn check(sync: &WeightSync, engine: &str, version: Version, of: &[WeightProbe]) {
    let due = |slot: &mut Slot| {
        let is_due = slot.holds(version) && slot.updates_unchecked() >= EVERY;
        is_due.then(|| (slot.url.clone(), slot.updates))
    };
    let Some((url, updates)) = sync.fleet.update(engine, due).flatten() else { return };
    let result = probes::check(&sync.fleet.client, &url, of).await;
    let must_go = result.as_ref().is_err_and(EngineError::needs_replacement);
    let now = sync.clock.now();
    let is_current = sync.fleet.update(engine, |slot| {
        // Otherwise another update has replaced the weights, or the process has ended.
        let is_current = slot.updates == updates && slot.holds(version);
        if is_current && must_go {
            slot.mark_hung(now);
        } else if is_current && result.is_ok() {
            slot.checked();
        }
        is_current
    });
    match result {
        Err(error) if is_current == Some(true) && must_go => {
            report(sync, engine, version, error).await;
        }
        Err(error) => {
            let error = crate::error_line(&error);
            tracing::debug!(engine, error, "the weights were not read back");
        }
        Ok(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rljob_protocol::desired::EngineEndpoint;
    use rljob_protocol::version::Version;

    use super::Slot;
    use crate::engines::slots::Slots;

    #[test]
    fn updates_are_counted_since_the_check_of_a_process() {
        let mut slots = Slots::default();
        let engine = EngineEndpoint {
            name: "engine-0".to_owned(),
            url: "http://engine-0".to_owned(),
            uid: None,
        };
        slots.set(&[engine], Duration::ZERO);
        let slot = slots.get_mut("engine-0").unwrap();
        let update = |slot: &mut Slot, step| {
            slot.update_begins();
            slot.update_ends(Some(Version { step, attempt: 0 }), Duration::ZERO);
        };
        slot.answered("default".to_owned());
        update(slot, 1);
        assert!(slot.was_never_checked(), "without elements to check");
        slot.checked();
        (2..5).for_each(|step| update(slot, step));
        assert_eq!((slot.was_never_checked(), slot.updates_unchecked()), (false, 3));
        assert!(slot.holds(Version { step: 4, attempt: 0 }));
        assert!(!slot.holds(Version { step: 3, attempt: 0 }));
        slot.answered("step-4.attempt-0".to_owned());
        assert_eq!(slot.updates_unchecked(), 3, "the same process");
        slot.answered("default".to_owned());
        assert!(slot.was_never_checked(), "another process");
        slot.checked();
        slot.mark_hung(Duration::ZERO);
        assert!(slot.was_never_checked(), "a process that is replaced");
    }
}
