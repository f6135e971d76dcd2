//! Environment of learners on GPUs: one device each, and settings of CUDA's libraries. Pure: the
//! supervisor's own environment is a parameter.

use rljob_crds::roles::TrainerSpec;

/// Devices that a process may use: indices or UUIDs, separated by commas.
pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Settings of a learner on a GPU, unless the supervisor's environment has others.
const DEFAULTS: [(&str, &str); 2] = [
    // cuBLAS repeats results bit for bit only with a workspace of fixed size.
    ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    // Both ends of a broadcast of weights must agree, and SGLang sets it.
    ("NCCL_CUMEM_ENABLE", "0"),
];

/// Environment variables of a learner in addition to those of the supervisor.
pub type Environment = Vec<(&'static str, String)>;

/// Fewer devices than learners.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{processes} learners need a GPU each, and CUDA_VISIBLE_DEVICES=`{visible}` has {found}; give \
     the trainer more GPUs, or fewer in spec.trainer.resources.limits"
)]
pub struct TooFewDevices {
    visible: String,
    found: usize,
    processes: usize,
}

/// Environment of each learner of a pod, in the order of their ranks. Learner i has the i-th device
/// that the supervisor may use, which is device 0 of the learner; learners on CPUs get no variable.
///
/// # Errors
/// The supervisor may use fewer devices than there are learners.
pub fn environments(
    trainer: &TrainerSpec,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Environment>, TooFewDevices> {
    let processes = trainer.processes() as usize;
    if trainer.gpus() == 0 {
        return Ok(vec![Environment::new(); processes]);
    }
    let devices: Vec<String> = match variable(VISIBLE) {
        None => (0..processes).map(|index| index.to_string()).collect(),
        Some(visible) => {
            let devices = devices(&visible);
            if devices.len() < processes {
                return Err(TooFewDevices { found: devices.len(), visible, processes });
            }
            devices
        }
    };
    let defaults = DEFAULTS.iter().filter(|(name, _)| variable(name).is_none());
    let defaults: Environment =
        defaults.map(|(name, value)| (*name, (*value).to_owned())).collect();
    let environment = |device| [(VISIBLE, device)].into_iter().chain(defaults.clone()).collect();
    Ok(devices.into_iter().take(processes).map(environment).collect())
}

/// Names of the devices. CUDA ignores those that follow an invalid name, such as -1.
fn devices(visible: &str) -> Vec<String> {
    let names = visible.split(',').map(str::trim);
    names.take_while(|name| !name.is_empty() && *name != "-1").map(ToOwned::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use rljob_crds::roles::TrainerSpec;
    use serde_json::{Value, json};

    use super::{Environment, TooFewDevices, environments};

    fn of(spec: Value, own: &[(&str, &str)]) -> Result<Vec<Environment>, TooFewDevices> {
        let trainer: TrainerSpec = serde_json::from_value(spec).unwrap();
        environments(&trainer, |name| {
            own.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
        })
    }

    /// Two learners on GPUs.
    fn on_gpus() -> Value {
        json!({"resources": {"limits": {"nvidia.com/gpu": 2}}})
    }

    fn learner(device: &str) -> Environment {
        [
            ("CUDA_VISIBLE_DEVICES", device),
            ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
            ("NCCL_CUMEM_ENABLE", "0"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec()
    }

    #[test]
    fn each_learner_has_one_of_the_devices_of_the_supervisor() {
        let visible = |names| [("CUDA_VISIBLE_DEVICES", names)];
        for (own, devices) in [
            (&[][..], ["0", "1"]),
            (&visible("2,3"), ["2", "3"]),
            (&visible(" 5, 7 , 9"), ["5", "7"]),
            (&visible("GPU-8f2e,GPU-11c0"), ["GPU-8f2e", "GPU-11c0"]),
            (&visible("MIG-77aa,MIG-90bd"), ["MIG-77aa", "MIG-90bd"]),
        ] {
            assert_eq!(of(on_gpus(), own), Ok(devices.map(learner).to_vec()), "{own:?}");
        }
    }

    #[test]
    fn too_few_devices_are_an_error() {
        for (visible, found) in [("", 0), ("0", 1), ("0,-1,1", 1), ("GPU-8f2e,", 1)] {
            let error = of(on_gpus(), &[("CUDA_VISIBLE_DEVICES", visible)]).unwrap_err();
            assert_eq!(error, TooFewDevices { visible: visible.into(), found, processes: 2 });
            let message = format!(
                "2 learners need a GPU each, and CUDA_VISIBLE_DEVICES=`{visible}` has {found}; \
                 give the trainer more GPUs, or fewer in spec.trainer.resources.limits"
            );
            assert_eq!(error.to_string(), message);
        }
    }

    #[test]
    fn settings_of_the_user_are_kept() {
        let own = [("NCCL_CUMEM_ENABLE", "1")];
        let kept = |device| learner(device).into_iter().take(2).collect::<Environment>();
        assert_eq!(of(on_gpus(), &own), Ok(["0", "1"].map(kept).to_vec()));
    }

    #[test]
    fn learners_on_cpus_have_the_environment_of_the_supervisor() {
        let own = [("CUDA_VISIBLE_DEVICES", "")];
        let expected = Ok(vec![Environment::new(); 3]);
        assert_eq!(of(json!({"processesPerReplica": 3}), &own), expected);
    }
}
