//! Faults by subject; see the module documentation of [`super`].
//!
//! ```text
//!  fault.rs          an injectable fault, its relation to other faults
//!  processes.rs      processes of engines, coordinator, learners and supervisors
//!  verifiers.rs      verifier pods
//!  agents.rs         agents in verifier pods, their sessions and their way to the proxy
//!  pods.rs           deletion and eviction of pods
//!  overlaps.rs       processes that resume beside their successors
//!  nodes.rs          nodes, kubelets, container runtimes
//!  control_plane.rs  operator, API server, DNS
//!  job.rs            changes of the job by its user
//!  obstacles.rs      images, quotas and policies that keep pods from running
//!  coordinators.rs   coordinators that are silent, lie or flood
//! ```

use anyhow::{Result, ensure};

mod agents;
mod control_plane;
mod coordinators;
mod fault;
mod job;
mod nodes;
mod obstacles;
mod overlaps;
mod pods;
mod processes;
mod verifiers;

pub(super) use fault::Relation;
pub use fault::{Fault, Inject};

/// All faults.
const SUBJECTS: [&[Fault]; 10] = [
    processes::FAULTS,
    verifiers::FAULTS,
    agents::FAULTS,
    pods::FAULTS,
    overlaps::FAULTS,
    nodes::FAULTS,
    control_plane::FAULTS,
    job::FAULTS,
    obstacles::FAULTS,
    coordinators::FAULTS,
];

/// All faults.
pub(super) fn all() -> impl Iterator<Item = &'static Fault> {
    SUBJECTS.into_iter().flatten()
}

/// Faults whose target and name contain one of these texts, which commas separate.
pub(super) fn matching(texts: &str) -> Result<Vec<&'static Fault>> {
    let contains_any = |fault: &&'static Fault| {
        let fault = fault.to_string();
        texts.split(',').any(|text| fault.contains(text))
    };
    let found: Vec<_> = all().filter(contains_any).collect();
    ensure!(!found.is_empty(), "no fault's target and name contain one of {texts:?}");
    Ok(found)
}

/// Targets of these faults, without duplicates, in order.
pub(super) fn targets<'a>(faults: impl IntoIterator<Item = &'a Fault>) -> Vec<&'static str> {
    let mut targets = Vec::new();
    for fault in faults {
        if !targets.contains(&fault.target) {
            targets.push(fault.target);
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn faults_have_unique_names_and_are_found_by_parts_of_them() {
        let names: BTreeSet<String> = all().map(ToString::to_string).collect();
        assert_eq!(names.len(), all().count());
        assert_eq!(matching("API server stop").unwrap().len(), 1);
        assert!(matching("").unwrap().len() == names.len() && matching("none such").is_err());
    }
}
