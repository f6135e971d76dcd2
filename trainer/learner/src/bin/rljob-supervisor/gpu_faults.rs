//! Faults of the GPUs of this pod: a thread waits for events of NVIDIA's management library (NVML),
//! which is loaded at run time. Without it nothing is reported.
//!
//! ```text
//!  driver ─▶ NVML: critical Xid, double-bit ECC ─▶ thread ─▶ GpuFaults ─▶ report, log tail
//! ```

use std::ffi::OsStr;
use std::sync::Arc;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{EventSet, Nvml};
use parking_lot::Mutex;
use rljob_protocol::gpu_fault::{GpuFault, MAX_GPU_FAULTS};
use rljob_protocol::supervisor::LearnerState;
use tokio::sync::watch;

/// Name of the library in containers, which have no link without the version.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Wait for one event.
const WAIT_MILLISECONDS: u32 = 60_000;
/// A consequence of another error, or of a killed process.
const CLEANUP: u64 = 45;
/// The GPU has fallen off the bus.
const LOST: u64 = 79;
/// Number that the driver gives an error that it cannot name.
const UNKNOWN: u64 = 999;

/// The newest faults, and how many there were.
#[derive(Debug, Default)]
pub struct GpuFaults {
    newest: Vec<GpuFault>,
    count: u32,
}

impl GpuFaults {
    /// Records a fault; returns whether it counts as one.
    fn add(&mut self, gpu: &str, xid: Option<u64>) -> bool {
        if xid == Some(CLEANUP) {
            return false;
        }
        self.count = self.count.saturating_add(1);
        if self.newest.len() == MAX_GPU_FAULTS {
            self.newest.remove(0);
        }
        let fault = GpuFault { number: self.count, gpu: gpu.to_owned(), xid };
        tracing::error!(%fault, "a GPU failed");
        self.newest.push(fault);
        true
    }

    pub fn newest(&self) -> Vec<GpuFault> {
        self.newest.clone()
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// The state of a learner that started after fault number `before`. The last lines of one that
    /// exited name the faults since, which NVML may report before the learner sees an error.
    pub fn explain(&self, state: LearnerState, before: u32) -> LearnerState {
        let LearnerState::Exited { code, mut log_tail } = state else { return state };
        for fault in self.newest.iter().filter(|fault| code != 0 && fault.number > before) {
            let separator = if log_tail.is_empty() { "" } else { "\n" };
            log_tail = format!("{log_tail}{separator}{fault}");
        }
        LearnerState::Exited { code, log_tail }
    }
}

/// Watches the devices that `visible`, a value of CUDA_VISIBLE_DEVICES, names; all without it.
/// Notifies `changed` of faults. The thread ends with the process.
pub fn watch(visible: Option<String>, changed: watch::Sender<()>) -> Arc<Mutex<GpuFaults>> {
    let faults = Arc::new(Mutex::new(GpuFaults::default()));
    let recorded = Arc::clone(&faults);
    let run = move || {
        let record = |gpu: &str, xid: Option<u64>| {
            if recorded.lock().add(gpu, xid) {
                changed.send_replace(());
            }
        };
        if let Err(error) = listen(visible.as_deref(), record) {
            tracing::info!(%error, "faults of GPUs are not reported");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("gpu-faults".to_owned()).spawn(run) {
        tracing::warn!(%error, "faults of GPUs are not reported");
    }
    faults
}

/// Passes faults to `record` until NVML fails.
fn listen(visible: Option<&str>, record: impl Fn(&str, Option<u64>)) -> Result<(), NvmlError> {
    let nvml = Nvml::builder().lib_path(OsStr::new(LIBRARY)).init()?;
    let events = register(&nvml, visible)?;
    loop {
        let event = match events.wait(WAIT_MILLISECONDS) {
            Ok(event) => event,
            Err(NvmlError::Timeout) => continue,
            Err(error) => {
                if matches!(error, NvmlError::GpuLost) {
                    record("of this pod", Some(LOST));
                }
                return Err(error);
            }
        };
        let gpu = event.device.uuid().unwrap_or_else(|_| "of this pod".to_owned());
        let xid = event.event_data.map(|xid| match xid {
            XidError::Value(xid) => xid,
            XidError::Unknown => UNKNOWN,
        });
        record(&gpu, xid);
    }
}

/// The events of all watched devices, as far as they support them.
fn register<'n>(nvml: &'n Nvml, visible: Option<&str>) -> Result<EventSet<'n>, NvmlError> {
    let wanted = EventTypes::CRITICAL_XID_ERROR | EventTypes::DOUBLE_BIT_ECC_ERROR;
    let mut events = nvml.create_event_set()?;
    for index in 0..nvml.device_count()? {
        let device = nvml.device_by_index(index)?;
        let types = device.supported_event_types()? & wanted;
        if is_watched(index, &device.uuid()?, visible) && !types.is_empty() {
            events = device.register_events(types, events).map_err(|failed| failed.error)?;
        }
    }
    Ok(events)
}

/// Whether a device is among the visible ones, or a part of it may be.
fn is_watched(index: u32, uuid: &str, visible: Option<&str>) -> bool {
    let Some(visible) = visible else { return true };
    visible.split(',').map(str::trim).any(|name| match name.parse::<u32>() {
        Ok(number) => number == index,
        Err(_) => name.starts_with("MIG-") || !name.is_empty() && uuid.starts_with(name),
    })
}

#[cfg(test)]
mod tests {
    use rljob_protocol::supervisor::HeartbeatAge;

