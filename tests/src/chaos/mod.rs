//! Chaos on a real cluster: jobs run one after another while a schedule, drawn from a seed, lets
//! their parts fail, and what must hold is watched all the time.
//!
//! ```text
//!  seed ─▶ schedule: moment × fault ─┬─▶ Scene: processes, pods, nodes, links      scene.rs
//!          moments.rs  faults.rs     │
//!                                    └─▶ Watch: what must hold at any time         watch.rs
//!  undisturbed run ──────────────────▶ what must hold at the end                   ends.rs
//!                                      faults by part and phase, violations        tally.rs
//! ```
//!
//! A fault is a line in [`faults::FAULTS`]: the part it strikes, its name, whether it may spend a
//! restart, and a function that does it and takes it back. It returns when it is over; others
//! strike meanwhile. A fault that finds nothing to strike returns an error and is not counted. For
//! example, an engine that gets no time:
//!
//! ```ignore
//! Fault { part: "engine", name: "starved", counts: false, strike: |scene, random| {
//!     let engine = scene.one_of(scene.engine.words(), random)?;
//!     for _ in 0..20 {
//!         Scene::stopped(&[engine], Duration::from_millis(200))?;
//!     }
//!     Ok(())
//! } },
//! ```
//!
//! `make chaos` runs it (`CHAOS_MINUTES`, `CHAOS_SEED`, `CHAOS_ENGINE`); each job has the seed of
//! the one before it plus 1, so that a job that went wrong is the first one of its seed. This is
//! the one part of the harness that knows RLJobs.

use std::time::{Duration, Instant};

use anyhow::Result;

mod ends;
mod engine;
pub mod faults;
mod job;
mod moments;
mod scene;
mod schedule;
mod tally;
mod watch;

pub use engine::Engine;
pub use scene::Scene;
pub use tally::Tally;

/// Runs jobs under faults until the time is up; the last one is finished.
pub fn run(minutes: f64, seed: u64, engine: Engine) -> Result<Tally> {
    let start = Instant::now();
    let scene = Scene::set(engine)?;
    eprintln!("chaos: seed {seed}; the cluster is up after {:.0} s", start.elapsed().as_secs_f64());
    job::model(&scene)?;
    let undisturbed =
        (scene.engine == Engine::Embedded).then(|| job::undisturbed(&scene)).transpose()?;
    eprintln!("chaos: ready after {:.0} s", start.elapsed().as_secs_f64());
    let (mut tally, chaos) = (Tally::default(), Instant::now());
    while tally.jobs == 0 || chaos.elapsed() < Duration::from_secs_f64(minutes * 60.0) {
        tally.add(job::disturbed(&scene, seed + u64::from(tally.jobs), undisturbed.as_ref())?);
        eprintln!(
            "chaos: {} faults, {} violations after {} jobs and {:.0} s",
            tally.faults(),
            tally.violations,
            tally.jobs,
            chaos.elapsed().as_secs_f64()
        );
    }
    Ok(tally)
}
