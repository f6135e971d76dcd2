//! Scale benchmark, 1000 jobs on one operator: time until all objects exist, memory, CPU and API
//! calls while idle, and API writes per job ([`rljobs`]). Comparisons on separate, equally
//! configured control planes: plain StatefulSets ([`floor`]) and TrainJobs on Kubeflow Trainer with
//! JobSet ([`kubeflow`]).
//!
//! `RLJOB_SCALE_JOBS` changes the number of jobs.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod coordinators;
mod floor;
mod job;
mod kubeflow;
mod rljobs;
mod stage;

/// Time until all objects exist, and memory while idle after that.
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
