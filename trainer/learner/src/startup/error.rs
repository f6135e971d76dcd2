//! Errors of the start of a learner, and which of them a restart would repeat.

use std::io::ErrorKind;

use rljob_crds::algorithm::ModelRole;
use rljob_http::TlsError;
use rljob_storage::StorageError;
use rljob_storage::model_folder::ModelFolderError;

use crate::checkpoint::CheckpointError;
use crate::coordinator_client::ClientError;
use crate::memory::OutOfMemory;
use crate::memory::fit::MemoryError;
use crate::model::ModelError;
use crate::objective::StateError;
use crate::optimizer::OptimizerError;
use crate::teacher::TeacherError;

/// A learner that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    ModelFolder(#[from] ModelFolderError),
    /// The spec sets no algorithm, or several.
    #[error("spec.algorithm must set exactly one algorithm")]
    Algorithm,
    /// Another run configuration than that of the supervisor.
    #[error("the run configuration has no group `{0}` in trainer.groups")]
    Group(String),
    /// The checkpoint has no part of a model that the algorithm trains.
    #[error("the checkpoint has no {0:?} model")]
    Role(ModelRole),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Collective(#[from] rljob_collective::CollectiveError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
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
            | Self::Group(_)
            | Self::Role(_)
            | Self::NoCuda
            | Self::Memory(MemoryError::DoesNotFit(_))
            | Self::State(_)
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
            | Self::Memory(MemoryError::Occupied(_))
            | Self::OutOfMemory(_)
            | Self::Optimizer(_)
            | Self::Storage(_)
            | Self::Tls(_) => false,
        }
    }
}
