//! Startup of a [`Learner`]: settings of libtorch, shape of the model, process group, then weights
//! from a checkpoint, a folder or a seed.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

mod arguments;
pub mod check;
mod connection;
mod device;
mod error;
mod frozen;
mod group;
mod heads;
mod initial;
pub mod memory;

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rljob_crds::algorithm::{ModelRole, OptimizerSpec, Sharding};
use rljob_crds::{RLJobSpec, RunConfig};
use rljob_protocol::supervisor::Restore;
use rljob_protocol::version::Version;
use rljob_storage::RunStore;
use tch::{Device, Kind, Tensor};

pub use self::arguments::StartArguments;
pub use self::error::StartError;
pub use self::group::start_group;

use self::connection::{connect, prepare};
use self::device::{compute_kind, device, passes};
use self::frozen::{adapters, base, frozen_models};
use self::heads::{critic, headed};
use self::initial::initial_blocks;
use crate::checkpoint::{self, CheckpointWriter, Places, SnapshotMemory, model_shape};
use crate::coordinator_client::CoordinatorClient;
use crate::fsdp::into_shard;
use crate::heartbeat;
use crate::learner::Learner;
use crate::memory::out_of_memory::guard;
use crate::memory::{Phase, of_all_ranks, planned};
use crate::mesh::Mesh;
use crate::model::{Model, ModelConfig, ModelError};
use crate::models::{Models, RoleModel, TrainedModel, adapters_shape};
use crate::objective;
use crate::publish::broadcast::Broadcaster;
use crate::publish::export::{Exporter, Target};
use crate::publish::probes::Probes;
use crate::publish::writer::WeightsWriter;
use crate::ranks::Ranks;
use crate::spans::Spans;
use crate::step::calls::CallTimes;
use crate::teacher::Teacher;
use crate::trainer::Trainer;

/// Joins the process group and loads weights and moments. `threads` is libtorch's number of
/// threads.
///
/// # Errors
/// The model or checkpoint cannot be read, or a rank or the run store is unreachable.
pub fn start(
    config: RunConfig,
    arguments: &StartArguments,
    threads: u32,
) -> Result<Learner, StartError> {
    // Transfers of large checkpoints count as progress.
    let run_store = RunStore::of(&config)?.on_response(heartbeat::advance);
    let client = connect(&config, arguments, &run_store)?;
    let trainer = load_trainer(&config, arguments, &client, threads)?;
    let steps_done = arguments.restore.as_ref().map_or(0, |restore| restore.version.step);
    tracing::info!(
        rank = arguments.rank,
        world_size = arguments.size.world_size,
        steps_done,
        parameters = trainer.models.policy.model.layout().numel(),
        "the learner is ready"
    );
    let reports = (arguments.rank == 0).then(|| client.clone());
    let target = Target::of(&config, &run_store);
    let RunConfig { model_directory, run_directory, .. } = config;
    Ok(Learner {
        checkpoints: CheckpointWriter::new(reports, trainer.models.shapes()),
        snapshot_memory: snapshot_memory(&trainer),
        exports: Exporter::new(client.clone(), model_directory.clone(), target),
        weights: WeightsWriter::new(client.clone(), model_directory.clone()),
        broadcaster: Broadcaster::new(
            client.clone(),
            arguments.rank,
            arguments.address.clone(),
            trainer.ranks.device(),
        ),
        probes: Probes::default(),
        trainer,
        model_directory,
        client,
        steps_done,
        waited: Duration::ZERO,
        run_store,
        run_directory,
    })
}

/// Memory of snapshots, on ranks that write checkpoints.
fn snapshot_memory(trainer: &Trainer) -> SnapshotMemory {
    if !trainer.ranks.is_of_first_replica() {
        return SnapshotMemory::default();
    }
    SnapshotMemory::begin(trainer.ranks.device(), trainer.models.snapshot_bytes())
}

/// Configures libtorch, joins the process group, reports the memory plan and loads the models.
fn load_trainer(
    config: &RunConfig,
    arguments: &StartArguments,
    client: &CoordinatorClient,
    threads: u32,
) -> Result<Trainer, StartError> {
    let RunConfig { spec, model_directory, bucket, .. } = config;
    prepare(config, threads)?;
    let device = device(spec)?;
    let model = headed(spec, Model::new(ModelConfig::from_folder(model_directory)?))?;
    let compute = compute_kind(spec.precision());
    let teacher = Teacher::of(spec, &model, model_directory)?;
    let teacher = teacher.as_ref().map(|teacher| teacher.model.layout());
    let planned = planned(model, teacher, spec, (device, arguments.size), compute)?;
    let (host, port) = &arguments.rendezvous;
    let ranks = Ranks::join(
        (host, *port),
        &arguments.address,
        Mesh::new(arguments.rank, arguments.size, planned.sharding),
        device,
        arguments.attempt,
    )?;
    let mut spec = spec.clone();
    spec.training.sharding = Some(agreed(planned.sharding, &ranks)?);
    if let Some(plan) = of_all_ranks(&planned, teacher, &spec, (&ranks, arguments.size), compute)?
        && ranks.rank() == 0
    {
        client.report_memory(plan)?;
    }
    let model = planned.model;
    let joined = Instant::now();
    let load = |spec: &mut RLJobSpec| match &arguments.restore {
        None => first_trainer(spec.clone(), model, ranks, model_directory),
        Some(Restore { version, path }) => {
            let folder = RunStore::at(path, bucket.as_ref())?.on_response(heartbeat::advance);
            let checkpoint = (*version, &folder);
            restored_trainer(spec.clone(), model, ranks, checkpoint, model_directory)
        }
    };
    let trainer = guard(&mut spec, |spec| (Phase::Loading, spec.clone()), load)?;
    tracing::info!(seconds = joined.elapsed().as_secs_f64(), "loaded the models");
    Ok(trainer)
}

