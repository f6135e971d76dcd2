//! Startup of a [`Learner`]: settings of libtorch, shape of the model, process group, then weights
//! from a checkpoint, a folder or a seed.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rljob_crds::algorithm::{ModelRole, OptimizerSpec, Precision, Sharding};
use rljob_crds::model::InitialWeights;
use rljob_crds::names::TOKEN_LEARNER;
use rljob_crds::{RLJobSpec, RunConfig};
use rljob_http::{ClientTls, Role, TlsError};
use rljob_kernels::device::compute_capability;
use rljob_protocol::supervisor::Restore;
use rljob_protocol::version::Version;
use rljob_storage::coordinator_resolver::CoordinatorResolver;
use rljob_storage::model_folder::{ModelFolderError, ModelFolderWait};
use rljob_storage::{RunStore, StorageError};
use tch::{Device, Kind, Tensor};

use crate::checkpoint::{self, CheckpointError, CheckpointWriter, Places, model_shape};
use crate::coordinator_client::{ClientError, CoordinatorClient};
use crate::fsdp::{Base, FrozenParameters, Passes, into_shard};
use crate::heartbeat;
use crate::learner::Learner;
use crate::memory::fit::DoesNotFit;
use crate::memory::{Phase, planned};
use crate::model::layout::TensorSpec;
use crate::model::lora::Lora;
use crate::model::{Head, Model, ModelConfig, ModelError, ModelLayout, hugging_face, random};
use crate::models::{FrozenModel, Models, RoleModel, TrainedModel, adapters_shape};
use crate::objective;
use crate::optimizer::OptimizerError;
use crate::publish::broadcast::Broadcaster;
use crate::publish::export::{Exporter, Target};
use crate::ranks::Ranks;
use crate::teacher::{Teacher, TeacherError};
use crate::trainer::Trainer;

/// Arguments of a learner from its supervisor.
#[derive(Clone, Debug)]
pub struct StartArguments {
    /// Folder of tokens.
    pub tokens: PathBuf,
    /// Base URL of the coordinator.
    pub coordinator: String,
    /// Address of this process for other ranks and engines.
    pub address: String,
    pub rank: u32,
    pub world_size: u32,
    /// Epoch of the coordinator that ordered the start.
    pub epoch: u64,
    pub attempt: u32,
    /// Host and port of rank 0's store.
    pub rendezvous: (String, u16),
    /// Checkpoint to start from.
    pub restore: Option<Restore>,
}

/// A learner that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    ModelFolder(#[from] ModelFolderError),
    /// The spec sets no algorithm, or several.
    #[error("spec.algorithm must set exactly one algorithm")]
    Algorithm,
    /// The checkpoint has no part of a model that the algorithm trains.
    #[error("the checkpoint has no {0:?} model")]
    Role(ModelRole),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Collective(#[from] rljob_collective::CollectiveError),
    #[error(transparent)]
    Memory(#[from] DoesNotFit),
    /// The trainer has GPUs, but this process has none.
    #[error("{0}")]
    Device(String),
    /// The trainer has GPUs, but this program was built without CUDA.
    #[error(
        "trainer.resources has GPUs, but this learner was built without CUDA: set trainer.image to \
         an image of Containerfile.cuda, or, on one machine, use the programs of `make build-cuda`"
    )]
    NoCuda,
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Teacher(#[from] TeacherError),
}

