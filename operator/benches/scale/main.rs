//! Scale benchmark, 1000 jobs on one operator: time until all objects exist, memory, CPU and API
//! calls while idle, and API writes per job ([`rljobs`]). Comparisons on separate, equally
//! configured control planes: plain StatefulSets ([`floor`]) and TrainJobs on Kubeflow Trainer with
//! JobSet ([`kubeflow`]).
//!
//! With the argument `upgrade`, only an upgrade of the chart with 200 running jobs ([`upgrade`]);
//! with `scrape`, only the metrics of running jobs.
//! `RLJOB_SCALE_JOBS` changes the number of jobs.

#![expect(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

mod coordinators;
mod floor;
mod job;
mod kubeflow;
mod operator;
mod rljobs;
mod stage;
mod upgrade;

/// Time until all objects exist, and memory while idle after that.
struct Seen {
    seconds: f64,
    usage: stage::Usage,
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mode = std::env::args().nth(1);
    let is_upgrade = mode.as_deref() == Some("upgrade");
    if mode.as_deref() == Some("coordinators") {
        return runtime.block_on(coordinators::serve());
    }
    let default = if is_upgrade { 200 } else { 1000 };
    let jobs = std::env::var("RLJOB_SCALE_JOBS").ok().map_or(default, |text| text.parse().unwrap());
    runtime.block_on(async {
        if is_upgrade {
            return upgrade::measure(jobs).await;
        }
        if mode.as_deref() == Some("scrape") {
            return rljobs::measure_scrape(jobs).await;
        }
        let ours = rljobs::measure(jobs).await;
        floor::measure(jobs).await;
        kubeflow::measure(jobs, &ours).await;
    });
}
