//! Startup of a learner of a group of `trainer.groups`: memory plan, process group, then the frozen
//! model.

use std::time::Instant;

use rljob_crds::algorithm::Sharding;
use rljob_crds::{RLJobSpec, RunConfig};
use rljob_storage::RunStore;

use super::arguments::StartArguments;
use super::connection::{connect, prepare};
use super::device::{compute_kind, device};
use super::error::StartError;
use super::frozen::reference;
use crate::group_learner::GroupLearner;
use crate::heartbeat;
use crate::memory::out_of_memory::guard;
use crate::memory::{Phase, of_group_ranks, planned_group};
use crate::mesh::Mesh;
use crate::model::{Model, ModelConfig};
use crate::ranks::Ranks;
use crate::teacher::Teacher;

/// Joins the process group of a group, reports the memory plan and loads the model, divided among
/// all ranks. `threads` is libtorch's number of threads.
///
/// # Errors
/// The run has no group of this name, the model cannot be read or does not fit, or a rank, the
/// coordinator or the run store is unreachable.
pub fn start_group(
    mut config: RunConfig,
    arguments: &StartArguments,
    group: String,
    threads: u32,
) -> Result<GroupLearner, StartError> {
    config.spec = config.spec.of_group(&group).ok_or(StartError::Group(group.clone()))?;
    let run_store = RunStore::of(&config)?.on_response(heartbeat::advance);
    let client = connect(&config, arguments, &run_store)?;
    prepare(&config, threads)?;
    let RunConfig { mut spec, model_directory, .. } = config;
    let device = device(&spec)?;
    let policy = Model::new(ModelConfig::from_folder(&model_directory)?);
    let teacher = Teacher::of(&spec, &policy, &model_directory)?;
    let frozen = teacher.as_ref().map_or(&policy, |teacher| &teacher.model);
    let learner = (device, arguments.size);
    let planned = planned_group(frozen, (&group, &spec), learner, compute_kind(spec.precision()))?;
    let (host, port) = &arguments.rendezvous;
    let ranks = Ranks::join(
        (host, *port),
        &arguments.address,
        Mesh::new(arguments.rank, arguments.size, Sharding::Full),
        device,
        arguments.attempt,
    )?;
    if let Some(planned) = planned {
        let plan = of_group_ranks(&planned, &ranks)?;
        if ranks.rank() == 0 {
            client.report_group_memory(&group, plan)?;
        }
    }
    let joined = Instant::now();
    let load = |spec: &mut RLJobSpec| reference(spec, &policy, &ranks, (&model_directory, None));
    let describe = |spec: &RLJobSpec| (Phase::LoadingFrozen, spec.clone());
    let model = guard(&mut spec, describe, load)?;
    tracing::info!(
        group,
        rank = arguments.rank,
        world_size = arguments.size.world_size,
        parameters = model.model.layout().numel(),
        seconds = joined.elapsed().as_secs_f64(),
        "loaded the frozen model of the group"
    );
    Ok(GroupLearner::new(group, ranks, model, client, spec))
}
