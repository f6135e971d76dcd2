//! Sandbox of a test cluster: PID, mount and network namespaces that end with the test
//! (tests/kube/sandbox.sh).

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::netns::NetworkNamespace;
use crate::process::{run, wait_until};
use crate::procfs::{self, PodProcess};

/// Part of the program, which also runs on machines without a checkout.
const SCRIPT: &str = include_str!("../kube/sandbox.sh");
/// Number of sandboxes of this process, from which names and addresses are derived.
static OPENED: AtomicU32 = AtomicU32::new(0);

/// A running sandbox. Dropping it kills every process in it and removes its folder.
#[derive(Debug)]
pub struct Sandbox {
    /// The sandbox script; closing its standard input ends the sandbox.
    script: Child,
    /// PID of the sandbox's process 1 in the host's namespace.
    init: u32,
    started: Vec<Child>,
    /// Unique on this machine; also the name of the sandbox's cgroups.
    pub name: String,
    /// Folder of all state and logs.
    pub state: PathBuf,
    /// Address at which the test reaches servers in the sandbox.
    pub address: Ipv4Addr,
}

impl Sandbox {
    /// Creates a sandbox. Requires root for namespaces, mounts and cgroups.
    pub fn open() -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "test clusters require root; `make e2e` uses sudo where needed"
        );
        let number = (process::id() * 8 + OPENED.fetch_add(1, Ordering::Relaxed)) & 0x3fff;
        let name = format!("rljob-t{number}");
        let state = std::env::temp_dir().join(&name);
        let _ = fs::remove_dir_all(&state);
        fs::create_dir_all(state.join("logs"))
            .with_context(|| format!("failed to create {}", state.display()))?;
        if std::env::var_os("RLJOB_TEST_KEEP").is_some() {
            File::create(state.join("keep"))?;
        }
        let log = File::create(state.join("logs/sandbox.log"))?;
        let script = state.join("sandbox.sh");
        fs::write(&script, SCRIPT)?;
        let mut command = Command::new("bash");
        command.arg(script).arg(&state).arg(&name);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut script =
            command.process_group(0).spawn().context("failed to start tests/kube/sandbox.sh")?;
        let mut line = String::new();
        BufReader::new(script.stdout.take().context("no pipe to the sandbox")?)
            .read_line(&mut line)?;
        let init = line.trim().parse().with_context(|| {
            format!("the sandbox did not start: {}", tail(&state.join("logs/sandbox.log")))
        })?;
        let address = connect(&name, init, number)?;
        Ok(Self { script, init, started: Vec::new(), name, state, address })
    }

    /// Starts a program that runs until the sandbox ends; its output goes to `logs/NAME.log`.
    pub fn start(&mut self, name: &str, program: &Path, arguments: &[String]) -> Result<()> {
        let child = self.spawn(name, program, arguments)?;
        self.started.push(child);
        Ok(())
    }

    /// Starts a program that is killed on drop or with the sandbox; its output goes to
    /// `logs/NAME.log`.
    pub fn start_guarded(
        &self,
        name: &str,
        program: &Path,
        arguments: &[String],
    ) -> Result<Program> {
        Ok(Program { child: self.spawn(name, program, arguments)?, log: self.log(name) })
    }

    fn spawn(&self, name: &str, program: &Path, arguments: &[String]) -> Result<Child> {
        let log = File::create(self.log(name))?;
        let mut command = self.enter(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        command.spawn().with_context(|| format!("failed to start {name}"))
    }

    /// Sends SIGKILL to the oldest process whose command line matches an extended regular
    /// expression.
    pub fn kill_oldest(&self, command_line: &str) -> Result<()> {
        let id = self.run("pgrep", &["--oldest", "--full", command_line])?;
        self.run("kill", &["-KILL", id.trim()]).map(drop)
    }

    /// Stops the program whose command line matches an extended regular expression, and waits for
    /// its end.
    pub fn stop(&self, command_line: &str) -> Result<()> {
        self.kill_oldest(command_line)?;
        // pgrep fails if no process matches.
        wait_until(&format!("the end of {command_line}"), Duration::from_secs(30), || {
            Ok(self.run("pgrep", &["--full", command_line]).is_err())
        })
    }

    /// Processes in the pods of a node, or of all nodes if `node` is empty.
    pub fn pod_processes(&self, node: &str) -> Vec<PodProcess> {
        procfs::in_pods(&format!("/{}/{node}", self.name))
    }

    /// The oldest process outside pods whose command line contains `command`.
    pub fn own_process(&self, command: &str) -> Result<Pid> {
        procfs::in_network(self.init, command)
            .with_context(|| format!("no process of the cluster matches {command:?}"))
    }

    /// Runs a program to completion in the sandbox.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        run(self.enter(Path::new(program)).args(arguments))
    }

    /// Listens in the sandbox's network; the test process accepts the connections.
    pub fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        NetworkNamespace::of_process(self.init)?.listen(address)
    }

    /// Path at which the test reads a path of the sandbox's mounts.
    pub fn path_inside(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{}", self.init, path.display()))
    }

    /// Log file of a started program.
    pub fn log(&self, name: &str) -> PathBuf {
        self.state.join("logs").join(format!("{name}.log"))
    }

    /// The last lines of every log.
    pub fn logs(&self) -> String {
        let entries = fs::read_dir(self.state.join("logs")).into_iter().flatten().flatten();
        entries
            .map(|entry| format!("── {}\n{}\n", entry.path().display(), tail(&entry.path())))
            .collect::<Vec<_>>()
            .concat()
    }

    fn enter(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.init.to_string(), "--pid", "--mount", "--net", "--"])
            .arg(program);
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        drop(self.script.stdin.take());
        for child in &mut self.started {
            let _ = child.wait();
        }
        let script = &mut self.script;
        if let Err(error) = wait_until("the sandbox to end", Duration::from_secs(60), || {
            Ok(script.try_wait()?.is_some())
        }) {
            eprintln!("{error:#}");
        }
    }
}

