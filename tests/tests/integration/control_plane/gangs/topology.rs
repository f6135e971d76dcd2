//! Topology hints on the scheduler of Kubernetes: the zones of the nodes that pods get.

use std::collections::BTreeSet;

use rljob_tests::Namespace;
use serde_json::json;

use super::super::operator::{field, namespace_in};
use super::{SIZE, add_node_in, gangs, members, placed, start, wait_until_placed};

const ZONE: &str = "example.com/zone";

/// Adds nodes, named by their zones and a number, with slots of a resource.
fn add_zones(resource: &str, zones: &[(&str, &[usize])]) {
    for (zone, nodes) in zones {
        for (number, slots) in nodes.iter().enumerate() {
            add_node_in(&json!({ ZONE: zone }), &format!("{zone}-{number}"), resource, *slots);
        }
    }
}

/// Zones of the engines and trainers.
fn zones(namespace: &Namespace) -> BTreeSet<String> {
    let zone = |pod: &String| {
        let node = field(namespace, &format!("pod/{pod}"), ".spec.nodeName");
        node.split_once('-').unwrap().0.to_owned()
    };
    placed(namespace).iter().map(zone).collect()
}

#[test]
fn trainers_share_a_zone_and_engines_are_near() {
    let slot = "example.com/near";
    add_zones(slot, &[("east", &[2, 2]), ("west", &[2, 2]), ("north", &[2, 2])]);
    let topology = json!({"trainer": {"required": ZONE}, "inference": {"preferred": ZONE}});
    let mut patch = members(slot, &json!({ "topology": topology }));
    patch["spec"]["inference"]["replicas"] = json!(1);
    let namespace = namespace_in(&gangs().cluster, "near", &patch);
    wait_until_placed(&namespace, SIZE - 1);
    assert_eq!(zones(&namespace).len(), 1, "{:?}", zones(&namespace));
}

#[test]
fn a_gang_gets_the_zone_that_has_room_for_all() {
    let slot = "example.com/room";
    add_zones(slot, &[("small", &[2, 1]), ("large", &[2, 2]), ("tiny", &[3])]);
    let namespace = start("room", slot, &json!({"native": {"topologyKey": ZONE}}));
    wait_until_placed(&namespace, SIZE);
    assert_eq!(zones(&namespace), ["large".to_owned()].into());
}
