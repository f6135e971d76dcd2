//! Gangs of the scheduler of Kubernetes.

use std::time::{Duration, Instant};

use rljob_tests::process::wait_until;
use rljob_tests::{Cluster, Namespace};
use serde_json::json;

use super::super::operator::{ACCOUNT, LIMIT, OWN, field, namespace_in, patch, wait_for_condition};
use super::{
    SIZE, add_node, gangs, install, members, placed, pod_group, remove_pods, start, suspend,
    wait_for_least, wait_until_placed,
};

const GROUP: &str = "scheduling.k8s.io";
/// Time in which the scheduler would have placed pods that it places one by one.
const SETTLED: Duration = Duration::from_secs(5);

/// Asserts that no member gets a node for a while.
fn assert_none_is_placed(namespace: &Namespace) {
    let pods = || namespace.kubectl.run(&["get", "pods", OWN, "--output=name"]);
    wait_until("all pods", LIMIT, || Ok(pods()?.lines().count() == SIZE + 1)).unwrap();
    let started = Instant::now();
    while started.elapsed() < SETTLED {
        assert_eq!(placed(namespace), Vec::<String>::new());
    }
}

#[test]
fn no_member_starts_before_all_fit_and_lost_pods_are_replaced_one_by_one() {
    let slot = "example.com/whole";
    add_node("whole-1", slot, SIZE - 1);
    let namespace = start("whole", slot, &json!({"native": {}}));
    wait_for_least(&namespace, GROUP, SIZE);
    assert_none_is_placed(&namespace);
    let ready = ".status.conditions[?(@.type=='Ready')].message";
    wait_until("the scheduler's message in the status", LIMIT, || {
        Ok(field(&namespace, "rljob/sample", ready).contains("cannot be scheduled"))
    })
    .unwrap_or_else(|error| panic!("{error:#}\n{}", field(&namespace, "rljob/sample", ready)));
    add_node("whole-2", slot, 1);
    wait_until_placed(&namespace, SIZE);
    wait_for_least(&namespace, GROUP, 1);

    // Two pods are lost with the node of one.
    let on_lost = placed(&namespace)
        .into_iter()
        .find(|pod| field(&namespace, &format!("pod/{pod}"), ".spec.nodeName") == "whole-2");
    let on_lost = on_lost.unwrap();
    let another = placed(&namespace).into_iter().find(|pod| *pod != on_lost).unwrap();
    gangs().cluster.kubectl().run(&["delete", "node", "whole-2"]).unwrap();
    remove_pods(&namespace, &[&on_lost, &another]);
    wait_until_placed(&namespace, SIZE - 1);
    wait_for_least(&namespace, GROUP, 1);

    suspend(&namespace);
    wait_until("the PodGroup to be deleted", LIMIT, || Ok(pod_group(&namespace, GROUP).is_none()))
        .unwrap();
    patch(&namespace, &json!({"suspend": false}));
    wait_for_least(&namespace, GROUP, SIZE);
    assert_none_is_placed(&namespace);
}

/// Number of starts: `GANG_STARTS`, else 3.
fn starts() -> usize {
    std::env::var("GANG_STARTS").ok().and_then(|number| number.parse().ok()).unwrap_or(3)
}

#[test]
fn two_gangs_that_need_the_whole_cluster_start_one_after_the_other() {
    let slot = "example.com/race";
    add_node("race-1", slot, SIZE / 2);
    add_node("race-2", slot, SIZE / 2);
    let mut waits = Vec::new();
    for _ in 0..starts() {
        let both = ["first", "second"].map(|prefix| start(prefix, slot, &json!({"native": {}})));
        let started = Instant::now();
        wait_until("one gang to start", LIMIT, || {
            let counts = [&both[0], &both[1]].map(|namespace| placed(namespace).len());
            assert!(counts[0] == 0 || counts[1] == 0, "both have nodes: {counts:?}");
            Ok(counts.contains(&SIZE))
        })
        .unwrap_or_else(|error| panic!("deadlock: {error:#}\n{}", both[0].report()));
        waits.push(started.elapsed());
        let [first, second] = both;
        let is_first = placed(&first).len() == SIZE;
        let (winner, other) = if is_first { (first, second) } else { (second, first) };
        assert_eq!(placed(&other), Vec::<String>::new());
        winner.kubectl.run(&["delete", "rljob/sample"]).unwrap();
        let ends = || {
            remove_pods(&winner, &[OWN]);
            Ok(placed(&other).len() == SIZE)
        };
        wait_until("the other gang to start", LIMIT, ends).unwrap();
        other.kubectl.run(&["delete", "rljob/sample"]).unwrap();
        let is_empty = || {
            remove_pods(&other, &[OWN]);
            Ok(other.kubectl.run(&["get", "pods", OWN, "--output=name"])?.is_empty())
        };
        wait_until("the end of the other gang", LIMIT, is_empty).unwrap();
    }
    let longest = waits.iter().max().unwrap();
    println!("gangs: {} starts of two gangs, longest {longest:.1?}", waits.len());
}

#[test]
fn members_have_the_priority_of_their_group() {
    let slot = "example.com/priority";
    add_node("priority-1", slot, SIZE);
    let class = "urgent";
    let object = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": class}, "value": 7,
    });
    gangs().cluster.kubectl().apply(&object.to_string()).unwrap();
    let scheduling = json!({"gang": {"native": {}}, "priorityClassName": class});
    let namespace = namespace_in(&gangs().cluster, "priority", &members(slot, &scheduling));
    wait_until_placed(&namespace, SIZE);
    let group = wait_for_least(&namespace, GROUP, 1);
    assert_eq!(group["spec"]["priorityClassName"], class);
}

#[test]
fn a_cluster_without_pod_groups_stalls_the_job_with_the_remedy() {
    let cluster = Cluster::start_strict(ACCOUNT).unwrap();
    let operator = install(&cluster, "native");
    let gang = members("example.com/none", &json!({"gang": {"native": {}}}));
    let namespace = namespace_in(&cluster, "absent", &gang);
    wait_for_condition(&namespace, "Stalled");
    let stalled = |part: &str| {
        field(
            &namespace,
            "rljob/sample",
            &format!(".status.conditions[?(@.type=='Stalled')].{part}"),
        )
    };
    let remedy = "the API server rejected PodGroup sample-gang: it has no PodGroups of \
        scheduling.k8s.io/v1beta1; enable the feature gate GenericWorkload of the cluster, and \
        this API of its API server, or remove spec.scheduling.gang";
    wait_until("the missing API in the status", LIMIT, || Ok(stalled("message") == remedy))
        .unwrap_or_else(|error| panic!("{error:#}\n{}\n{}", stalled("message"), operator.output()));
    assert_eq!(stalled("reason"), "ChildRejected");
    assert_eq!(namespace.kubectl.run(&["get", "pods", OWN, "--output=name"]).unwrap(), "");

    let gang = members("example.com/none", &json!({"gang": {"volcano": {}}}));
    let unknown = namespace_in(&cluster, "unknown", &gang);
    wait_for_condition(&unknown, "Stalled");
    assert_eq!(
        field(&unknown, "rljob/sample", ".status.conditions[?(@.type=='Stalled')].message"),
        "spec.scheduling.gang.volcano: needs an operator with --gang-schedulers=volcano, \
            gangSchedulers of its chart"
    );
}
