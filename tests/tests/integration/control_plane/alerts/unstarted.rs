//! Alerts of jobs that do not start: a spec that a person must change, pods that stay pending.

use rljob_tests::Prometheus;
use rljob_tests::process::wait_until;
use serde_json::json;

use super::{Watched, watched_job};
use crate::alerts::short_rules;
use crate::control_plane::fixture::Fixture;
use crate::control_plane::operator::LIMIT;
use crate::control_plane::{cluster, merge};

#[test]
fn a_job_that_needs_a_person_fires_its_alert() {
    let mut fixture =
        Fixture::new("alerts-stalled", &json!({"spec": {"training": {"minibatches": 5}}}));
    fixture.start_operator();
    fixture.wait_for("Stalled");
    let operator = fixture.metrics_address().unwrap();
    let prometheus = Prometheus::start(cluster(), operator, &short_rules(&[])).unwrap();
    let watched = Watched { fixture, prometheus };
    watched.wait_for(&[("RLJobStalled", json!({"reason": "InvalidSpec"}))], |_| {});
}

/// The cluster has no nodes; the test starts the pods at the end.
#[test]
fn a_job_whose_pods_stay_pending_fires_its_alert_until_it_trains() {
    let mut patch = watched_job();
    merge(&mut patch, &json!({"spec": {"suspend": true}}));
    let mut fixture = Fixture::new("alerts-pending", &patch);
    fixture.pods.run.lock().are_pods_pending = true;
    fixture.start_operator();
    fixture.wait_for("Suspended");
    let operator = fixture.metrics_address().unwrap();
    let prometheus = Prometheus::start(cluster(), operator, &short_rules(&[])).unwrap();
    wait_until("a scrape of the suspended job", LIMIT, || {
        Ok(prometheus.has("rljob_job_status_condition")? && prometheus.firing()?.is_empty())
    })
    .unwrap();
    let watched = Watched { fixture, prometheus };
    watched.fixture.patch(&json!({"suspend": false}));
    watched.wait_for(&[("RLJobNotStarting", json!({}))], |_| {});
    watched.fixture.pods.run.lock().are_pods_pending = false;
    watched.wait_for(&[], Watched::train);
}
