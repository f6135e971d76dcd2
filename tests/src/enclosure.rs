//! The room a cluster runs in (kube/enclosure.sh): process, mount and network namespaces that end
//! with the test.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::files;
use crate::proc::{self, PodProcess};
use crate::process::{run, wait_until};

/// Rooms of this process so far: each gets a name and an address of its own.
static OPENED: AtomicU32 = AtomicU32::new(0);

/// A room. Dropping it ends every process in it and removes its folder.
#[derive(Debug)]
pub struct Enclosure {
    /// Holds the pipe that keeps the room open.
    keeper: Child,
    /// Process 1 of the room, as seen from outside.
    init: u32,
    started: Vec<Child>,
    /// Unique on this machine; also the name of its cgroups.
    pub name: String,
    /// The folder for everything the room's programs write.
    pub state: PathBuf,
    /// Where the test reaches the room's servers.
    pub address: Ipv4Addr,
}

impl Enclosure {
    /// Opens a room. Needs root: namespaces, mounts and cgroups are made.
    pub fn open() -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "a test cluster needs root; `make e2e` uses sudo where needed"
        );
        let number = (process::id() * 8 + OPENED.fetch_add(1, Ordering::Relaxed)) & 0x3fff;
        let name = format!("rljob-t{number}");
        let state = std::env::temp_dir().join(&name);
        let _ = fs::remove_dir_all(&state);
        fs::create_dir_all(state.join("logs"))
            .with_context(|| format!("cannot create {}", state.display()))?;
        if std::env::var_os("RLJOB_TEST_KEEP").is_some() {
            File::create(state.join("keep"))?;
        }
        let log = File::create(state.join("logs/enclosure.log"))?;
        let mut command = Command::new(files::workspace().join("tests/kube/enclosure.sh"));
        command.arg(&state).arg(&name).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut keeper =
            command.process_group(0).spawn().context("cannot start tests/kube/enclosure.sh")?;
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().context("no pipe to the enclosure")?)
            .read_line(&mut line)?;
        let init = line.trim().parse().with_context(|| {
            format!("the enclosure did not open: {}", tail(&state.join("logs/enclosure.log")))
        })?;
        let address = connect(&name, init, number)?;
        Ok(Self { keeper, init, started: Vec::new(), name, state, address })
    }

    /// Starts a program that stays as long as the room; it writes to `logs/NAME.log`.
    pub fn start(&mut self, name: &str, program: &Path, arguments: &[String]) -> Result<()> {
        let child = self.spawn(name, program, arguments)?;
        self.started.push(child);
        Ok(())
    }

    /// Starts a program that ends when it is dropped, or with the room; it writes to
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
        command.spawn().with_context(|| format!("cannot start {name}"))
    }

    /// Kills the oldest process of the room whose command line matches this extended regular
    /// expression, as a crash would.
    pub fn kill_oldest(&self, command_line: &str) -> Result<()> {
        let id = self.run("pgrep", &["--oldest", "--full", command_line])?;
        self.run("kill", &["-KILL", id.trim()]).map(drop)
    }

    /// Processes in the pods of a node, or of every node where the name is empty.
    pub fn pod_processes(&self, node: &str) -> Vec<PodProcess> {
        proc::in_pods(&format!("/{}/{node}", self.name))
    }

    /// The oldest process of the room itself, not of its pods, whose command line contains these
    /// words.
    pub fn own_process(&self, words: &str) -> Result<Pid> {
        proc::in_network(self.init, words)
            .with_context(|| format!("no program of the cluster is {words}"))
    }

    /// Runs a program to its end in the room.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        run(self.enter(Path::new(program)).args(arguments))
    }

    /// Listens in the room's network; what is accepted is served from outside of it.
    pub fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        let network = File::open(format!("/proc/{}/ns/net", self.init))?;
        // A listener stays in the network that it was made in; only this thread moves there.
        let listen = move || -> Result<TcpListener> {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(TcpListener::bind(address)?)
        };
        let listener = std::thread::spawn(listen)
            .join()
            .map_err(|_| anyhow::anyhow!("the thread that listens at {address} ended"))?;
        listener.with_context(|| format!("cannot listen at {address} in the room {}", self.name))
    }

    /// Where a started program's words go.
    pub fn log(&self, name: &str) -> PathBuf {
        self.state.join("logs").join(format!("{name}.log"))
    }

    /// The last lines of every log, for a failure that is the cluster's own.
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

impl Drop for Enclosure {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        for child in &mut self.started {
            let _ = child.wait();
        }
        let keeper = &mut self.keeper;
        if let Err(error) = wait_until("the enclosure to close", Duration::from_secs(60), || {
            Ok(keeper.try_wait()?.is_some())
        }) {
            eprintln!("{error:#}");
        }
    }
}

/// A program in a room that a test starts and stops.
#[derive(Debug)]
pub struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Number of its newest process, as seen from outside the room: the program itself, not what
    /// brought it in.
    pub fn process(&self) -> Result<u32> {
        let group = self.child.id().to_string();
        let newest = run(Command::new("pgrep").args(["--newest", "--pgroup", &group]))?;
        newest.trim().parse().context("pgrep printed no number")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let process = Pid::from_raw(self.process()?.cast_signed()).context("no process")?;
        kill_process(process, signal).context("cannot signal the program")
    }

    /// What it has said so far.
    pub fn words(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The child is nsenter, which leads the group that the program itself is in.
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Lays a cable from this machine into the room: a pair of interfaces with a network of four
/// addresses, from the range for benchmarks (RFC 2544).
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