impl StartError {
    /// Whether the error is in the model, the checkpoint or the spec, so that a restart would fail
    /// again.
    pub fn is_input(&self) -> bool {
        match self {
            Self::ModelFolder(_)
            | Self::Algorithm
            | Self::Role(_)
            | Self::NoCuda
            | Self::Memory(_)
            | Self::Teacher(TeacherError::Tokenizer { .. } | TeacherError::Vocabulary { .. }) => {
                true
            }
            Self::Model(error) | Self::Teacher(TeacherError::Model(error)) => match error {
                ModelError::File { source, .. } => source.kind() == ErrorKind::NotFound,
                ModelError::Json { .. }
                | ModelError::Config { .. }
                | ModelError::Weights { .. }
                | ModelError::Safetensors { .. } => true,
                _ => false,
            },
            Self::Checkpoint(error) => matches!(error, CheckpointError::Other { .. }),
            Self::Collective(_)
            | Self::Client(_)
            | Self::Device(_)
            | Self::Optimizer(_)
            | Self::Storage(_)
            | Self::Tls(_) => false,
        }
    }
}

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
    let tls = ClientTls::of_file(
        &arguments.tokens.join(Role::Trainer.file()),
        &Role::Coordinator.server_name(&config.uid),
    )?;
    let client = CoordinatorClient::new(
        &arguments.coordinator,
        CoordinatorResolver::of(run_store.clone()),
        arguments.tokens.join(TOKEN_LEARNER),
        Some(&tls),
        arguments.epoch,
        arguments.attempt,
    )?;
    let trainer = load_trainer(&config, arguments, threads)?;
    let steps_done = arguments.restore.as_ref().map_or(0, |restore| restore.version.step);
    tracing::info!(
        rank = arguments.rank,
        world_size = arguments.world_size,
        steps_done,
        parameters = trainer.models.policy.model.layout().numel(),
        "the learner is ready"
    );
    let reports = (arguments.rank == 0).then(|| client.clone());
    let target = Target::of(&config, &run_store);
    let RunConfig { model_directory, run_directory, .. } = config;
    Ok(Learner {
        checkpoints: CheckpointWriter::new(reports, trainer.models.shapes()),
        exports: Exporter::new(client.clone(), model_directory.clone(), target),
        broadcaster: Broadcaster::new(
            client.clone(),
            arguments.rank,
            arguments.address.clone(),
            trainer.ranks.device(),
        ),
        trainer,
        model_directory,
        client,
        steps_done,
        waited: Duration::ZERO,
        run_store,
        run_directory,
    })
}

/// Configures libtorch, joins the process group and loads the models.
fn load_trainer(
    config: &RunConfig,
    arguments: &StartArguments,
    threads: u32,
) -> Result<Trainer, StartError> {
    let RunConfig { spec, model_directory, bucket, .. } = config;
    rljob_collective::set_num_threads(threads);
    rljob_collective::keep_freed_memory();
    if spec.training.deterministic {
        rljob_collective::set_deterministic(true)?;
    }
    let mut wait = ModelFolderWait::new(model_directory, &spec.model);
    while !wait.is_complete()? {
        heartbeat::advance();
        std::thread::sleep(ModelFolderWait::INTERVAL);
    }
    let device = device(spec)?;
    let model = headed(spec, Model::new(ModelConfig::from_folder(model_directory)?))?;
    let compute = compute_kind(spec.precision());
    let teacher = Teacher::of(spec, &model, model_directory)?;
    let teacher = teacher.as_ref().map(|teacher| teacher.model.layout());
    let (model, sharding) = planned(model, teacher, spec, (device, arguments.world_size), compute)?;
    let (host, port) = &arguments.rendezvous;
    let ranks = Ranks::join(
        (host, *port),
        &arguments.address,
        (arguments.rank, arguments.world_size),
        device,
        arguments.attempt,
    )?;
    let mut spec = spec.clone();
    spec.training.sharding = Some(agreed(sharding, &ranks)?);
    let joined = Instant::now();
    let trainer = match &arguments.restore {
        None => first_trainer(spec, model, ranks, model_directory)?,
        Some(Restore { version, path }) => {
            let folder = RunStore::at(path, bucket.as_ref())?.on_response(heartbeat::advance);
            restored_trainer(spec, model, ranks, (*version, &folder), model_directory)?
        }
    };
    tracing::info!(seconds = joined.elapsed().as_secs_f64(), "loaded the models");
    Ok(trainer)
}

