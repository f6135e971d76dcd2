//! Names and labels of metrics, compared between two servers.

use std::collections::{BTreeMap, BTreeSet};

use crate::server::Server;

/// Labels that SGLang adds: the memory that held cached tokens, and the process of a gauge.
const OF_SGLANG: [&str; 2] = ["cache_source", "pid"];

/// SGLang shows it only after it ran out of memory.
const RETRACTED: &str = "num_retracted_requests_total";

/// Label names by metric. The suffixes of histograms are removed.
async fn labels(server: &Server) -> BTreeMap<String, BTreeSet<String>> {
    let (status, page) = server.ask("GET", "/metrics", None).await;
    assert_eq!(status, 200);
    let line = |line: &str| {
        let (name, rest) = line.strip_prefix("sglang:")?.split_once('{')?;
        let name = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .unwrap_or(name);
        let labels = rest.rsplit_once('}')?.0.split("\",");
        let names = labels.filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        let names = names.filter(|name| name != "le" && !OF_SGLANG.contains(&name.as_str()));
        Some((name.to_owned(), names.collect()))
    };
    page.as_str().unwrap().lines().filter_map(line).collect()
}

/// Metrics of the embedded engine that SGLang does not have, or has with other labels. Both must
/// have served requests of every kind.
pub async fn differences(embedded: &Server, sglang: &Server) -> Vec<String> {
    let (ours, theirs) = (labels(embedded).await, labels(sglang).await);
    assert!(ours.len() >= 15, "{ours:?}");
    ours.iter()
        .filter(|(name, labels)| *name != RETRACTED && theirs.get(*name) != Some(labels))
        .map(|(name, labels)| format!("{name}: {labels:?}, SGLang {:?}", theirs.get(name)))
        .collect()
}
