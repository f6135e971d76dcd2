//! Weights of a Hugging Face folder: opens its safetensors files, checks their tensors against a
//! layout, and reads blocks.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorInfo;
use serde::Deserialize;
use tch::{Kind, Tensor};

use super::config::read_json;
use super::layout::TensorSpec;
use super::safetensors_file::{self, SafetensorsFile};
use super::{Layout, ModelError, ModelLayout};

/// Name of the only file of a folder without an index.
pub const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// `model.safetensors.index.json`: file of each tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Open files of a folder, with the file of each tensor. Their headers have been read.
pub struct Weights {
    files: Vec<SafetensorsFile>,
    of: BTreeMap<String, usize>,
}

impl Weights {
    /// Opens the files of a folder whose tensors are those of the layout.
    ///
    /// # Errors
    /// A file cannot be read, or [`ModelError::Weights`].
    pub fn open(folder: &Path, layout: &ModelLayout) -> Result<Self, ModelError> {
        let weights = Self::of_folder(folder)?;
        let problems = weights.problems(layout);
        if problems.is_empty() {
            return Ok(weights);
        }
        Err(ModelError::Weights { path: folder.to_owned(), problems })
    }

    fn of_folder(folder: &Path) -> Result<Self, ModelError> {
        let index = folder.join(INDEX);
        let names: BTreeSet<String> = if index.exists() {
            read_json::<Index>(&index)?.weight_map.into_values().collect()
        } else {
            BTreeSet::from([SINGLE.to_owned()])
        };
        let files = names
            .iter()
            .map(|name| SafetensorsFile::open(&inside(folder, name)?))
            .collect::<Result<Vec<_>, _>>()?;
        let of = files
            .iter()
            .enumerate()
            .flat_map(|(file, opened)| opened.names().into_iter().map(move |name| (name, file)))
            .collect();
        Ok(Self { files, of })
    }

    fn problems(&self, layout: &ModelLayout) -> Vec<String> {
        let mut unknown: BTreeSet<&str> =
            self.of.keys().map(String::as_str).filter(|name| !is_ignored(name, layout)).collect();
        let mut problems = Vec::new();
        for spec in layout.blocks().iter().flat_map(Layout::tensors) {
            unknown.remove(spec.name.as_str());
            let file = self.of.get(&spec.name).and_then(|&file| self.files.get(file));
            let Some((info, place)) =
                file.and_then(|file| Some((file.info(&spec.name)?, file.name())))
            else {
                problems.push(format!("`{}` is missing", spec.name));
                continue;
            };
            let shape: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
            if shape != spec.shape {
                problems.push(format!(
                    "`{}` in {place} is {shape:?}, expected {:?}",
                    spec.name, spec.shape
                ));
            }
            if safetensors_file::kind(info.dtype).is_none() {
                problems.push(format!(
                    "`{}` in {place} is {:?}, expected a floating-point type",
                    spec.name, info.dtype
                ));
            }
        }
        problems.extend(unknown.into_iter().map(|name| {
            let file = self.of.get(name).and_then(|&file| self.files.get(file));
            let place = file.map(SafetensorsFile::name).unwrap_or_default();
            format!("`{name}` in {place} is unknown to this architecture")
        }));
        problems
    }

    /// File, place and kind of a tensor.
    fn stored(&self, name: &str) -> Option<(&SafetensorsFile, &TensorInfo, Kind)> {
        let file = self.files.get(*self.of.get(name)?)?;
        let info = file.info(name)?;
        Some((file, info, safetensors_file::kind(info.dtype)?))
    }

    /// The block in the kind of its tensors, or in fp32 if they have several.
    pub fn read_block(&self, block: &Layout) -> Result<Tensor, ModelError> {
        let stored = |spec: &TensorSpec| self.stored(&spec.name);
        let kinds = block.tensors().iter().filter_map(stored).map(|(_, _, kind)| kind);
        let kind = kinds.reduce(|a, b| if a == b { a } else { Kind::Float }).unwrap_or(Kind::Float);
        let flat = Tensor::f_empty([block.numel()], (kind, tch::Device::Cpu))?;
        for (spec, mut view) in block.tensors().iter().zip(block.views(&flat)) {
            let Some((file, info, kind)) = stored(spec) else { continue };
            view.f_copy_(&file.read(info, kind)?)?;
        }
        Ok(flat)
    }
}

/// Whether a tensor is ignored: redundant tensors of old exporters, that is, rotary tables and the
/// head of a tied model, which is a copy of the embedding.
fn is_ignored(name: &str, layout: &ModelLayout) -> bool {
    let tied =
        layout.blocks().iter().flat_map(Layout::tensors).all(|spec| spec.name != "lm_head.weight");
    name.ends_with("rotary_emb.inv_freq") || (tied && name == "lm_head.weight")
}

/// Path of a shard. The index is untrusted and must not refer to files outside its folder.
fn inside(folder: &Path, name: &str) -> Result<PathBuf, ModelError> {
    let plain = Path::new(name).file_name().is_some_and(|file| file == name);
    let path = folder.join(INDEX);
    if plain {
        Ok(folder.join(name))
    } else {
        Err(ModelError::Config {
            path,
            reason: format!("shard `{name}` is not a file of the folder"),
        })
    }
}
