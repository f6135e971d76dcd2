//! Device and numerics of the passes of a learner.

use rljob_crds::RLJobSpec;
use rljob_crds::algorithm::{Precision, Sharding};
use rljob_kernels::device::compute_capability;
use tch::{Device, Kind};

use super::error::StartError;
use crate::fsdp::Passes;

/// The device of this learner: the only GPU that its supervisor lets it see, or the CPU.
pub(super) fn device(spec: &RLJobSpec) -> Result<Device, StartError> {
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

pub(super) fn passes(spec: &RLJobSpec) -> Passes {
    let sharding = spec.training.sharding.unwrap_or(Sharding::Full);
    Passes { compute: compute_kind(spec.precision()), sharding, offload: false }
}

/// Kind of forward and backward passes.
pub(super) fn compute_kind(precision: Precision) -> Kind {
    match precision {
        Precision::FP32 => Kind::Float,
        Precision::BF16 => Kind::BFloat16,
    }
}
