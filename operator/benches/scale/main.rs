//! A thousand jobs on one operator: the time until all of their objects exist, its memory and CPU,
//! what it writes and asks when nothing changes, and what a job costs in all ([`rljobs`]). Beside
//! it, on control planes of their own that are started alike: as many plain StatefulSets
//! ([`floor`]), and TrainJobs on Kubeflow Trainer with JobSet ([`kubeflow`]).
//!
//! `RLJOB_SCALE_JOBS` sets another number of jobs, for a quick look.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod coordinators;
mod floor;
mod job;
mod kubeflow;
mod rljobs;
mod stage;

/// What one of them took until all of its objects existed, and at rest after that.
struct Seen {
    seconds: f64,
    usage: stage::Usage,
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if std::env::args().nth(1).as_deref() == Some("coordinators") {
        return runtime.block_on(coordinators::serve());
    }
    let jobs = std::env::var("RLJOB_SCALE_JOBS").ok().map_or(1000, |text| text.parse().unwrap());
    runtime.block_on(async {
        let ours = rljobs::measure(jobs).await;
        floor::measure(jobs).await;
        kubeflow::measure(jobs, &ours).await;
    });
}
