//! GPUs in core v1 ResourceRequirements: names and numbers of device resources, and rules about
//! them.

use k8s_openapi::api::core::v1::ResourceRequirements;

/// NVIDIA's GPUs, whole and shared. Other names of the domain (`nvidia.com/gpumem` of HAMi, RDMA
/// devices) say how much of a GPU, or which network device.
const NVIDIA: [&str; 2] = ["nvidia.com/gpu", "nvidia.com/gpu.shared"];
/// Prefix of parts of NVIDIA GPUs (Multi-Instance GPU).
const NVIDIA_PART: &str = "nvidia.com/mig-";
/// Accelerators of other vendors, by the names that their device plugins register.
const OTHER: [&str; 11] = [
    "amd.com/gpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neuroncore",
    "aws.amazon.com/neurondevice",
    "cambricon.com/mlu",
    "google.com/tpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    "huawei.com/Ascend910",
    "metax-tech.com/gpu",
];

/// Device that a role computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// CPUs.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// Accelerators of other vendors.
    Other,
}

impl Device {
    /// The device that the limits of a role give it. NVIDIA GPUs beside others count as the others.
    pub fn of(resources: &ResourceRequirements) -> Self {
        if count(resources) == 0 {
            Self::Cpu
        } else if accelerators(resources).all(|(name, _)| is_nvidia_gpu(name)) {
            Self::Cuda
        } else {
            Self::Other
        }
    }

    /// Name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPUs",
            Self::Cuda => "NVIDIA GPUs",
            Self::Other => "other accelerators",
        }
    }
}

/// Whether a resource name is a GPU or another known accelerator.
pub fn is_gpu(name: &str) -> bool {
    is_nvidia_gpu(name) || OTHER.contains(&name)
}

/// Whether a resource name is an NVIDIA GPU or a part of one.
pub fn is_nvidia_gpu(name: &str) -> bool {
    NVIDIA.contains(&name) || name.starts_with(NVIDIA_PART)
}

/// GPUs in `limits`, of all resource names.
pub fn count(resources: &ResourceRequirements) -> u32 {
    accelerators(resources).fold(0, |sum, (_, number)| sum.saturating_add(number))
}

/// Names and numbers of GPUs in `limits` whose number is not 0.
fn accelerators(resources: &ResourceRequirements) -> impl Iterator<Item = (&str, u32)> {
    let limits = resources.limits.iter().flatten().filter(|(name, _)| is_gpu(name));
    let numbers = limits.filter_map(|(name, amount)| Some((name.as_str(), amount.0.parse().ok()?)));
    numbers.filter(|(_, number)| *number > 0)
}

/// CEL: a broadcast of weights has engines and learners on one kind of device. Finds whole NVIDIA
/// and AMD GPUs; the operator finds all. The cost of rules about names of a map is too high for the
/// API server, except for fixed names.
pub(crate) fn broadcast_rule() -> String {
    const NATIVE: &str = "['cpu', 'memory', 'ephemeral-storage', 'hugepages-2Mi', 'hugepages-1Gi']";
    let limits = |role: &str| format!("self.{role}.resources.limits");
    let (engines, learners) = (limits("inference"), limits("trainer"));
    let has = |limits: &str, name: &str| {
        format!(
            "has({limits}) && '{name}' in {limits} && {limits}['{name}'] != 0 && \
             {limits}['{name}'] != '0'"
        )
    };
    let has_no_device = |limits: &str| {
        format!(
            "(!has({limits}) || size({limits}) == {NATIVE}.filter(name, name in {limits}).size())"
        )
    };
    format!(
        "!has(self.weightSync.method) || self.weightSync.method != 'Distributed' || !({} && {} || \
         {} && {} || {})",
        has(&engines, "nvidia.com/gpu"),
        has_no_device(&learners),
        has(&learners, "nvidia.com/gpu"),
        has_no_device(&engines),
        has(&engines, "amd.com/gpu"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_a_role_follows_from_its_limits() {
        for (limits, device, number) in [
            (serde_json::json!({}), Device::Cpu, 0),
            (serde_json::json!({"cpu": 4, "rdma/hca_a": 1}), Device::Cpu, 0),
            (serde_json::json!({"nvidia.com/gpu": 0}), Device::Cpu, 0),
            (serde_json::json!({"nvidia.com/gpu": "2", "memory": "1Gi"}), Device::Cuda, 2),
            (serde_json::json!({"nvidia.com/gpu.shared": 1}), Device::Cuda, 1),
            (serde_json::json!({"nvidia.com/mig-1g.10gb": 2}), Device::Cuda, 2),
            (serde_json::json!({"nvidia.com/gpu": 1, "nvidia.com/hostdev": 1}), Device::Cuda, 1),
            (serde_json::json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}), Device::Cuda, 1),
            (serde_json::json!({"smarter-devices/fuse": 1}), Device::Cpu, 0),
            (serde_json::json!({"amd.com/gpu": 1}), Device::Other, 1),
            (serde_json::json!({"amd.com/gpu": 1, "nvidia.com/gpu": 1}), Device::Other, 2),
            (serde_json::json!({"google.com/tpu": 4}), Device::Other, 4),
        ] {
            let resources = serde_json::json!({"limits": limits});
            let resources = serde_json::from_value(resources).unwrap();
            assert_eq!((Device::of(&resources), count(&resources)), (device, number), "{limits}");
        }
    }
}
