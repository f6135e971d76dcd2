//! Which ports each pod reaches.

use std::collections::{BTreeMap, BTreeSet};

/// Names of the targets that each source reaches.
pub(super) type Reached = BTreeMap<&'static str, BTreeSet<&'static str>>;

/// Everything that listens.
pub(super) const TARGETS: [&str; 14] = [
    "api-server:443",
    "coordinator:8080",
    "coordinator:9999",
    "dns:53",
    "engine:30000",
    "engine:9999",
    "metadata:8000",
    "operator:8082",
    "operator:9999",
    "trainer:8081",
    "trainer:9999",
    "verifier:443",
    "verifier:8000",
    "verifier:9999",
];

/// What the policies admit.
pub(super) fn admitted() -> Reached {
    let outside =
        ["api-server:443", "metadata:8000", "verifier:443", "verifier:8000", "verifier:9999"];
    let unrestricted: &[&str] = &[&outside[..], &["dns:53", "operator:8082"]].concat();
    let job: &[&str] = &[
        "coordinator:8080",
        "coordinator:9999",
        "dns:53",
        "engine:30000",
        "engine:9999",
        "trainer:8081",
        "trainer:9999",
    ];
    let operator: &[&str] = &[
        "api-server:443",
        "coordinator:8080",
        "dns:53",
        "operator:8082",
        "operator:9999",
        "verifier:443",
    ];
    let all = |parts: &[&[&'static str]]| parts.concat().into_iter().collect::<BTreeSet<_>>();
    BTreeMap::from([
        ("stranger", all(&[unrestricted])),
        ("stranger with the job's labels", all(&[unrestricted])),
        ("stranger with the operator's label", all(&[unrestricted])),
        ("stranger with the scraper's label", all(&[unrestricted])),
        ("other pod of the job's namespace", all(&[unrestricted])),
        ("other pod of the scraper's namespace", all(&[unrestricted])),
        ("scraper", all(&[unrestricted, &["coordinator:8080", "engine:30000"]])),
        ("operator", all(&[operator])),
        ("coordinator", all(&[job, &["verifier:8000"]])),
        ("trainer", all(&[job])),
        ("inference", all(&[job])),
    ])
}

/// What they admit if servers outside a job may only be the metadata service, and the API server
/// has only its own address.
pub(super) fn narrowed() -> Reached {
    let mut reached = admitted();
    let mut change = |source, lost, gained: Option<&'static str>| {
        let targets = reached.get_mut(source).unwrap();
        assert!(targets.remove(lost), "{source} reached {lost}");
        targets.extend(gained);
    };
    change("coordinator", "verifier:8000", Some("metadata:8000"));
    change("operator", "verifier:443", None);
    reached
}
