//! Test clusters: etcd, API server, controller manager, scheduler and any number of nodes.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::api::Api;
use crate::audit::{self, AuditedRequest};
use crate::image::Image;
use crate::kubectl::Kubectl;
use crate::node::{API_ADDRESS, DNS_ADDRESS, HiddenImage, Node};
use crate::pki::Authority;
use crate::process::{run, wait_until};
use crate::procfs::{self, PodProcess};
use crate::sandbox::{Program, Sandbox};
use crate::{files, image};

const START_LIMIT: Duration = Duration::from_secs(120);
/// Command line of the store.
const STORE: &str = "etcd --data-dir";

/// Further arguments of the programs of a control plane.
#[derive(Debug, Default)]
struct Arguments {
    api_server: Vec<String>,
    controller_manager: Vec<String>,
    scheduler: Vec<String>,
}

/// A running cluster. Dropping it stops every process and removes all state.
#[derive(Debug)]
pub struct Cluster {
    sandbox: Sandbox,
    authority: Authority,
    nodes: Vec<Node>,
    kubeconfig: PathBuf,
    arguments: Arguments,
}

/// A copy of the API server's data, removed with the cluster.
#[derive(Debug)]
pub struct Backup(PathBuf);

/// A node whose kubelet is stopped. Dropping the value resumes the kubelet.
#[derive(Debug)]
pub struct StoppedNode(Pid);

impl Drop for StoppedNode {
    fn drop(&mut self) {
        procfs::resume(self.0);
    }
}

impl Cluster {
    /// Starts a control plane and nodes `node-1`, `node-2`, …, and waits until they are ready.
    pub fn start(nodes: u8) -> Result<Self> {
        Self::start_with(nodes, |_| Ok(Arguments::default()))
    }

    /// Starts a control plane that audits the requests of `user` ([`Self::audited_requests`]) and
    /// checks owner references as OpenShift does: setting `blockOwnerDeletion` requires permission
    /// to update the owner's finalizers.
    pub fn start_strict(user: &str) -> Result<Self> {
        Self::start_with(0, |state| {
            Ok(Arguments { api_server: strict(state, user)?, ..Arguments::default() })
        })
    }

    /// Starts the control plane of [`Self::start_strict`] with gangs: PodGroups of
    /// `scheduling.k8s.io`, also with topologies, and their scheduler. Nodes are those of
    /// [`crate::idle_node`].
    pub fn start_with_gangs(user: &str) -> Result<Self> {
        Self::start_with(0, |state| {
            let gates = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true";
            let gate = || format!("--feature-gates={gates}");
            let api = "--runtime-config=scheduling.k8s.io/v1beta1=true".to_owned();
            let controllers = "--controllers=*,-node-lifecycle-controller".to_owned();
            Ok(Arguments {
                api_server: strict(state, user)?.into_iter().chain([gate(), api]).collect(),
                controller_manager: vec![gate(), controllers],
                scheduler: vec![gate()],
            })
        })
    }

    fn start_with(nodes: u8, arguments: impl Fn(&Path) -> Result<Arguments>) -> Result<Self> {
        let sandbox = Sandbox::open()?;
        let authority = Authority::create(&sandbox.state.join("pki"))?;
        let kubeconfig =
            authority.kubeconfig("admin", "/O=system:masters/CN=admin", sandbox.address)?;
        let arguments = arguments(&sandbox.state)?;
        let mut cluster = Self { sandbox, authority, nodes: Vec::new(), kubeconfig, arguments };
        match cluster.bring_up(nodes) {
            Ok(()) => Ok(cluster),
            Err(error) => Err(error
                .context(format!("the test cluster did not start\n{}", cluster.sandbox.logs()))),
        }
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &PathBuf {
        &self.kubeconfig
    }

    /// An API client with administrator rights.
    pub fn api(&self) -> Result<Api> {
        Api::new(&self.kubeconfig)
    }

    /// Requests of the user of [`Self::start_strict`] so far.
    pub fn audited_requests(&self) -> Result<Vec<AuditedRequest>> {
        audit::read(&self.sandbox.state)
    }

    /// Listens in the cluster's network namespace.
    pub fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        self.sandbox.listen(address)
    }

