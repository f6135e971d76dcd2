//! NetworkPolicy enforcement: kube-router's firewall on the node of a test cluster.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::wait_until;
use crate::sandbox::Program;
use crate::{Cluster, files};

/// Chain of packets to and from pods; it has a rule for each pod.
const CHAIN: &str = "KUBE-ROUTER-FORWARD";

/// Enforces the NetworkPolicies of a cluster of one node until the program is dropped, when the
/// rules of that moment remain. All nodes of a cluster have one network namespace, and kube-router
/// removes the rules of others in it.
pub fn enforce(cluster: &Cluster) -> Result<Program> {
    cluster
        .run("sysctl", &["-qw", "net.bridge.bridge-nf-call-iptables=1"])
        .context("packets between pods of a bridge do not pass iptables: load br_netfilter")?;
    let arguments = [
        format!("--kubeconfig={}", cluster.kubeconfig().display()),
        "--hostname-override=node-1".into(),
        "--run-firewall=true".into(),
        "--run-router=false".into(),
        "--run-service-proxy=false".into(),
        // Addresses in this range are exempt from policies; the cluster's own range contains the
        // API server and DNS, which pods reach without a proxy.
        "--service-cluster-ip-range=10.97.0.0/16".into(),
    ];
    let program = cluster.start_program("kube-router", &files::kube_router()?, &arguments)?;
    wait_until("the rules of kube-router", Duration::from_secs(60), || {
        let rules = cluster.run("iptables", &["--wait", "--list-rules", CHAIN])?;
        Ok(rules.contains("KUBE-POD-FW-"))
    })
    .with_context(|| format!("kube-router does not enforce policies:\n{}", program.output()))?;
    Ok(program)
}