/// `Gradients` if every rank can hold whole blocks. A collective.
fn agreed(sharding: Sharding, ranks: &Ranks) -> Result<Sharding, StartError> {
    let [full] = ranks.sum([f64::from(u8::from(sharding == Sharding::Full))])?;
    let agreed = if full > 0.0 { Sharding::Full } else { Sharding::Gradients };
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
    let start = |model: Model, optimizer| -> Result<TrainedModel, StartError> {
        let passes = passes(&spec);
        let blocks = initial_blocks(&spec, &model, model_directory)?;
        let shard = |block: Result<Tensor, ModelError>| {
            let shard = into_shard(block?, ranks.rank(), ranks.world_size());
            // Moved first: the files' kind has half the bytes of fp32.
            Ok::<_, ModelError>(shard.f_to_device(ranks.device())?.f_to_kind(Kind::Float)?)
        };
        let Some((lora, base)) = adapters(&spec, &model, base.as_ref()) else {
            let masters = blocks.map(shard).collect::<Result<_, _>>()?;
            return Ok(TrainedModel::new(model, &ranks, optimizer, passes, masters)?);
        };
        let whole = if lora.trains_last() { blocks.last() } else { None };
        let trained = lora.initial(spec.training.seed).chain(whole);
        let masters = trained.map(shard).collect::<Result<_, _>>()?;
        Ok(TrainedModel::adapted(model, &ranks, optimizer, passes, (lora, base), masters)?)
    };
    let mut others = frozen_models(&spec, &model, &ranks, (model_directory, base.as_ref()))?;
    if let Some(optimizer) = critic_optimizer(&spec)? {
        let critic = start(model.clone().with_head(Head::Scalar), optimizer)?;
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
    let of_critic = critic_optimizer(&spec)?;
    let critic = of_critic.map(|optimizer| (model.clone().with_head(Head::Scalar), optimizer));
    let mut shapes = BTreeMap::from([(ModelRole::Policy, shape(&model))]);
    if let Some((critic, _)) = &critic {
        shapes.insert(ModelRole::Critic, shape(critic));
    }
    let shard = (ranks.rank(), ranks.world_size());
    let mut places = Places::all(ranks.device());
    if spec.optimizer.offload {
        places.moments = Device::Cpu;
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
    trainer.objective.restore(checkpoint.objective);
    Ok(trainer)
}

fn trainer(spec: RLJobSpec, ranks: Rc<Ranks>, models: Models) -> Result<Trainer, StartError> {
    let algorithm = spec.algorithm.resolve().ok_or(StartError::Algorithm)?;
    let objective = objective::new(algorithm, &spec.rollout);
    Ok(Trainer { ranks, models, objective, spec, phase: Phase::default() })
}

/// The model with the head that the algorithm trains.
fn headed(spec: &RLJobSpec, model: Model) -> Result<Model, StartError> {
    let algorithm = spec.algorithm.resolve().ok_or(StartError::Algorithm)?;
    let head = if algorithm.trains_scores() { Head::Scalar } else { Head::LanguageModel };
    Ok(model.with_head(head))
}

/// Optimizer of the critic, if the algorithm trains one.
fn critic_optimizer(spec: &RLJobSpec) -> Result<Option<OptimizerSpec>, StartError> {
    let algorithm = spec.algorithm.resolve().ok_or(StartError::Algorithm)?;
    Ok(algorithm.critic_optimizer(&spec.optimizer))
}

/// Blocks of a language model with a scalar head of zeros in place of theirs: a critic or reward
/// model, whose values are 0 before its first update.
fn with_zero_head(
    blocks: Box<Blocks>,
    layout: &ModelLayout,
) -> impl Iterator<Item = Result<Tensor, ModelError>> + use<> {
    let layouts = layout.blocks().to_vec();
    let last = layouts.len().saturating_sub(1);
    blocks.zip(layouts).enumerate().map(move |(index, (block, layout))| {
        let block = block?;
        if index < last {
            return Ok(block);
        }
        let norm = layout.tensors().first().map_or(0, TensorSpec::numel);
        let zeros =
            Tensor::f_zeros([layout.numel().saturating_sub(norm)], (block.kind(), Device::Cpu))?;
        Ok(Tensor::f_cat(&[block.f_narrow(0, 0, norm)?, zeros], 0)?)
    })
}

/// The frozen model under the adapters, if the spec has them: the weights before training.
fn base(
    spec: &RLJobSpec,
    model: &Model,
    ranks: &Rc<Ranks>,
    model_directory: &Path,
) -> Result<Option<Base>, ModelError> {
    if spec.lora.is_none() {
        return Ok(None);
    }
    let blocks = initial_blocks(spec, model, model_directory)?;
    Ok(Some(Base::new(Rc::clone(ranks), compute_kind(spec.precision()), blocks)?))
}

/// Adapters of a model, if the spec has them.
fn adapters(spec: &RLJobSpec, model: &Model, base: Option<&Base>) -> Option<(Lora, Base)> {
    Some((Lora::new(model, spec.lora.as_ref()?), base?.clone()))
}

/// The reference model, if the algorithm needs one: the teacher, or the weights before training.
fn frozen_models(
    spec: &RLJobSpec,
    model: &Model,
    ranks: &Rc<Ranks>,
    (model_directory, base): (&Path, Option<&Base>),
) -> Result<BTreeMap<ModelRole, RoleModel>, StartError> {
    let roles = spec.algorithm.resolve().ok_or(StartError::Algorithm)?.model_roles();
    if !roles.contains(&ModelRole::Reference) {
        return Ok(BTreeMap::new());
    }
    let compute = compute_kind(spec.precision());
    let reference = if let Some(teacher) = Teacher::of(spec, model, model_directory)? {
        teacher.load(ranks, compute)?
    } else if let Some(base) = base {
        FrozenModel { model: model.clone(), parameters: base.parameters() }
    } else {
        let blocks = initial_blocks(spec, model, model_directory)?;
        let parameters = FrozenParameters::new(Rc::clone(ranks), compute, blocks)?;
        FrozenModel { model: model.clone(), parameters }
    };
    Ok(BTreeMap::from([(ModelRole::Reference, RoleModel::Frozen(Box::new(reference)))]))
}

/// Flat weights of blocks, in order.
type Blocks = dyn Iterator<Item = Result<Tensor, ModelError>>;

/// The weights before training, one flat vector per block in the kind of the files, read a few blocks
/// ahead; a scalar head is 0.
fn initial_blocks(
    spec: &RLJobSpec,
    model: &Model,
    model_directory: &Path,
) -> Result<Box<Blocks>, ModelError> {
    let language_model = ModelLayout::new(model.config());
    let blocks: Box<Blocks> = match spec.model.weights {
        InitialWeights::Pretrained => {
            Box::new(hugging_face::read_blocks(model_directory, &language_model)?)
        }
        InitialWeights::Random => {
            Box::new(random::blocks(&language_model, model.config(), spec.training.seed))
        }
    };
    Ok(match model.head() {
        Head::LanguageModel => blocks,
        Head::Scalar => Box::new(with_zero_head(blocks, model.layout())),
    })
}

/// The device of this learner: the only GPU that its supervisor lets it see, or the CPU.
fn device(spec: &RLJobSpec) -> Result<Device, StartError> {
    if spec.trainer.gpus() == 0 {
        return Ok(Device::Cpu);
    }
    if !cfg!(feature = "cuda") {
        return Err(StartError::NoCuda);
    }
    match compute_capability(0) {
        Some((8.., _)) => Ok(Device::Cuda(0)),
        Some((major, minor)) => Err(StartError::Device(format!(
            "the GPU has compute capability {major}.{minor}, and learners need 8.0 or higher"
        ))),
        None => Err(StartError::Device(
            "trainer.resources has GPUs, but this learner sees none: check the NVIDIA driver of \
             the node and CUDA_VISIBLE_DEVICES"
                .to_owned(),
        )),
    }
}

fn passes(spec: &RLJobSpec) -> Passes {
    let sharding = spec.training.sharding.unwrap_or(Sharding::Full);
    Passes { compute: compute_kind(spec.precision()), sharding }
}

/// Kind of forward and backward passes.
fn compute_kind(precision: Precision) -> Kind {
    match precision {
        Precision::FP32 => Kind::Float,
        Precision::BF16 => Kind::BFloat16,
    }
}