    /// Runs a program to completion in the cluster's network and PID namespaces.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.sandbox.run(program, arguments)
    }

    /// Address at which the test reaches servers in the cluster's network.
    pub fn address(&self) -> Ipv4Addr {
        self.sandbox.address
    }

    /// kubectl with administrator rights in the namespace `default`.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubeconfig)
    }

    /// Imports an image into every node.
    pub fn import(&self, image: &Image) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.import(&self.sandbox, image))
    }

    /// Gives an imported image a second name on all nodes.
    pub fn tag_image(&self, from: &str, to: &str) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.tag_image(from, to))
    }

    /// Hides an image from the kubelets of all nodes until the value is dropped.
    pub fn hide_image(&self, reference: &str) -> Result<HiddenImage<'_>> {
        HiddenImage::hide(&self.nodes, reference)
    }

    /// Sends SIGKILL to the cluster's oldest process whose command line matches an extended regular
    /// expression.
    pub fn kill_oldest(&self, command_line: &str) -> Result<()> {
        self.sandbox.kill_oldest(command_line)
    }

    /// Processes in the pods of a node, or of all nodes if `node` is empty.
    pub fn pod_processes(&self, node: &str) -> Vec<PodProcess> {
        self.sandbox.pod_processes(node)
    }

    /// The oldest process outside pods whose command line contains `command`: a component of the
    /// cluster.
    pub fn own_process(&self, command: &str) -> Result<Pid> {
        self.sandbox.own_process(command)
    }

    /// Simulates the power loss of a node: kills all processes of its pods and stops its kubelet
    /// until the guard is dropped.
    pub fn stop_node(&self, node: &str) -> Result<StoppedNode> {
        let kubelet = self.own_process(&format!("--hostname-override={node} "))?;
        kill_process(kubelet, Signal::STOP)?;
        for process in self.pod_processes(node) {
            // The process may have exited meanwhile.
            let _ = kill_process(process.pid, Signal::KILL);
        }
        Ok(StoppedNode(kubelet))
    }

    /// Starts a program in the cluster's network. Dropping it kills the program.
    pub fn start_program(
        &self,
        name: &str,
        program: &Path,
        arguments: &[String],
    ) -> Result<Program> {
        self.sandbox.start_guarded(name, program, arguments)
    }

    /// Creates a world-writable folder that every node sees at the same path, removed with the
    /// cluster.
    pub fn shared_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.sandbox.state.join("shared").join(name);
        fs::create_dir_all(&folder)
            .with_context(|| format!("failed to create {}", folder.display()))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
        Ok(folder)
    }

    /// Mounts an empty file system in memory of this size, such as `200m`, on an existing folder of
    /// the nodes. Returns the path at which the test reads it.
    pub fn mount_memory(&self, folder: &Path, size: &str) -> Result<PathBuf> {
        let options = format!("size={size},mode=0777");
        let target = folder.display().to_string();
        self.sandbox.run("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", &target])?;
        Ok(self.sandbox.path_inside(folder))
    }

    /// Copies the data of the API server. Its store is restarted.
    pub fn back_up(&mut self) -> Result<Backup> {
        let backup = Backup(self.sandbox.state.join("backup"));
        self.sandbox.stop(STORE)?;
        copy_folder(&self.store(), &backup.0)?;
        self.start_store()?;
        self.wait_for_api_server()?;
        Ok(backup)
    }

    /// Restores a backup and restarts the control plane.
    pub fn restore(&mut self, backup: &Backup) -> Result<()> {
        for program in
            ["kube-controller-manager --", "kube-scheduler --", "kube-apiserver --", STORE]
        {
            self.sandbox.stop(program)?;
        }
        fs::remove_dir_all(self.store())?;
        copy_folder(&backup.0, &self.store())?;
        self.start_store()?;
        self.start_api_server()?;
        self.wait_for_api_server()?;
        self.start_controllers()
    }

    fn store(&self) -> PathBuf {
        self.sandbox.state.join("etcd")
    }

    fn wait_for_api_server(&self) -> Result<()> {
        let kubectl = self.kubectl();
        wait_until("the API server", START_LIMIT, || {
            Ok(kubectl.run(&["get", "--raw", "/readyz"])? == "ok")
        })
    }

    fn bring_up(&mut self, nodes: u8) -> Result<()> {
        for address in [API_ADDRESS, DNS_ADDRESS] {
            self.sandbox.run("ip", &["addr", "add", &format!("{address}/32"), "dev", "lo"])?;
        }
        self.start_store()?;
        self.start_api_server()?;
        self.wait_for_api_server()?;
        let kubectl = self.kubectl();
        self.start_controllers()?;
        wait_until("the default service account", START_LIMIT, || {
            Ok(!kubectl.run(&["get", "serviceaccount", "default"])?.is_empty())
        })?;
        if nodes == 0 {
            return Ok(());
        }
        self.start_dns()?;
        let pause = image::pause(&self.sandbox.state)?;
        for number in 1..=nodes {
            let node = Node::start(&mut self.sandbox, &self.authority, number)?;
            node.import(&self.sandbox, &pause)?;
            self.nodes.push(node);
        }
        let ready = |kubectl: &Kubectl| {
            Ok(kubectl.run(&["get", "nodes", "--output=name"])?.lines().count()
                == usize::from(nodes))
        };
        wait_until("every node to register", START_LIMIT, || ready(&kubectl))?;
        kubectl
            .run(&["wait", "--for=condition=Ready", "nodes", "--all", "--timeout=120s"])
            .map(drop)
    }

    fn start_store(&mut self) -> Result<()> {
        let arguments = [
            format!("--data-dir={}", self.store().display()),
            "--log-level=warn".into(),
            "--unsafe-no-fsync".into(), // the data does not outlive the test
            "--listen-client-urls=http://127.0.0.1:2379".into(),
            "--advertise-client-urls=http://127.0.0.1:2379".into(),
            "--listen-peer-urls=http://127.0.0.1:2380".into(),
        ];
        self.sandbox.start("etcd", &files::kubernetes("etcd")?, &arguments)
    }

    fn start_api_server(&mut self) -> Result<()> {
        let names = format!(
            "IP:{API_ADDRESS},IP:{},IP:127.0.0.1,DNS:kubernetes.default.svc,\
             DNS:kubernetes.default.svc.cluster.local",
            self.sandbox.address
        );
        let server = self.authority.issue("apiserver", "/CN=kube-apiserver", &names)?;
        let client = self.authority.issue(
            "apiserver-to-kubelet",
            "/O=system:masters/CN=kube-apiserver",
            "DNS:kube-apiserver",
        )?;
        let signing = self.authority.signing_key();
        let arguments = [
            "--etcd-servers=http://127.0.0.1:2379".into(),
            "--bind-address=0.0.0.0".into(),
            "--secure-port=443".into(),
            // Required because the sandbox has no default route.
            format!("--advertise-address={}", self.sandbox.address),
            format!("--tls-cert-file={}", server.certificate.display()),
            format!("--tls-private-key-file={}", server.key.display()),
            format!("--client-ca-file={}", self.authority.certificate().display()),
            format!("--kubelet-client-certificate={}", client.certificate.display()),
            format!("--kubelet-client-key={}", client.key.display()),
            "--kubelet-preferred-address-types=InternalIP".into(),
            format!("--service-account-key-file={}", signing.display()),
            format!("--service-account-signing-key-file={}", signing.display()),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            "--endpoint-reconciler-type=none".into(),
            "--authorization-mode=Node,RBAC".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            // Webhooks are called at their pods: no kube-proxy runs.
            "--enable-aggregator-routing=true".into(),
        ];
        let more = self.arguments.api_server.clone();
        let arguments: Vec<String> = arguments.into_iter().chain(more).collect();
        self.sandbox.start("kube-apiserver", &files::kubernetes("kube-apiserver")?, &arguments)
    }

    fn start_controllers(&mut self) -> Result<()> {
        let common = |kubeconfig: PathBuf| {
            // The defaults of 20 and 50 requests per second delay the creation of many pods.
            let limits = [
                "--kube-api-qps=500".into(),
                "--kube-api-burst=1000".into(),
                "--leader-elect=false".into(),
                "--bind-address=127.0.0.1".into(),
            ];
            [format!("--kubeconfig={}", kubeconfig.display())].into_iter().chain(limits)
        };
        let kubeconfig = self.authority.kubeconfig(
            "controller-manager",
            "/CN=system:kube-controller-manager",
            API_ADDRESS,
        )?;
        let own = [
            format!(
                "--service-account-private-key-file={}",
                self.authority.signing_key().display()
            ),
            format!("--root-ca-file={}", self.authority.certificate().display()),
            "--use-service-account-credentials".into(),
            "--allocate-node-cidrs".into(),
            "--cluster-cidr=10.244.0.0/16".into(),
            // Marks a node as unreachable after 4 missed heartbeats instead of 10.
            "--node-monitor-period=1s".into(),
            "--node-monitor-grace-period=20s".into(),
        ];
        let more = self.arguments.controller_manager.clone();
        let arguments: Vec<String> = common(kubeconfig).chain(own).chain(more).collect();
        self.sandbox.start(
            "kube-controller-manager",
            &files::kubernetes("kube-controller-manager")?,
            &arguments,
        )?;
        let kubeconfig =
            self.authority.kubeconfig("scheduler", "/CN=system:kube-scheduler", API_ADDRESS)?;
        let more = self.arguments.scheduler.clone();
        let arguments: Vec<String> = common(kubeconfig).chain(more).collect();
        self.sandbox.start("kube-scheduler", &files::kubernetes("kube-scheduler")?, &arguments)
    }

    /// CoreDNS runs outside the nodes; pods reach it through their gateway.
    fn start_dns(&mut self) -> Result<()> {
        let kubeconfig =
            self.authority.kubeconfig("dns", "/O=system:masters/CN=dns", API_ADDRESS)?;
        let path = self.sandbox.state.join("Corefile");
        let zone = format!(
            "kubernetes cluster.local {{\n  kubeconfig {}\n  ttl 30\n }}",
            kubeconfig.display()
        );
        fs::write(
            &path,
            format!(".:53 {{\n bind {DNS_ADDRESS}\n errors\n cache 30\n {zone}\n}}\n"),
        )?;
        self.sandbox.start(
            "coredns",
            &files::kubernetes("coredns")?,
            &["-conf".into(), path.display().to_string()],
        )
    }
}

/// Arguments of an API server that audits the requests of `user` and checks owner references.
fn strict(state: &Path, user: &str) -> Result<Vec<String>> {
    let strict = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned();
    Ok(audit::arguments(state, user)?.into_iter().chain([strict]).collect())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("--archive").arg(from).arg(to)).map(drop)
}