    use super::{GpuFault, GpuFaults, LearnerState, is_watched};

    /// Faults as NVML reported them.
    fn faults(recorded: &[(&str, Option<u64>)]) -> GpuFaults {
        let mut faults = GpuFaults::default();
        for (gpu, xid) in recorded {
            faults.add(gpu, *xid);
        }
        faults
    }

    #[test]
    fn the_newest_faults_are_numbered_without_cleanups() {
        let recorded = faults(&[("GPU-a", Some(31)), ("GPU-a", Some(45)), ("GPU-b", None)]);
        let fault = |number, gpu: &str, xid| GpuFault { number, gpu: gpu.to_owned(), xid };
        assert_eq!(recorded.newest(), [fault(1, "GPU-a", Some(31)), fault(2, "GPU-b", None)]);
        let many = faults(&[("GPU-a", Some(94)); 20]);
        let numbers: Vec<u32> = many.newest().iter().map(|fault| fault.number).collect();
        assert_eq!((many.count(), numbers), (20, (13..=20).collect()));
    }

    #[test]
    fn the_last_lines_of_a_failed_learner_name_the_faults_since_its_start() {
        let recorded = faults(&[("GPU-a", Some(94)), ("GPU-a", Some(79))]);
        let exited = |code, log_tail: &str| {
            let log_tail = log_tail.to_owned();
            LearnerState::Exited { code, log_tail }
        };
        let message = "GPU GPU-a reported Xid 79, it has fallen off the bus: drain the node and \
            restart it; have power, cooling and the GPU checked if it recurs";
        assert_eq!(
            recorded.explain(exited(1, "CUDA error: unknown"), 1),
            exited(1, &format!("CUDA error: unknown\n{message}"))
        );
        assert_eq!(recorded.explain(exited(134, ""), 1), exited(134, message));
        assert_eq!(recorded.explain(exited(1, "a"), 2), exited(1, "a"), "of an earlier attempt");
        assert_eq!(recorded.explain(exited(0, "done"), 0), exited(0, "done"));
        let running = LearnerState::Running(HeartbeatAge::default());
        assert_eq!(recorded.explain(running.clone(), 0), running);
    }

    #[test]
    fn visible_devices_are_watched() {
        let watched = |visible| {
            [(0, "GPU-8f2e"), (1, "GPU-11c0")].map(|(index, uuid)| is_watched(index, uuid, visible))
        };
        for (visible, expected) in [
            (None, [true, true]),
            (Some("1"), [false, true]),
            (Some(" 0 ,1"), [true, true]),
            (Some("GPU-8f"), [true, false]),
            (Some("MIG-77aa"), [true, true]),
            (Some(""), [false, false]),
        ] {
            assert_eq!(watched(visible), expected, "{visible:?}");
        }
    }
}
