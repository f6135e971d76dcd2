//! `rljob-coordinator`: arguments, logging and exit codes. The library has everything else.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rljob_coordinator::persistence::checkpoint_file::CheckpointFile;
use rljob_coordinator::persistence::identity::IdentityError;
use rljob_coordinator::process::{Options, download_model, run};
use rljob_coordinator::reward::Runner;
use rljob_coordinator::reward_check::check_rewards;
use rljob_coordinator::server::dashboard;
use rljob_crds::names::{DASHBOARD_VARIABLE, EXIT_PROTOCOL_UNSUPPORTED, EXIT_RUN_DIRECTORY_IN_USE};
use rljob_http::TlsError;
use rljob_logging::{Format, Identity};
use rljob_protocol::run_config::RunConfigError;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Coordinator of an RLJob: data, rollouts, rewards, the journal, batches, weight-sync orders and
/// evaluation.
#[derive(Debug, Parser)]
#[command(version)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
struct Arguments {
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Folder of bearer tokens, one file each: operator, learner, engine-api, engine-admin; and of
    /// the certificate, tls-coordinator.pem.
    #[arg(long, value_name = "DIR")]
    #[arg(required_unless_present_any = [
        "check_data", "check_model", "check_rewards", "roll_back", "read_file",
        "verify_checkpoints",
    ])]
    tokens: Option<PathBuf>,
    /// Address and port to listen on; port 0 takes a free one and prints it.
    #[arg(long, default_value = "[::]:8080")]
    listen: SocketAddr,
    /// IP address announced in the run store for supervisors and learners. Default: the service
    /// name is used.
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Loopback address and port of the dashboard, which has no authentication. Default: it is not
    /// served.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = DASHBOARD_VARIABLE,
        value_parser = dashboard::address
    )]
    dashboard: Option<SocketAddr>,
    /// Socket of the program that runs the commands of rewards. Default: it is the program
    /// `rljob-reward-runner` in the folder of this one.
    #[arg(long, value_name = "PATH")]
    reward_runner: Option<PathBuf>,
    /// The programs of rewards, tools and agents run in the verifier pods that the operator names.
    #[arg(long)]
    verifiers: bool,
    /// Download the Hugging Face model of the run into the run directory and exit.
    #[arg(long)]
    download_model: bool,
    /// Read the data as a run would, print its numbers of rows and those that would be dropped, and
    /// exit.
    #[arg(long)]
    check_data: bool,
    /// Check the tokenizer against the model and the spec, and exit.
    #[arg(long, conflicts_with_all = ["check_data", "roll_back"])]
    check_model: bool,
    /// Check that the functions of `python` rewards can be called on this machine, print what the
    /// reference answers of the first rows score, and exit.
    #[arg(long, conflicts_with_all = ["check_data", "check_model", "roll_back"])]
    check_rewards: bool,
    /// Restore the stopped run to its newest complete checkpoint of this step, print what is
    /// discarded, and exit. Runs in a bucket are not supported.
    #[arg(long, value_name = "STEP", conflicts_with = "check_data")]
    roll_back: Option<u32>,
    /// With `--roll-back`: change nothing.
    #[arg(long, requires = "roll_back")]
    dry_run: bool,
    /// Compare the files of the run's complete checkpoints with their manifests, print a line for
    /// each, and exit; with 1 if one differs. The run may be active.
    #[arg(long, conflicts_with_all = ["check_data", "check_model", "roll_back", "read_file"])]
    verify_checkpoints: bool,
    /// With `--verify-checkpoints`: only those of this step.
    #[arg(long, value_name = "STEP", requires = "verify_checkpoints")]
    step: Option<u32>,
    /// Write a file of a complete checkpoint to standard output, for example
    /// `step-2.attempt-0/manifest.json`, and exit. Runs in a bucket are not supported.
    #[arg(long, value_name = "CHECKPOINT/FILE")]
    #[arg(conflicts_with_all = ["check_data", "check_model", "roll_back"])]
    read_file: Option<CheckpointFile>,
    /// Exit when the parent process with this id exits.
    #[arg(long, value_name = "PID")]
    exit_with_parent: Option<i32>,
}

impl Arguments {
    /// Whether the process runs a job, or downloads its model, until it has ended.
    fn is_run(&self) -> bool {
        !self.check_data
            && !self.check_model
            && !self.check_rewards
            && self.roll_back.is_none()
            && self.read_file.is_none()
            && !self.verify_checkpoints
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Those who start other tasks read the output.
    let format = if arguments.is_run() { Format::from_environment() } else { Format::Text };
    rljob_logging::init(format, Identity::from_environment());
    match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            rljob_logging::print_fatal(&format!("{error:#}"));
            let in_use = matches!(error.downcast_ref(), Some(IdentityError::Another { .. }));
            // The starter is of a release without certificates.
            let without_identity = matches!(error.downcast_ref(), Some(TlsError::Read(..)));
            let unreadable = without_identity || error.downcast_ref::<RunConfigError>().is_some();
            match (in_use, unreadable) {
                (true, _) => ExitCode::from(EXIT_RUN_DIRECTORY_IN_USE as u8),
                (_, true) => ExitCode::from(EXIT_PROTOCOL_UNSUPPORTED as u8),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn start(arguments: Arguments) -> anyhow::Result<()> {
    if let Some(parent) = arguments.exit_with_parent {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // It may have ended before.
        anyhow::ensure!(
            getppid() == Pid::from_raw(parent),
            "the process {parent} that started this one is gone"
        );
    }
    let (only_model, verifiers) = (arguments.download_model, arguments.verifiers);
    let is_run = arguments.is_run();
    let Arguments { config, tokens, listen, address, dashboard, .. } = arguments;
    let Some(tokens) = tokens.filter(|_| is_run) else {
        let (config, _) = rljob_protocol::run_config::read(&config)?;
        let mut output = std::io::stdout().lock();
        let text = match (arguments.roll_back, arguments.read_file) {
            (Some(step), _) => {
                rljob_coordinator::rollback::roll_back(&config, step, arguments.dry_run)?
            }
            (_, Some(file)) => return file.write(&config, &mut output),
            _ if arguments.verify_checkpoints => {
                let (text, all_match) =
                    rljob_coordinator::verification::verify(&config, arguments.step)?;
                output.write_all(text.as_bytes())?;
                anyhow::ensure!(all_match, "checkpoints differ from their manifests");
                return Ok(());
            }
            _ if arguments.check_model => {
                rljob_coordinator::input::check_model(&config)?;
                String::new()
            }
            _ if arguments.check_rewards => {
                runtime()?.block_on(check_rewards(&config, &runner_program()?))?
            }
            _ => rljob_coordinator::check::check(&config)?,
        };
        return Ok(output.write_all(text.as_bytes())?);
    };
    let reward_runner = match arguments.reward_runner {
        Some(socket) => Runner::Socket(socket),
        None => runner_program()?,
    };
    let incarnation = rand::random();
    let options = Options {
        config,
        tokens,
        listen,
        address,
        dashboard,
        reward_runner,
        verifiers,
        incarnation,
    };
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        if only_model { download_model(&options).await } else { run(&options).await }
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    result
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// The reward runner in the folder of this program.
fn runner_program() -> std::io::Result<Runner> {
    Ok(Runner::Program(std::env::current_exe()?.with_file_name("rljob-reward-runner")))
}
