//! Settings of a supervisor, and the command of its learners.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use rljob_protocol::supervisor::Group;

use crate::gpus::Environment;
use crate::process::LearnerCommand;

/// Command-line settings of a supervisor.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The run configuration, `run.json`.
    pub config: PathBuf,
    /// Folder of tokens.
    pub tokens: PathBuf,
    /// Base URL of the coordinator.
    pub coordinator: String,
    /// Name of the pod or process.
    pub name: String,
    /// Group of `trainer.groups`; none of the trainer itself.
    pub group: Option<String>,
    /// UID of the pod.
    pub uid: Option<String>,
    /// Address of its learners for other ranks.
    pub address: String,
    /// Executable of the learner.
    pub learner: PathBuf,
    /// Number of learner processes.
    pub processes: u32,
    /// Whether learners are on GPUs.
    pub on_gpus: bool,
    /// Additional environment of each learner.
    pub environments: Vec<Environment>,
    /// Random id of this process.
    pub instance: String,
    /// Start of the process in Unix milliseconds.
    pub started_at: u64,
    /// Time that learners keep running after SIGTERM or SIGINT.
    pub grace: Duration,
}

impl Settings {
    /// Command of the learner of a rank, in the order with this epoch.
    pub fn learner_command(&self, group: &Group, rank: u32, epoch: u64) -> LearnerCommand {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: OsString| arguments.extend([OsString::from(name), value]);
        add("--config", self.config.clone().into());
        add("--tokens", self.tokens.clone().into());
        add("--coordinator", self.coordinator.clone().into());
        add("--address", self.address.clone().into());
        if let Some(group) = &self.group {
            add("--group", group.into());
        }
        add("--rank", rank.to_string().into());
        add("--world-size", group.world_size.to_string().into());
        add("--local-world-size", self.processes.to_string().into());
        add("--epoch", epoch.to_string().into());
        add("--attempt", group.attempt.to_string().into());
        add("--rendezvous", host_and_port(&group.rendezvous_address, group.rendezvous_port).into());
        if let Some(restore) = &group.restore {
            add("--restore", restore.path.clone().into());
            add("--restore-version", restore.version.to_string().into());
        }
        let index = rank.saturating_sub(group.first_rank) as usize;
        LearnerCommand {
            program: self.learner.clone(),
            arguments,
            environment: self.environments.get(index).cloned().unwrap_or_default(),
            rank,
        }
    }
}

/// `HOST:PORT`, with IPv6 addresses in brackets.
fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Settings;
    use rljob_protocol::supervisor::{Group, Restore};
    use rljob_protocol::version::Version;

    #[test]
    fn a_learner_gets_its_rank_and_the_rendezvous_as_arguments_and_its_device() {
        let device = |name: &str| vec![("CUDA_VISIBLE_DEVICES", name.to_owned())];
        let settings = Settings {
            config: "/c/run.json".into(),
            tokens: "/t".into(),
            coordinator: "https://coordinator:8080".into(),
            name: "trainer-1".into(),
            uid: None,
            group: None,
            address: "10.0.0.2".into(),
            learner: "/bin/rljob-learner".into(),
            processes: 2,
            on_gpus: false,
            environments: vec![device("6"), device("7")],
            instance: "a".into(),
            started_at: 1,
            grace: Duration::ZERO,
        };
        let restore = Some(Restore {
            version: Version { step: 7, attempt: 1 },
            path: "/run/checkpoints/step-7.attempt-1".into(),
        });
        let group = Group {
            attempt: 2,
            first_rank: 2,
            world_size: 4,
            rendezvous_address: "10.0.0.1".into(),
            rendezvous_port: 29400,
            restore,
        };
        let of_group = Settings { group: Some("frozen".to_owned()), ..settings.clone() };
        let arguments = of_group.learner_command(&group, 3, 5).arguments;
        assert_eq!(arguments[8..12], ["--group", "frozen", "--rank", "3"]);
        let command = settings.learner_command(&group, 3, 5);
        assert_eq!(command.environment, device("7"));
        let arguments: Vec<_> =
            command.arguments.iter().map(|argument| argument.to_string_lossy()).collect();
        assert_eq!(
            arguments.join(" "),
            "--config /c/run.json --tokens /t --coordinator https://coordinator:8080 \
             --address 10.0.0.2 --rank 3 --world-size 4 --local-world-size 2 --epoch 5 \
             --attempt 2 --rendezvous 10.0.0.1:29400 --restore /run/checkpoints/step-7.attempt-1 \
             --restore-version step-7.attempt-1"
        );
    }

    #[test]
    fn an_ipv6_rendezvous_is_bracketed() {
        assert_eq!(super::host_and_port("fd00::7", 29400), "[fd00::7]:29400");
        assert_eq!(super::host_and_port("10.0.0.1", 29400), "10.0.0.1:29400");
    }
}
