//! What the samples of a job under chaos are: completions, or conversations of agents in verifier
//! pods. Both have rewards of programs there.

use super::faults::Fault;

/// Settings of rollouts in job.yaml, and those of agents. Each sample of an agent starts a process,
/// so that batches are smaller.
const COMPLETIONS: &str = "rollout: {batchSize: 16, maxNewTokens: 6}";
const AGENTS: &str = "rollout:
    batchSize: 2
    maxNewTokens: 6
    workflow:
      agent:
        command: [/usr/bin/python3, -I, -S, /data/agent.py]
        maxTurns: 2
        timeoutSeconds: 60
        retries: 100
        processes: 8";
/// Targets of faults that exist in jobs with agents only.
const TARGETS: [&str; 2] = ["agent", "proxy"];

/// Target of faults of the pods that run rewards and agents.
const VERIFIERS: &str = "verifier pod";

/// Kind of the samples of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Workload {
    Completions,
    Agents,
}

impl Workload {
    /// Every third job has agents, and every job if all of the faults are those of verifier pods
    /// and agents.
    pub(super) fn of(seed: u64, faults: &[&Fault]) -> Self {
        let is_of_agents =
            |fault: &&Fault| TARGETS.contains(&fault.target) || fault.target == VERIFIERS;
        let needs_agents = faults.iter().any(|fault| TARGETS.contains(&fault.target));
        if seed % 3 == 1 || needs_agents && faults.iter().all(is_of_agents) {
            Self::Agents
        } else {
            Self::Completions
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Completions => "completions",
            Self::Agents => "agents",
        }
    }

    /// Configures the job of job.yaml for this workload.
    pub(super) fn configure(self, job: &str) -> String {
        match self {
            Self::Completions => job.to_owned(),
            Self::Agents => job.replace(COMPLETIONS, AGENTS),
        }
    }

    /// Whether jobs of this workload have the target of a fault.
    pub(super) fn has(self, target: &str) -> bool {
        self == Self::Agents || !TARGETS.contains(&target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::faults::{all, matching};

    #[test]
    fn jobs_with_agents_have_more_targets() {
        let job = include_str!("job.yaml");
        assert!(Workload::Agents.configure(job).contains("agent.py"));
        let missing = |target: &str| !all().any(|fault| fault.target == target);
        assert!(!TARGETS.iter().any(|target| missing(target)));
        assert!(Workload::Agents.has("agent") && !Workload::Completions.has("agent"));
        let of = |texts: &str| Workload::of(3, &matching(texts).unwrap());
        assert_eq!(of(""), Workload::Completions);
        assert_eq!(of("verifier pod"), Workload::Completions);
        assert_eq!(of("agent,proxy,verifier pod"), Workload::Agents);
    }
}
