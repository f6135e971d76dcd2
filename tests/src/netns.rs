//! Network namespaces of pods and sandboxes: the test process connects and listens in them.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::procfs;

/// Time limit of a connection. Firewalls that reject packets answer at once.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// A network namespace, which exists as long as the value.
#[derive(Debug)]
pub struct NetworkNamespace(File);

impl NetworkNamespace {
    /// Namespace of a process.
    pub fn of_process(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        File::open(&path).map(Self).with_context(|| format!("failed to open {path}"))
    }

    /// Namespace of a running pod.
    pub fn of_pod(uid: &str) -> Result<Self> {
        let processes = procfs::in_pods(&format!("pod{uid}"));
        let process = processes.first().with_context(|| format!("pod {uid} has no process"))?;
        Self::of_process(process.pid.as_raw_nonzero().get().unsigned_abs())
    }

    /// Listens in the namespace.
    pub fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        self.within(|| TcpListener::bind(address).map_err(Into::into))
            .with_context(|| format!("failed to listen on {address} in the namespace"))
    }

    /// Connects to `address` from the namespace.
    pub fn connect(&self, address: SocketAddr) -> Result<TcpStream> {
        self.within(|| Ok(TcpStream::connect_timeout(&address, CONNECT_LIMIT)?))
    }

    /// Whether a TCP connection from the namespace to `address` is accepted.
    pub fn reaches(&self, address: SocketAddr) -> Result<bool> {
        self.within(|| Ok(TcpStream::connect_timeout(&address, CONNECT_LIMIT).is_ok()))
    }

    /// Sockets belong to the namespace of the thread that creates them: a separate thread enters
    /// the namespace.
    fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let enter = || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
                .context("failed to enter the network namespace")?;
            work()
        };
        std::thread::scope(|scope| scope.spawn(enter).join())
            .map_err(|_| anyhow!("the thread in the network namespace panicked"))?
    }
}
