//! `rljob-test-cluster [NODES]`: a cluster to work with by hand. It prints its kubeconfig and ends at the end of its input (Ctrl-D).

use std::io::Read;

use anyhow::{Context, Result};
use rljob_tests::Cluster;

fn main() -> Result<()> {
    let nodes = std::env::args().nth(1).map_or(Ok(2), |text| text.parse()).context("usage: rljob-test-cluster [NODES]")?;
    let cluster = Cluster::start(nodes)?;
    eprintln!("export KUBECONFIG={}", cluster.kubeconfig().display());
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop).context("cannot read standard input")
}
