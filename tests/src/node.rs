//! Kubernetes nodes: each has its own containerd, kubelet and pod bridge.
//!
//! Kubelets on one machine share no state: each has its own address, cgroup subtree, folders and
//! bridge. In a shared cgroup tree, each kubelet would kill the pods of the others as orphans.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::files;
use crate::image::Image;
use crate::pki::Authority;
use crate::process::{run, wait_until};
use crate::sandbox::Sandbox;

/// Cluster IP of the Service `kubernetes`, assigned to the sandbox's loopback interface, so that
/// pods reach the API server without kube-proxy.
pub const API_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Address of the cluster DNS server.
pub const DNS_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// Folder of Debian's package containernetworking-plugins.
const CNI_PLUGINS: &str = "/usr/lib/cni";
/// Controllers that a kubelet requires on cgroup v2, as far as the kernel has them.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuset", "hugetlb", "memory", "pids"];

/// A running node.
#[derive(Debug)]
pub struct Node {
    name: String,
    socket: PathBuf,
}

impl Node {
    /// Starts `node-NUMBER` without waiting for it to be ready.
    pub fn start(sandbox: &mut Sandbox, authority: &Authority, number: u8) -> Result<Self> {
        let name = format!("node-{number}");
        let folder = sandbox.state.join(&name);
        for part in ["cni", "pods", "plugins"] {
            fs::create_dir_all(folder.join(part))
                .with_context(|| format!("failed to create the folders of {name}"))?;
        }
        let address = format!("10.100.0.{number}");
        sandbox.run("ip", &["addr", "add", &format!("{address}/32"), "dev", "lo"])?;
        let cgroup = format!("{}/{name}", sandbox.name);
        create_cgroups(&cgroup)?;

        let node = Self { socket: folder.join("containerd.sock"), name };
        fs::write(folder.join("cni/10-bridge.conflist"), network(&folder, number).to_string())?;
        fs::write(folder.join("containerd.toml"), containerd(&folder, &node.socket))?;
        let configuration = folder.join("containerd.toml").display().to_string();
        sandbox.start(
            &format!("{}-containerd", node.name),
            Path::new("containerd"),
            &["--config".into(), configuration],
        )?;
        wait_until("containerd", Duration::from_secs(60), || {
            Ok(!node.ctr(&["version"])?.is_empty())
        })?;

        fs::write(folder.join("resolv.conf"), "")?;
        fs::write(
            folder.join("kubelet.json"),
            kubelet(&folder, authority, &node.socket, &cgroup, &address).to_string(),
        )?;
        let kubeconfig = authority.kubeconfig(
            &node.name,
            &format!("/O=system:nodes/CN=system:node:{}", node.name),
            API_ADDRESS,
        )?;
        let arguments = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--config={}", folder.join("kubelet.json").display()),
            format!("--hostname-override={}", node.name),
            format!("--node-ip={address}"),
            format!("--root-dir={}", folder.join("kubelet").display()),
        ];
        sandbox.start(
            &format!("{}-kubelet", node.name),
            &files::kubernetes("kubelet")?,
            &arguments,
        )?;
        Ok(node)
    }

    /// Imports an image into the node's containerd.
    pub fn import(&self, sandbox: &Sandbox, image: &Image) -> Result<()> {
        let socket = self.socket.display().to_string();
        let archive = image.archive.display().to_string();
        let arguments =
            ["--address", &socket, "--namespace", "k8s.io", "images", "import", &archive];
        sandbox
            .run("ctr", &arguments)
            .map(drop)
            .with_context(|| format!("failed to import {} into {}", image.reference, self.name))
    }

    /// Gives an image in the node's containerd a second name.
    pub(crate) fn tag_image(&self, from: &str, to: &str) -> Result<()> {
        self.ctr(&["--namespace", "k8s.io", "images", "tag", "--force", from, to]).map(drop)
    }

    /// Gives an image in the node's containerd another name.
    fn rename_image(&self, from: &str, to: &str) -> Result<()> {
        self.tag_image(from, to)?;
        self.ctr(&["--namespace", "k8s.io", "images", "rm", from]).map(drop)
    }

    fn ctr(&self, arguments: &[&str]) -> Result<String> {
        run(Command::new("ctr").arg("--address").arg(&self.socket).args(arguments))
    }
}

/// An image without its name on the nodes, so that no new container starts from it. Dropping the
/// value restores it.
#[derive(Debug)]
pub struct HiddenImage<'a> {
    nodes: &'a [Node],
    reference: String,
}

impl<'a> HiddenImage<'a> {
    /// Name of the image meanwhile.
    const NAME: &'static str = "rljob.local/hidden:test";