/// A program in a sandbox, killed on drop.
#[derive(Debug)]
pub struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// PID of the program in the host's namespace: the newest process of the group, since `nsenter`
    /// is the first.
    pub fn process(&self) -> Result<u32> {
        let group = self.child.id().to_string();
        let newest = run(Command::new("pgrep").args(["--newest", "--pgroup", &group]))?;
        newest.trim().parse().context("pgrep printed no PID")
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let process = Pid::from_raw(self.process()?.cast_signed()).context("no process")?;
        kill_process(process, signal).context("failed to signal the program")
    }

    /// Output so far.
    pub fn output(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The child is nsenter, the leader of the program's process group.
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Connects the host and the sandbox with a veth pair and a /30 network from the benchmark range
/// (RFC 2544). Returns the sandbox's address.
fn connect(name: &str, init: u32, number: u32) -> Result<Ipv4Addr> {
    let network = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number * 4;
    let (outside, inside) = (Ipv4Addr::from(network + 1), Ipv4Addr::from(network + 2));
    let pid = init.to_string();
    let ip = |arguments: &[&str]| run(Command::new("ip").args(arguments));
    ip(&["link", "add", name, "type", "veth", "peer", "name", "test", "netns", &pid])?;
    ip(&["addr", "add", &format!("{outside}/30"), "dev", name])?;
    ip(&["link", "set", name, "up"])?;
    let within = |arguments: &[&str]| {
        run(Command::new("nsenter").args(["--target", &pid, "--net", "--", "ip"]).args(arguments))
    };
    within(&["addr", "add", &format!("{inside}/30"), "dev", "test"])?;
    within(&["link", "set", "test", "up"])?;
    Ok(inside)
}

/// The last lines of a file.
fn tail(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}
