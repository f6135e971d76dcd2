//! Alerts of operators: a watch that fails, and the leader of one of two releases that ends.

use rljob_tests::process::wait_until;
use rljob_tests::proxy::{Effect, Verb};
use rljob_tests::{Namespace, Prometheus};
use serde_json::{Value, json};

use super::{Watched, wait_for_alerts, watched_job};
use crate::alerts::short_rules;
use crate::control_plane::cluster;
use crate::control_plane::fixture::Fixture;
use crate::control_plane::operator::{LIMIT, Operator, SYSTEM};
use crate::control_plane::releases::start_release;

#[test]
fn a_watch_that_fails_fires_the_alert_of_the_operator_until_it_works() {
    let mut fixture = Fixture::new("alerts-watch", &watched_job());
    let namespace = fixture.namespace.name.clone();
    fixture.proxy.inject(Box::new(move |call| {
        let is_of_pods = call.resource == "pods" && call.name.is_empty();
        let reads = [Verb::Read, Verb::Watch].contains(&call.verb);
        (is_of_pods && reads && call.namespace == namespace).then_some(Effect::Respond(500))
    }));
    fixture.start_operator();
    let operator = fixture.metrics_address().unwrap();
    let prometheus = Prometheus::start(cluster(), operator, &short_rules(&[])).unwrap();
    let watched = Watched { fixture, prometheus };
    let failing = json!({"namespace": SYSTEM, "name": null, "resource": "pods"});
    watched.wait_for(&[("RLJobOperatorWatchFailing", failing)], Watched::train);
    watched.fixture.proxy.heal();
    watched.wait_for(&[], Watched::train);
}

#[test]
fn the_end_of_a_leader_fires_the_alert_of_its_namespace_until_a_standby_leads() {
    let [first, second] =
        ["alerts-a", "alerts-b"].map(|prefix| Namespace::create(cluster(), prefix).unwrap());
    let leader = start_release(cluster(), &first.name);
    let standby = Operator::start_deployed(cluster(), &first.name);
    let other = start_release(cluster(), &second.name);
    let operators = [(&leader, &first), (&standby, &first), (&other, &second)]
        .map(|(operator, namespace)| (operator.metrics_address(), namespace.name.as_str()));
    let prometheus = Prometheus::with_pods(cluster(), &operators, &[], &short_rules(&[])).unwrap();
    wait_until("scrapes of two leaders and a standby", LIMIT, || {
        let are_scraped =
            prometheus.series("rljob_leader")? == 3 && prometheus.series("rljob_leader == 1")? == 2;
        Ok(are_scraped && prometheus.firing()?.is_empty())
    })
    .unwrap();

    drop(leader);
    let down: Value = json!({
        "alertname": "RLJobOperatorDown", "severity": "critical", "namespace": first.name,
    });
    wait_for_alerts(&prometheus, &[down], || {}).unwrap();
    wait_for_alerts(&prometheus, &[], || {}).unwrap();
}
