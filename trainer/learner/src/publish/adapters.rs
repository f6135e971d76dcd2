//! Adapters in an export, in the format of PEFT: `adapter_config.json` and
//! `adapter_model.safetensors`, fp32. With a scalar head they belong to transformers' sequence
//! classifier of the base, and the final norm and the head are modules that PEFT saves whole.

use std::fs;
use std::path::Path;

use rljob_crds::RLJobSpec;
use rljob_crds::lora::LoraTarget;
use serde::Serialize;
use tch::{Device, Kind, Tensor};

use crate::fsdp::TrainedParameters;
use crate::model::ModelError;
use crate::model::hugging_face::{named_tensors, write_tensors};
use crate::model::layout::TensorSpec;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// `adapter_config.json`: the keys that PEFT requires, and those whose defaults differ between its
/// releases.
#[derive(Clone, Debug, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "keys of PEFT")]
pub struct AdapterConfig {
    peft_type: &'static str,
    task_type: &'static str,
    base_model_name_or_path: String,
    revision: Option<String>,
    r: u32,
    lora_alpha: serde_json::Number,
    lora_dropout: f64,
    target_modules: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    modules_to_save: Vec<String>,
    bias: &'static str,
    fan_in_fan_out: bool,
    inference_mode: bool,
    init_lora_weights: bool,
    use_dora: bool,
    use_rslora: bool,
}

impl AdapterConfig {
    /// The configuration of a job with adapters, whose model is in `model_directory` unless it is a
    /// repository of the Hugging Face Hub.
    pub fn of(spec: &RLJobSpec, model_directory: &Path) -> Option<Self> {
        let lora = spec.lora.as_ref()?;
        let hub = spec.model.hugging_face.as_ref();
        let folder = || model_directory.display().to_string();
        Some(Self {
            peft_type: "LORA",
            task_type: "CAUSAL_LM",
            base_model_name_or_path: hub.map_or_else(folder, |hub| hub.repo.clone()),
            revision: hub.map(|hub| hub.revision.clone()),
            r: lora.rank,
            lora_alpha: number(lora.alpha),
            lora_dropout: lora.dropout,
            target_modules: lora.targets.iter().copied().map(LoraTarget::module).collect(),
            modules_to_save: Vec::new(),
            bias: "none",
            fan_in_fan_out: false,
            inference_mode: true,
            init_lora_weights: true,
            use_dora: false,
            use_rslora: false,
        })
    }

    /// That of a sequence classifier whose tensors `whole` are trained beside the adapters.
    fn classifying<'a>(self, whole: impl Iterator<Item = &'a TensorSpec>) -> Self {
        let module = |tensor: &TensorSpec| tensor.name.trim_end_matches(".weight").to_owned();
        Self { task_type: "SEQ_CLS", modules_to_save: whole.map(module).collect(), ..self }
    }
}

/// An integer if the value is one: engines read `lora_alpha` as an integer.
fn number(value: f64) -> serde_json::Number {
    let whole = value as u32;
    if f64::from(whole).to_bits() == value.to_bits() {
        return whole.into();
    }
    serde_json::Number::from_f64(value).unwrap_or_else(|| whole.into())
}

/// A copy of all adapters in memory of the host.
#[derive(Debug)]
pub struct StagedAdapters {
    config: AdapterConfig,
    tensors: Vec<(String, Tensor)>,
}

impl StagedAdapters {
    /// Gathers the adapters, if there are some, with the block that is trained whole, if there is
    /// one. A collective: every rank calls it; only those with `keep` get a copy.
    ///
    /// # Errors
    /// A collective fails.
    pub fn gather(
        parameters: &mut TrainedParameters,
        config: Option<AdapterConfig>,
        keep: bool,
    ) -> Result<Option<Self>, ModelError> {
        let (TrainedParameters::Adapters(adapted), Some(config)) = (parameters, config) else {
            return Ok(None);
        };
        let whole = adapted.lora().whole().cloned();
        let layout = adapted.lora().layout().clone();
        let mut blocks = Vec::new();
        for index in 0..layout.blocks().len() {
            let flat = adapted.trained_mut().gather(index)?;
            if keep {
                let numel = flat.numel() as i64;
                let mut copy = Tensor::f_empty([numel], (Kind::Float, Device::Cpu))?;
                copy.f_copy_(&flat)?;
                blocks.push(copy);
            }
        }
        let mut tensors = named_tensors(&layout, &blocks);
        let Some(whole) = whole else { return Ok(keep.then_some(Self { config, tensors })) };
        let adapters = tensors.len().saturating_sub(whole.tensors().len());
        for (name, _) in tensors.iter_mut().skip(adapters) {
            name.insert_str(0, "base_model.model.");
        }
        let config = config.classifying(whole.tensors().iter());
        Ok(keep.then_some(Self { config, tensors }))
    }

    /// Writes the folder that PEFT loads.
    ///
    /// # Errors
    /// A file operation fails.
    pub fn write(&self, folder: &Path) -> Result<(), ModelError> {
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| ModelError::File { operation, path, source }
        };
        fs::create_dir_all(folder).map_err(failed("create the folder", folder))?;
        let config = folder.join(CONFIG);
        let json = serde_json::to_vec_pretty(&self.config)
            .map_err(|source| ModelError::Json { path: config.clone(), source })?;
        fs::write(&config, json).map_err(failed("write", &config))?;
        let tensors =
            self.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
        write_tensors(&folder.join(WEIGHTS), tensors.collect(), Kind::Float)
    }
}
