//! Engine of the jobs under chaos: the embedded engine, or the real SGLang on the CPU. Contains all
//! differences between the two.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Error, Result, bail};

use crate::{files, sglang};

/// Engine of all jobs of a chaos run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Starts within seconds and samples deterministically, so that results are compared with a
    /// baseline run.
    Embedded,
    /// Starts in about a minute, so that faults are less frequent. Its samples differ between runs,
    /// so that results are not compared.
    SGLang {
        /// Folder of its packages.
        environment: PathBuf,
    },
}

impl FromStr for Engine {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "Embedded" => Ok(Self::Embedded),
            "SGLang" => Ok(Self::SGLang { environment: files::sglang()? }),
            _ => bail!("{name:?} is neither Embedded nor SGLang"),
        }
    }
}

impl Engine {
    /// Substring of the engine processes' command lines. SGLang has three processes:
    /// `sglang.launch_server`, `sglang::scheduler` and `sglang::detokenizer`.
    pub(super) fn command(&self) -> &'static str {
        match self {
            Self::Embedded => "/rljob-engine",
            Self::SGLang { .. } => "sglang",
        }
    }

    /// Configures the job of job.yaml for this engine.
    pub(super) fn configure(&self, job: String) -> String {
        let Self::SGLang { environment } = self else { return job };
        let volume = format!(
            "{{name: sglang, mountPath: {}, readOnly: true, hostPath: {{path: {}}}}}",
            sglang::MOUNT,
            environment.display()
        );
        let inference =
            format!("image: {}, sglang: {{extraArgs: {}}}", sglang::IMAGE, sglang::FLAGS);
        job.replace("volumes: [", &format!("volumes: [{volume}, "))
            .replace("inference: {", &format!("inference: {{{inference}, "))
            // Deterministic inference of SGLang requires GPU kernels.
            .replace(", deterministic: true", "")
    }

    /// Whether jobs on this engine receive faults of a target: all faults, or for SGLang only those
    /// that affect its communication with the run.
    pub(super) fn applies_to(&self, target: &str) -> bool {
        *self == Self::Embedded
            || ["engine", "engine pod", "learner", "coordinator"].contains(&target)
    }

    /// Number of faults of a job.
    pub(super) fn faults_of_a_job(&self) -> usize {
        if *self == Self::Embedded { 50 } else { 12 }
    }

    /// Shortest and longest interval between two faults, in seconds.
    pub(super) fn pauses(&self) -> (f64, f64) {
        if *self == Self::Embedded { (0.2, 3.0) } else { (2.0, 30.0) }
    }

    /// Time limit of a step after the last fault; longer than every timeout of the job's programs.
    pub(super) fn limit(&self) -> Duration {
        Duration::from_secs(if *self == Self::Embedded { 300 } else { 900 })
    }
}
