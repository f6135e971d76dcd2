//! Faults of GPUs that NVML reports, with what to do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most faults of a report.
pub const MAX_GPU_FAULTS: usize = 8;
/// Longest name of a GPU in bytes.
const MAX_NAME: usize = 96;

/// A fault of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuFault {
    /// Number among the faults that its supervisor process has seen, from 1.
    pub number: u32,
    /// UUID of the GPU.
    pub gpu: String,
    /// Number in NVIDIA's catalogue of Xid errors; none of an uncorrectable memory error that NVML
    /// reports without one.
    pub xid: Option<u64>,
}

impl GpuFault {
    /// Whether another process sent it within the limits.
    pub fn is_valid(&self) -> bool {
        self.gpu.len() <= MAX_NAME && !self.gpu.contains(char::is_control)
    }
}

impl fmt::Display for GpuFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpu, xid, .. } = self;
        let (what, then) = meaning(*xid);
        match xid {
            Some(xid) => write!(formatter, "GPU {gpu} reported Xid {xid}, {what}: {then}"),
            None => write!(formatter, "GPU {gpu} reported {what}: {then}"),
        }
    }
}

const RESET: &str = "drain the node and reset the GPU; have it replaced if the error recurs";
const PROGRAM: &str = "usually an error of the program on it; check the hardware if other jobs on \
    the same GPU fail too";
const LINK: &str = "check the NVLink and NVSwitch state with nvidia-smi nvlink --status; reset the \
    GPUs of the node";

/// What happened and what to do, of the common entries of NVIDIA's catalogue.
fn meaning(xid: Option<u64>) -> (&'static str, &'static str) {
    match xid {
        None | Some(48) => ("an uncorrectable memory error (double-bit ECC)", RESET),
        Some(13) => ("an exception in a kernel", PROGRAM),
        Some(31) => ("an access to memory that is not mapped", PROGRAM),
        Some(43) => ("a channel that stopped", PROGRAM),
        Some(63) => (
            "a row of memory that will be remapped",
            "reset the GPU when its jobs have ended; until then it works with the remaining rows",
        ),
        Some(64) => ("a row of memory that cannot be remapped", "have the GPU replaced"),
        Some(79) => (
            "it has fallen off the bus",
            "drain the node and restart it; have power, cooling and the GPU checked if it recurs",
        ),
        Some(92) => ("many corrected memory errors", RESET),
        Some(94) => (
            "a contained memory error",
            "only the process on it is affected, and restarts; reset the GPU when its jobs have \
             ended",
        ),
        Some(95) => ("an uncontained memory error", RESET),
        Some(119 | 120) => ("a failure of its system processor (GSP)", RESET),
        Some(140) => ("an unrecovered memory error", RESET),
        Some(74 | 144..=150) => ("an error of NVLink", LINK),
        Some(_) => ("an error", "see NVIDIA's catalogue of Xid errors"),
    }
}

#[cfg(test)]
mod tests {
    use super::GpuFault;

    fn fault(xid: Option<u64>) -> GpuFault {
        GpuFault { number: 1, gpu: "GPU-8f2e".to_owned(), xid }
    }

    #[test]
    fn a_fault_says_what_happened_and_what_to_do() {
        for (xid, message) in [
            (
                Some(79),
                "GPU GPU-8f2e reported Xid 79, it has fallen off the bus: drain the node and \
                 restart it; have power, cooling and the GPU checked if it recurs",
            ),
            (
                None,
                "GPU GPU-8f2e reported an uncorrectable memory error (double-bit ECC): drain the \
                 node and reset the GPU; have it replaced if the error recurs",
            ),
            (
                Some(31),
                "GPU GPU-8f2e reported Xid 31, an access to memory that is not mapped: usually an \
                 error of the program on it; check the hardware if other jobs on the same GPU \
                 fail too",
            ),
            (
                Some(999),
                "GPU GPU-8f2e reported Xid 999, an error: see NVIDIA's catalogue of Xid errors",
            ),
        ] {
            assert_eq!(fault(xid).to_string(), message);
        }
    }

    #[test]
    fn a_name_of_another_process_has_a_limit() {
        assert!(fault(None).is_valid());
        for gpu in ["x".repeat(97), "a\nb".to_owned()] {
            assert!(!GpuFault { gpu, ..fault(None) }.is_valid());
        }
    }
}
