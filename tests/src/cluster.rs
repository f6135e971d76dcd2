//! A Kubernetes cluster: etcd, API server, controller manager, scheduler, and as many nodes as
//! wanted.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::api::Api;
use crate::audit::{self, Asked};
use crate::enclosure::{Enclosure, Program};
use crate::image::Image;
use crate::kubectl::Kubectl;
use crate::node::Node;
use crate::pki::Authority;
use crate::proc::{self, PodProcess};
use crate::process::wait_until;
use crate::{files, image};

/// Address of the Service `kubernetes`. It is an address of the enclosure itself, so that pods
/// reach the API server without kube-proxy.
pub const API_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// Address of the cluster's DNS server.
pub const DNS_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

const START_LIMIT: Duration = Duration::from_secs(120);

/// A running cluster. Dropping it stops everything and leaves nothing behind.
#[derive(Debug)]
pub struct Cluster {
    enclosure: Enclosure,
    authority: Authority,
    nodes: Vec<Node>,
    kubeconfig: PathBuf,
}

/// A node that is away. Dropping it lets its kubelet go on.
#[derive(Debug)]
pub struct StoppedNode(Pid);

impl Drop for StoppedNode {
    fn drop(&mut self) {
        proc::resume(self.0);
    }
}

impl Cluster {
    /// Starts a control plane and `nodes` nodes, `node-1` and so on, and waits until they are
    /// ready.
    pub fn start(nodes: u8) -> Result<Self> {
        Self::start_with(nodes, |_| Ok(Vec::new()))
    }

    /// A control plane that writes down what this user asks of it ([`Self::asked`]), and that is as
    /// strict about owner references as OpenShift's: who sets one that blocks its owner's deletion
    /// needs a right to the owner's finalizers.
    pub fn start_strict(user: &str) -> Result<Self> {
        Self::start_with(0, |state| {
            let strict =
                "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned();
            Ok(audit::arguments(state, user)?.into_iter().chain([strict]).collect())
        })
    }

    fn start_with(nodes: u8, more: impl Fn(&Path) -> Result<Vec<String>>) -> Result<Self> {
        let enclosure = Enclosure::open()?;
        let authority = Authority::create(&enclosure.state.join("pki"))?;
        let kubeconfig =
            authority.kubeconfig("admin", "/O=system:masters/CN=admin", enclosure.address)?;
        let mut cluster = Self { enclosure, authority, nodes: Vec::new(), kubeconfig };
        let more = more(&cluster.enclosure.state)?;
        match cluster.bring_up(nodes, more) {
            Ok(()) => Ok(cluster),
            Err(error) => Err(error
                .context(format!("the test cluster did not start\n{}", cluster.enclosure.logs()))),
        }
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &PathBuf {
        &self.kubeconfig
    }

    /// The administrator's requests, without a kubectl for each.
    pub fn api(&self) -> Result<Api> {
        Api::new(&self.kubeconfig)
    }

    /// What the user of [`Self::start_strict`] has asked so far.
    pub fn asked(&self) -> Result<Vec<Asked>> {
        audit::read(&self.enclosure.state)
    }

    /// Listens in the cluster's network, for a server that stands beside it.
    pub fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        self.enclosure.listen(address)
    }

