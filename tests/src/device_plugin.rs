//! GPUs of a test cluster's node: an extended resource that tests/kube/device-plugin advertises.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::wait_until;
use crate::sandbox::Program;
use crate::{Cluster, files};

/// Kubelet reports new devices with the next status of its node, within 10 s.
const LIMIT: Duration = Duration::from_secs(60);

/// A device plugin. Dropping it ends it; kubelet then reports the devices as unhealthy.
#[derive(Debug)]
pub struct DevicePlugin {
    _program: Program,
    /// Number of devices of the node.
    pub devices: u32,
}

impl DevicePlugin {
    /// Advertises as many stand-ins of GPUs, or the GPUs of this machine if `stand_ins` is 0, each
    /// `replicas` times, and waits until the node has them. Kubelets of one sandbox share the
    /// folder of the plugins' sockets: the cluster must have one node.
    pub fn start(
        cluster: &Cluster,
        resource: &str,
        (stand_ins, replicas): (u32, u32),
    ) -> Result<Self> {
        let arguments = [
            format!("-resource={resource}"),
            format!("-stand-ins={stand_ins}"),
            format!("-replicas={replicas}"),
        ];
        let name = format!("device-plugin-{}", resource.replace('/', "-"));
        let program =
            cluster.start_program(&name, &files::kubernetes("device-plugin")?, &arguments)?;
        let kubectl = cluster.kubectl();
        let mut devices = 0;
        wait_until(&format!("{resource} on node-1"), LIMIT, || {
            let node = kubectl.get(&["node", "node-1"])?;
            let text = node["status"]["allocatable"][resource].as_str().unwrap_or("0");
            devices = text.parse().with_context(|| format!("{resource} is {text}"))?;
            Ok(devices > 0)
        })
        .with_context(|| format!("the device plugin printed:\n{}", program.output()))?;
        Ok(Self { _program: program, devices })
    }
}
