//! The command line of every process of a local run. Pure: ports, paths and the job are parameters.

use std::ffi::{OsStr, OsString};

use rljob_crds::RunConfig;
use rljob_crds::algorithm::Precision;
use rljob_crds::data::InitialWeights;
use rljob_crds::names::{TOKEN_ENGINE_ADMIN, TOKEN_ENGINE_API};

use super::directory::RunDirectory;

/// What a process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The coordinator.
    Coordinator,
    /// An engine.
    Inference,
    /// A supervisor, under which the learners run.
    Trainer,
}

/// How one process is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Its name, also of its log.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// File name of the program, beside this one.
    pub program: &'static str,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Whether it is given a free port, another one at every start, as a last `--port`.
    pub takes_port: bool,
}

/// Every process of the run, in the order in which they are started.
pub fn recipes(config: &RunConfig, directory: &RunDirectory, coordinator_port: u16) -> Vec<Recipe> {
    let spec = &config.spec;
    let mut recipes = vec![coordinator(directory, coordinator_port)];
    recipes.extend((0..spec.inference.replicas).map(|index| engine(config, directory, index)));
    recipes.extend((0..spec.trainer.replicas).map(|index| supervisor(directory, coordinator_port, index)));
    recipes
}

fn coordinator(directory: &RunDirectory, port: u16) -> Recipe {
    let mut arguments = common(directory);
    push(&mut arguments, "--listen", format!("127.0.0.1:{port}"));
    arguments.push("--exit-with-parent".into());
    Recipe { name: "coordinator".to_owned(), role: Role::Coordinator, program: "rljob-coordinator", arguments, takes_port: false }
}

fn supervisor(directory: &RunDirectory, port: u16, index: i32) -> Recipe {
    let name = format!("trainer-{index}");
    let mut arguments = common(directory);
    push(&mut arguments, "--coordinator", format!("http://127.0.0.1:{port}"));
    push(&mut arguments, "--name", &name);
    push(&mut arguments, "--address", "127.0.0.1");
    arguments.push("--exit-with-parent".into());
    Recipe { name, role: Role::Trainer, program: "rljob-supervisor", arguments, takes_port: false }
}

fn engine(config: &RunConfig, directory: &RunDirectory, index: i32) -> Recipe {
    let training = &config.spec.training;
    let mut arguments = Vec::new();
    push(&mut arguments, "--model-path", &config.model_directory);
    push(&mut arguments, "--host", "127.0.0.1");
    push(&mut arguments, "--load-format", if config.spec.model.weights == InitialWeights::Random { "dummy" } else { "auto" });
    push(&mut arguments, "--dtype", if training.precision == Precision::BF16 { "bfloat16" } else { "float32" });
    push(&mut arguments, "--random-seed", training.seed.to_string());
    push(&mut arguments, "--api-key-file", directory.token(TOKEN_ENGINE_API));
    push(&mut arguments, "--admin-api-key-file", directory.token(TOKEN_ENGINE_ADMIN));
    if training.deterministic {
        arguments.push("--deterministic".into());
    }
    arguments.push("--exit-with-parent".into());
    Recipe { name: format!("inference-{index}"), role: Role::Inference, program: "rljob-engine", arguments, takes_port: true }
}

fn common(directory: &RunDirectory) -> Vec<OsString> {
    let mut arguments = Vec::new();
    push(&mut arguments, "--config", directory.run_config());
    push(&mut arguments, "--tokens", directory.tokens());
    arguments
}

fn push(arguments: &mut Vec<OsString>, name: &str, value: impl AsRef<OsStr>) {
    arguments.push(name.into());
    arguments.push(value.as_ref().to_owned());
}