    /// Runs a program to its end in the cluster's network, among its processes.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.enclosure.run(program, arguments)
    }

    /// Where the test reaches what listens in the cluster's network.
    pub fn address(&self) -> Ipv4Addr {
        self.enclosure.address
    }

    /// A kubectl with the administrator's rights, in the namespace `default`.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubeconfig)
    }

    /// Gives an image to every node.
    pub fn import(&self, image: &Image) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node.import(&self.enclosure, image))
    }

    /// Kills the oldest process of the cluster whose command line matches this extended regular
    /// expression with signal 9, whatever pod it is in.
    pub fn kill_oldest(&self, command_line: &str) -> Result<()> {
        self.enclosure.kill_oldest(command_line)
    }

    /// Processes in pods of a node, or of every node where the name is empty.
    pub fn pod_processes(&self, node: &str) -> Vec<PodProcess> {
        self.enclosure.pod_processes(node)
    }

    /// The oldest process outside of pods whose command line contains these words: one of the
    /// cluster's own programs.
    pub fn own_process(&self, words: &str) -> Result<Pid> {
        self.enclosure.own_process(words)
    }

    /// Takes a node away as a cut of its power does: everything in its pods is gone, and its
    /// kubelet says nothing until the guard is dropped.
    pub fn stop_node(&self, node: &str) -> Result<StoppedNode> {
        let kubelet = self.own_process(&format!("--hostname-override={node} "))?;
        kill_process(kubelet, Signal::STOP)?;
        for process in self.pod_processes(node) {
            // It may have ended by itself.
            let _ = kill_process(process.pid, Signal::KILL);
        }
        Ok(StoppedNode(kubelet))
    }

    /// Starts a program beside the cluster, in its network. It ends when it is dropped.
    pub fn start_program(
        &self,
        name: &str,
        program: &Path,
        arguments: &[String],
    ) -> Result<Program> {
        self.enclosure.start_guarded(name, program, arguments)
    }

    /// A new folder that every node sees at the same path; any user may write to it. It goes with
    /// the cluster.
    pub fn shared_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.enclosure.state.join("shared").join(name);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
        Ok(folder)
    }

    fn bring_up(&mut self, nodes: u8, more: Vec<String>) -> Result<()> {
        for address in [API_ADDRESS, DNS_ADDRESS] {
            self.enclosure.run("ip", &["addr", "add", &format!("{address}/32"), "dev", "lo"])?;
        }
        self.start_store()?;
        self.start_api_server(more)?;
        let kubectl = self.kubectl();
        wait_until("the API server", START_LIMIT, || {
            Ok(kubectl.run(&["get", "--raw", "/readyz"])? == "ok")
        })?;
        self.start_controllers()?;
        wait_until("the default service account", START_LIMIT, || {
            Ok(!kubectl.run(&["get", "serviceaccount", "default"])?.is_empty())
        })?;
        if nodes == 0 {
            return Ok(());
        }
        self.start_dns()?;
        let pause = image::pause(&self.enclosure.state)?;
        for number in 1..=nodes {
            let node = Node::start(&mut self.enclosure, &self.authority, number)?;
            node.import(&self.enclosure, &pause)?;
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
        let data = self.enclosure.state.join("etcd");
        let arguments = [
            format!("--data-dir={}", data.display()),
            "--log-level=warn".into(),
            "--unsafe-no-fsync".into(), // its data is thrown away with the test
            "--listen-client-urls=http://127.0.0.1:2379".into(),
            "--advertise-client-urls=http://127.0.0.1:2379".into(),
            "--listen-peer-urls=http://127.0.0.1:2380".into(),
        ];
        self.enclosure.start("etcd", &files::kubernetes("etcd")?, &arguments)
    }

    fn start_api_server(&mut self, more: Vec<String>) -> Result<()> {
        let names = format!(
            "IP:{API_ADDRESS},IP:{},IP:127.0.0.1,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local",
            self.enclosure.address
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
            format!("--advertise-address={}", self.enclosure.address), // the room has no default route to find one by
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
        ];
        let arguments: Vec<String> = arguments.into_iter().chain(more).collect();
        self.enclosure.start("kube-apiserver", &files::kubernetes("kube-apiserver")?, &arguments)
    }

    fn start_controllers(&mut self) -> Result<()> {
        let common = |kubeconfig: PathBuf| {
            // The defaults of 20 and 50 requests a second would make many pods trickle in.
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
            // A node counts as lost after four of its heartbeats, instead of ten.
            "--node-monitor-period=1s".into(),
            "--node-monitor-grace-period=20s".into(),
        ];
        let arguments: Vec<String> = common(kubeconfig).chain(own).collect();
        self.enclosure.start(
            "kube-controller-manager",
            &files::kubernetes("kube-controller-manager")?,
            &arguments,
        )?;
        let kubeconfig =
            self.authority.kubeconfig("scheduler", "/CN=system:kube-scheduler", API_ADDRESS)?;
        let arguments: Vec<String> = common(kubeconfig).collect();
        self.enclosure.start("kube-scheduler", &files::kubernetes("kube-scheduler")?, &arguments)
    }

    /// DNS runs beside the nodes; pods reach it through their gateway.
    fn start_dns(&mut self) -> Result<()> {
        let kubeconfig =
            self.authority.kubeconfig("dns", "/O=system:masters/CN=dns", API_ADDRESS)?;
        let path = self.enclosure.state.join("Corefile");
        let zone = format!(
            "kubernetes cluster.local {{\n  kubeconfig {}\n  ttl 30\n }}",
            kubeconfig.display()
        );
        fs::write(
            &path,
            format!(".:53 {{\n bind {DNS_ADDRESS}\n errors\n cache 30\n {zone}\n}}\n"),
        )?;
        self.enclosure.start(
            "coredns",
            &files::kubernetes("coredns")?,
            &["-conf".into(), path.display().to_string()],
        )
    }
}
