//! Chaos tests on a real cluster: runs jobs one after another under a seeded fault schedule and
//! monitors invariants continuously.
//!
//! ```text
//!  seed ─▶ schedule: phase × fault ─┬─▶ Testbed: processes, pods, nodes, links   targets.rs
//!          phases.rs  faults/       └─▶ Monitor: continuous invariants           monitor.rs
//!  baseline run of each workload ────▶ comparison of final results               results.rs
//!                                      faults by target and phase, violations    summary.rs
//! ```
//!
//! A fault is an entry in a table of [`faults`]: target, name, whether it may count a restart, its
//! relation to other faults, its share of draws, and a function that injects and reverts it. The
//! function blocks until the fault is over; other faults run concurrently. If there is no target,
//! it returns an error and the fault is not counted. A fault that checks what the status says
//! meanwhile returns a `Violation`, and overlaps no fault that would prevent it. For example, an
//! engine that gets little CPU time:
//!
//! ```ignore
//! Fault::new("engine", "starved", |testbed, random| {
//!     let engine = testbed.random_process(testbed.engine.command(), random)?;
//!     for _ in 0..20 {
//!         Testbed::stopped(&[engine], Duration::from_millis(200))?;
//!     }
//!     Ok(())
//! }),
//! ```
//!
//! `make chaos` runs it (`CHAOS_MINUTES`, `CHAOS_SEED`, `CHAOS_ENGINE`, `CHAOS_FAULTS`). Job n of a
//! run uses the seed `CHAOS_SEED` + n, so that a failed job is repeated by passing its seed. Every
//! third job has agents. This is the only module of the harness that knows RLJobs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

mod engine;
mod expectations;
pub mod faults;
mod impostor;
mod job;
mod monitor;
mod phases;
mod results;
mod schedule;
mod summary;
mod targets;
mod testbed;
mod workload;

pub use engine::Engine;
pub use summary::Summary;
pub use testbed::{Testbed, allow_host_path};
use workload::Workload;

/// Runs jobs under faults until the time is up, and finishes the last one. Draws only faults whose
/// target and name contain one of the texts of `only`, which commas separate.
pub fn run(minutes: f64, seed: u64, engine: Engine, only: &str) -> Result<Summary> {
    let faults = faults::matching(only)?;
    let start = Instant::now();
    let testbed = Testbed::start(engine)?;
    eprintln!("chaos: seed {seed}; cluster started after {:.0} s", start.elapsed().as_secs_f64());
    job::model(&testbed)?;
    let mut baselines = BTreeMap::new();
    eprintln!("chaos: ready after {:.0} s", start.elapsed().as_secs_f64());
    let (mut summary, chaos) = (Summary::default(), Instant::now());
    while summary.jobs == 0 || chaos.elapsed() < Duration::from_secs_f64(minutes * 60.0) {
        let seed = seed + u64::from(summary.jobs);
        let workload = Workload::of(seed, &faults);
        if testbed.engine == Engine::Embedded && !baselines.contains_key(&workload) {
            baselines.insert(workload, job::baseline(&testbed, workload)?);
        }
        let baseline = baselines.get(&workload);
        summary.add(job::run_with_faults(&testbed, seed, &faults, baseline)?);
        eprintln!(
            "chaos: {} faults, {} violations after {} jobs and {:.0} s",
            summary.faults(),
            summary.violations,
            summary.jobs,
            chaos.elapsed().as_secs_f64()
        );
    }
    Ok(summary)
}
