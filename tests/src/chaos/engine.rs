//! What serves the jobs under chaos: the embedded engine, or the real SGLang on the CPU. Only here
//! is known how the two differ.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail};

use super::faults::Fault;
use crate::sglang;

/// The engine of every job of a run of the tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Seconds to its first token, and the same tokens whatever happens: jobs are compared with one
    /// that nothing disturbs.
    Embedded,
    /// A minute to its first token, so that faults are few and far between. Its samples are drawn
    /// anew each time: nothing is compared.
    SGLang {
        /// The folder of its packages.
        environment: PathBuf,
    },
}

impl FromStr for Engine {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "Embedded" => Ok(Self::Embedded),
            "SGLang" => Ok(Self::SGLang {
                environment: sglang::environment()
                    .context("SGLang 0.5.12 is not laid out here; `make setup` says why")?,
            }),
            _ => bail!("{name:?} is neither Embedded nor SGLang"),
        }
    }
}

impl Engine {
    /// Words of its processes' command lines. SGLang has three: `sglang.launch_server`, which
    /// answers, `sglang::scheduler` and `sglang::detokenizer`.
    pub(super) fn words(&self) -> &'static str {
        match self {
            Self::Embedded => "/rljob-engine",
            Self::SGLang { .. } => "sglang",
        }
    }

    /// The job of job.yaml on this engine.
    pub(super) fn serve(&self, job: String) -> String {
        let Self::SGLang { environment } = self else { return job };
        let volume = format!(
            "{{name: sglang, mountPath: {}, readOnly: true, hostPath: {{path: {}}}}}",
            sglang::MOUNT,
            environment.display()
        );
        let inference =
            format!("engine: SGLang, image: {}, extraArgs: {}", sglang::IMAGE, sglang::FLAGS);
        job.replace("volumes: [", &format!("volumes: [{volume}, "))
            .replace("inference: {", &format!("inference: {{{inference}, "))
            // With it SGLang needs kernels of a GPU.
            .replace(", deterministic: true", "")
    }

    /// Whether a fault is one for a job on this engine: all of them, or those that concern how a
    /// run and SGLang speak with each other.
    pub(super) fn meets(&self, fault: &Fault) -> bool {
        *self == Self::Embedded
            || ["engine", "engine pod", "learner", "coordinator"].contains(&fault.part)
    }

    /// Faults of a job: as many as it survives within a few minutes.
    pub(super) fn faults_of_a_job(&self) -> usize {
        if *self == Self::Embedded { 50 } else { 12 }
    }

    /// Shortest and longest time between two faults, in seconds.
    pub(super) fn pauses(&self) -> (f64, f64) {
        if *self == Self::Embedded { (0.2, 3.0) } else { (2.0, 30.0) }
    }

    /// Time that a disturbed job may take after its last fault: waits of the job's programs are
    /// bounded by less.
    pub(super) fn limit(&self) -> Duration {
        Duration::from_secs(if *self == Self::Embedded { 300 } else { 900 })
    }
}