/// The sharding of all ranks: `Full` unless every rank can hold whole blocks or the spec sets
/// another one. A collective.
fn agreed(sharding: Sharding, ranks: &Ranks) -> Result<Sharding, StartError> {
    let [full] = ranks.sum([f64::from(u8::from(sharding == Sharding::Full))])?;
    let agreed = if full > 0.0 { Sharding::Full } else { sharding };
    if ranks.world_size() > 1 && ranks.device().is_cuda() {
        tracing::info!(sharding = ?agreed, "division of blocks over the ranks");
    }
    Ok(agreed)
}

/// Creates a trainer at step 0.
///
/// # Errors
/// The weights cannot be read.
pub fn first_trainer(
    spec: RLJobSpec,
    model: Model,
    ranks: Rc<Ranks>,
    model_directory: &Path,
) -> Result<Trainer, StartError> {
    let model = headed(&spec, model)?;
    let base = base(&spec, &model, &ranks, model_directory)?;
    let start = |model: Model, optimizer: OptimizerSpec| -> Result<TrainedModel, StartError> {
        let passes = passes(&spec);
        let blocks = initial_blocks(&spec, &model, model_directory)?;
        let place = if optimizer.offload_weights { Device::Cpu } else { ranks.device() };
        let shard = |block: Result<Tensor, ModelError>| {
            let shard = into_shard(block?, ranks.mesh());
            // Moved first: the files' kind has half the bytes of fp32.
            Ok::<_, ModelError>(shard.f_to_device(place)?.f_to_kind(Kind::Float)?)
        };
        let Some((lora, base)) = adapters(&spec, &model, base.as_ref()) else {
            let masters = blocks.map(shard).collect::<Result<_, _>>()?;
            return Ok(TrainedModel::new(model, &ranks, optimizer, passes, masters)?);
        };
        let whole = lora.whole().and_then(|_| blocks.last());
        let trained = lora.initial(spec.training.seed).chain(whole);
        let masters = trained.map(shard).collect::<Result<_, _>>()?;
        Ok(TrainedModel::adapted(model, &ranks, optimizer, passes, (lora, base), masters)?)
    };
    let mut others = frozen_models(&spec, &model, &ranks, (model_directory, base.as_ref()))?;
    if let Some((critic, optimizer)) = critic(&spec, &model)? {
        let critic = start(critic, optimizer)?;
        others.insert(ModelRole::Critic, RoleModel::Trained(Box::new(critic)));
    }
    let policy = start(model, spec.optimizer.clone())?;
    trainer(spec, ranks, Models::new(policy, others))
}

/// Creates a trainer that continues from a checkpoint, given by its version and folder. The model
/// folder is read for frozen models only: the reference, and the base of adapters.
///
/// # Errors
/// The checkpoint or the weights of a frozen model cannot be read.
pub fn restored_trainer(
    spec: RLJobSpec,
    model: Model,
    ranks: Rc<Ranks>,
    checkpoint: (Version, &RunStore),
    model_directory: &Path,
) -> Result<Trainer, StartError> {
    let model = headed(&spec, model)?;
    let base = base(&spec, &model, &ranks, model_directory)?;
    let adapters = |model: &Model| adapters(&spec, model, base.as_ref());
    let shape = |model: &Model| match adapters(model) {
        Some((lora, base)) => adapters_shape(&lora, &base),
        None => model_shape(model.layout()),
    };
    let critic = critic(&spec, &model)?;
    let mut shapes = BTreeMap::from([(ModelRole::Policy, shape(&model))]);
    if let Some((critic, _)) = &critic {
        shapes.insert(ModelRole::Critic, shape(critic));
    }
    let shard = (ranks.mesh().shard(), ranks.mesh().shards());
    let mut places = Places::all(ranks.device());
    if spec.optimizer.offload {
        places.moments = Device::Cpu;
    }
    if spec.optimizer.offload_weights {
        places.weights = Device::Cpu;
    }
    let mut checkpoint = checkpoint::load(checkpoint.1, checkpoint.0, &shapes, shard, places)?;
    let mut restore = |role, model: Model, optimizer| {
        let part = checkpoint.models.remove(&role).ok_or(StartError::Role(role))?;
        let adapters = adapters(&model);
        Ok::<_, StartError>(TrainedModel::restored(
            model,
            &ranks,
            optimizer,
            passes(&spec),
            adapters,
            part,
        )?)
    };
    let mut others = frozen_models(&spec, &model, &ranks, (model_directory, base.as_ref()))?;
    if let Some((critic, optimizer)) = critic {
        let critic = restore(ModelRole::Critic, critic, optimizer)?;
        others.insert(ModelRole::Critic, RoleModel::Trained(Box::new(critic)));
    }
    let policy = restore(ModelRole::Policy, model, spec.optimizer.clone())?;
    let mut trainer = trainer(spec, ranks, Models::new(policy, others))?;
    trainer.objective.restore(checkpoint.objective)?;
    Ok(trainer)
}

fn trainer(spec: RLJobSpec, ranks: Rc<Ranks>, models: Models) -> Result<Trainer, StartError> {
    let algorithm = spec.algorithm.resolve().ok_or(StartError::Algorithm)?;
    let objective = objective::new(algorithm, &spec.rollout);
    let (phase, spans, calls) = (Phase::default(), Spans::default(), CallTimes::default());
    Ok(Trainer { ranks, models, objective, spec, phase, spans, calls })
}