    pub(crate) fn hide(nodes: &'a [Node], reference: &str) -> Result<Self> {
        let mut hidden = Self { nodes: &[], reference: reference.to_owned() };
        for (number, node) in nodes.iter().enumerate() {
            node.rename_image(reference, Self::NAME)?;
            hidden.nodes = nodes.get(..=number).unwrap_or_default();
        }
        Ok(hidden)
    }
}

impl Drop for HiddenImage<'_> {
    fn drop(&mut self) {
        for node in self.nodes {
            if let Err(error) = node.rename_image(Self::NAME, &self.reference) {
                eprintln!("failed to restore an image of {}: {error:#}", node.name);
            }
        }
    }
}

/// Creates the kubelet's subtree in every controller of cgroup v1, or in the single hierarchy of
/// v2.
fn create_cgroups(path: &str) -> Result<()> {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return create_unified_cgroups(root, Path::new(path));
    }
    for controller in
        fs::read_dir(root).context("no cgroups are mounted at /sys/fs/cgroup")?.flatten()
    {
        if !controller.path().join("cgroup.procs").exists() {
            continue;
        }
        let mut cgroup = controller.path();
        for part in Path::new(path) {
            let parent = cgroup.clone();
            cgroup.push(part);
            fs::create_dir_all(&cgroup)
                .with_context(|| format!("failed to create cgroup {}", cgroup.display()))?;
            // A new cpuset of cgroup v1 is empty, and processes cannot join an empty cpuset.
            for file in
                ["cpuset.cpus", "cpuset.mems"].iter().filter(|file| parent.join(file).exists())
            {
                fs::copy(parent.join(file), cgroup.join(file))
                    .with_context(|| format!("failed to set {file} of {}", cgroup.display()))?;
            }
        }
    }
    Ok(())
}

/// A cgroup of version 2 has the controllers that its parent enables.
fn create_unified_cgroups(root: &Path, path: &Path) -> Result<()> {
    let mut cgroup = root.to_path_buf();
    for part in path {
        let found = fs::read_to_string(cgroup.join("cgroup.controllers"))?;
        for controller in found.split_whitespace().filter(|name| CONTROLLERS.contains(name)) {
            fs::write(cgroup.join("cgroup.subtree_control"), format!("+{controller}"))
                .with_context(|| {
                    format!("failed to enable {controller} in {}", cgroup.display())
                })?;
        }
        cgroup.push(part);
        fs::create_dir_all(&cgroup)
            .with_context(|| format!("failed to create cgroup {}", cgroup.display()))?;
    }
    Ok(())
}

fn network(folder: &Path, number: u8) -> serde_json::Value {
    let subnet = format!("10.244.{number}.0/24");
    let addresses = json!({
        "type": "host-local", "dataDir": folder.join("ipam"), "ranges": [[{"subnet": subnet}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    });
    let bridge = json!({
        "type": "bridge", "bridge": format!("pods{number}"), "isGateway": true, "hairpinMode": true,
        "ipam": addresses,
    });
    json!({"cniVersion": "1.0.0", "name": format!("node-{number}"), "plugins": [bridge]})
}

fn containerd(folder: &Path, socket: &Path) -> String {
    let (folder, socket) = (folder.display(), socket.display());
    let snapshotter = snapshotter();
    // Without CAP_SYS_RESOURCE and restrict_oom_score_adj, runc fails with "can't get final child's
    // PID".
    format!(
        r#"version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "rljob.local/pause:test"
  restrict_oom_score_adj = true
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{folder}/cni"
"#
    )
}

/// The snapshotter of containerd: one that copies images where the kernel has no overlay.
fn snapshotter() -> &'static str {
    let types = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if types.contains("\toverlay\n") { "overlayfs" } else { "native" }
}

fn kubelet(
    folder: &Path,
    authority: &Authority,
    socket: &Path,
    cgroup: &str,
    address: &str,
) -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false}, "x509": {"clientCAFile": authority.certificate()},
            "webhook": {"enabled": true},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        "failCgroupV1": false, // the default rejects cgroup v1
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        // A full host disk must neither evict pods nor delete images, which no registry can
        // restore.
        "evictionHard": {"memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        // Tests crash containers often; the default backoff would add minutes.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
        "nodeLeaseDurationSeconds": 20, // a heartbeat each 5 s
        "address": address,
        "healthzBindAddress": address,
        "podLogsDir": folder.join("pods"),
        "volumePluginDir": folder.join("plugins"),
        "resolvConf": folder.join("resolv.conf"),
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
    })
}
