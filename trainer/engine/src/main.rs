//! `rljob-engine` program. Exits with 0 after SIGTERM or SIGINT, and with 1 if the model cannot be
//! loaded or served.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use rljob_engine::arguments::Arguments;
use rljob_engine::server::Server;
use rljob_http::StopSignals;
use rljob_logging::{Format, Identity};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    rljob_logging::init(Format::from_environment(), Identity::from_environment());
    match start(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            rljob_logging::print_fatal(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: Arguments) -> anyhow::Result<()> {
    if let Some(parent) = arguments.exit_with_parent {
        exit_with_parent(parent).context("failed to request a signal for the parent's exit")?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let outcome = runtime.block_on(run(arguments));
    // The scheduler thread may be blocked in a collective; the process exit ends it.
    runtime.shutdown_background();
    outcome
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut signals = StopSignals::listen().context("failed to listen for SIGTERM")?;
    let server = tokio::select! {
        server = Server::start(arguments) => server?,
        () = signals.next() => return Ok(()),
    };
    let address = server.address().context("the listener has no address")?;
    tracing::info!("listening on {}://{address}", server.scheme());
    server.serve(signals.next()).await
}

/// Requests a SIGTERM for the exit of the parent thread. A parent that exited before the request is
/// detected by the parent id.
fn exit_with_parent(parent: i32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    anyhow::ensure!(getppid() == Pid::from_raw(parent), "the parent process {parent} has exited");
    Ok(())
}
