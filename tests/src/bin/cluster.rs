//! `rljob-test-cluster [NODES [IMAGE]]`: a cluster for interactive use. Each node has the project's
//! image under the name IMAGE. Prints the kubeconfig and runs until the end of standard input
//! (Ctrl-D).

use std::io::Read;

use anyhow::{Context, Result};
use rljob_tests::{Cluster, rootfs};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let nodes = arguments
        .next()
        .map_or(Ok(2), |text| text.parse())
        .context("usage: rljob-test-cluster [NODES [IMAGE]]")?;
    let cluster = Cluster::start(nodes)?;
    if let Some(reference) = arguments.next() {
        let folder = tempfile::tempdir()?;
        cluster.import(&rootfs::image(&reference, folder.path())?)?;
    }
    eprintln!("export KUBECONFIG={}", cluster.kubeconfig().display());
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop).context("failed to read standard input")
}
