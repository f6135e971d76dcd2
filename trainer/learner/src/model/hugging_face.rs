//! Hugging Face model folders: reads and writes weights by name. Tokenizer files are not handled
//! here.
//!
//! ```text
//!  config.json  generation_config.json  model.safetensors │ model.safetensors.index.json + shards
//! ```

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use safetensors::tensor::TensorInfo;
use serde::Deserialize;
use tch::{Kind, Tensor};

use super::config::read_json;
use super::exported_config::{exported_config, is_scalar};
use super::layout::TensorSpec;
use super::safetensors_file::{self, SafetensorsFile};
use super::{Layout, ModelError, ModelLayout};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Threads that read blocks, each of which holds one block at most.
const READERS: usize = 4;

/// `model.safetensors.index.json`: file of each tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Open files of a folder, with the file of each tensor.
struct Weights {
    files: Vec<SafetensorsFile>,
    of: BTreeMap<String, usize>,
}

/// Reads the weights of every block as a flat vector of `kind`.
///
/// # Errors
/// [`ModelError::Weights`] lists every tensor that is missing, has another shape, has no
/// floating-point type, or is unknown to the model.
pub fn read_tensors(
    folder: &Path,
    layout: &ModelLayout,
    kind: Kind,
) -> Result<Vec<Tensor>, ModelError> {
    read_blocks(folder, layout)?.map(|block| Ok(block?.f_to_kind(kind)?)).collect()
}

/// As [`read_tensors`], one block at a time, in the kind of its tensors in the files, or in fp32 if
/// they have several. Threads read [`READERS`] blocks ahead.
///
/// # Errors
/// As [`read_tensors`], at the call or at a block.
pub fn read_blocks(
    folder: &Path,
    layout: &ModelLayout,
) -> Result<impl Iterator<Item = Result<Tensor, ModelError>> + use<>, ModelError> {
    let weights = Weights::open(folder)?;
    let problems = weights.problems(layout);
    if !problems.is_empty() {
        return Err(ModelError::Weights { path: folder.to_owned(), problems });
    }
    Ok(read_ahead(weights, layout.blocks().to_vec()))
}

/// Reads blocks in order: thread `i` of [`READERS`] reads every block whose index is `i` modulo
/// their number, and waits until its block is taken. The threads end with the iterator.
fn read_ahead(
    weights: Weights,
    blocks: Vec<Layout>,
) -> impl Iterator<Item = Result<Tensor, ModelError>> {
    let count = blocks.len();
    let (weights, blocks) = (Arc::new(weights), Arc::new(blocks));
    let reader = |first: usize| {
        let (weights, blocks) = (Arc::clone(&weights), Arc::clone(&blocks));
        let (sender, receiver) = mpsc::sync_channel(0);
        std::thread::spawn(move || {
            for block in blocks.iter().skip(first).step_by(READERS) {
                if sender.send(weights.read_block(block)).is_err() {
                    return;
                }
            }
        });
        receiver
    };
    let readers: Vec<_> = (0..READERS).map(reader).collect();
    let mut next = 0..count;
    std::iter::from_fn(move || {
        let reader = readers.get(next.next()?.rem_euclid(READERS))?;
        reader.recv().ok()
    })
}

/// Writes a folder that transformers and SGLang load: `model.safetensors` in kind `dtype`, and
/// `config.json` (with its type set) and `generation_config.json` from the folder `config_source`.
/// With a scalar head, it is a sequence classifier of one label.
/// `blocks` are the flat vectors of the layout's blocks. The folder is created if necessary.
///
/// # Errors
/// A file cannot be read or written.
pub fn write_folder(
    folder: &Path,
    config_source: &Path,
    layout: &ModelLayout,
    blocks: &[Tensor],
    dtype: Kind,
) -> Result<(), ModelError> {
    let failed = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| ModelError::File { operation, path, source }
    };
    std::fs::create_dir_all(folder).map_err(failed("create the folder", folder))?;
    let config = folder.join("config.json");
    std::fs::write(&config, exported_config(&config_source.join("config.json"), layout, dtype)?)
        .map_err(failed("write", &config))?;
    let generation = config_source.join("generation_config.json");
    if generation.exists() && !is_scalar(layout) {
        std::fs::copy(&generation, folder.join("generation_config.json"))
            .map_err(failed("copy", &generation))?;
    }
    safetensors_file::write(&folder.join(SINGLE), named_tensors(layout, blocks), dtype)
}

/// Writes tensors to a safetensors file in kind `dtype`.
///
/// # Errors
/// The file cannot be written.
pub fn write_tensors(
    path: &Path,
    tensors: Vec<(String, Tensor)>,
    dtype: Kind,
) -> Result<(), ModelError> {
    safetensors_file::write(path, tensors, dtype)
}

/// Every tensor of the model by its Hugging Face name, in the layout's order; views of `blocks`.
pub fn named_tensors(layout: &ModelLayout, blocks: &[Tensor]) -> Vec<(String, Tensor)> {
    let names = layout
        .blocks()
        .iter()
        .flat_map(|block| block.tensors().iter().map(|spec| spec.name.clone()));
    names
        .zip(layout.blocks().iter().zip(blocks).flat_map(|(block, flat)| block.views(flat)))
        .collect()
}

impl Weights {
    fn open(folder: &Path) -> Result<Self, ModelError> {
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
            let Some(info) = file.and_then(|file| file.info(&spec.name)) else {
                problems.push(format!("`{}` is missing", spec.name));
                continue;
            };
            let shape: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
            if shape != spec.shape {
                problems.push(format!("`{}` is {shape:?}, expected {:?}", spec.name, spec.shape));
            }
            if safetensors_file::kind(info.dtype).is_none() {
                problems.push(format!(
                    "`{}` is {:?}, expected a floating-point type",
                    spec.name, info.dtype
                ));
            }
        }
        problems.extend(
            unknown.into_iter().map(|name| format!("`{name}` is unknown to this architecture")),
        );
        problems
    }

    /// File, place and kind of a tensor.
    fn stored(&self, name: &str) -> Option<(&SafetensorsFile, &TensorInfo, Kind)> {
        let file = self.files.get(*self.of.get(name)?)?;
        let info = file.info(name)?;
        Some((file, info, safetensors_file::kind(info.dtype)?))
    }

    /// The block in the kind of its tensors, or in fp32 if they have several.
    fn read_block(&self, block: &Layout) -> Result<Tensor, ModelError> {
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

#[cfg(test)]
mod tests {
    use super::{named_tensors, read_tensors, write_folder};
    use crate::model::{ModelConfig, ModelError, ModelLayout, random, safetensors_file};
    use tch::{Kind, Tensor};

    const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 11,
        "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "eos_token_id": 2}"#;

    fn source() -> (tempfile::TempDir, ModelLayout, Vec<Tensor>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), CONFIG).unwrap();
        let config = ModelConfig::from_folder(folder.path()).unwrap();
        let layout = ModelLayout::new(&config);
        let blocks = random::random(&layout, &config, 7).unwrap();
        (folder, layout, blocks)
    }

    #[test]
    fn a_written_folder_is_read_back_unchanged() {
        let (source, layout, blocks) = source();
        let target = source.path().join("export");
        write_folder(&target, source.path(), &layout, &blocks, Kind::Float).unwrap();
        assert_eq!(read_tensors(&target, &layout, Kind::Float).unwrap(), blocks);
        let config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(target.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["torch_dtype"], "float32");
        assert!(named_tensors(&layout, &blocks).iter().all(|(name, _)| name != "lm_head.weight"));
    }

    #[test]
    fn every_mismatched_tensor_is_listed() {
        let (source, layout, blocks) = source();
        let mut tensors = named_tensors(&layout, &blocks);
        tensors.retain(|(name, _)| !name.ends_with("o_proj.weight"));
        tensors[0].1 = Tensor::zeros([3, 4], (Kind::Float, tch::Device::Cpu));
        tensors.push((
            "model.layers.0.self_attn.q_proj.bias".to_owned(),
            Tensor::zeros([4], (Kind::Float, tch::Device::Cpu)),
        ));
        safetensors_file::write(&source.path().join("model.safetensors"), tensors, Kind::Float)
            .unwrap();
        let error = read_tensors(source.path(), &layout, Kind::Float).unwrap_err();
        let ModelError::Weights { problems, .. } = error else { panic!("{error}") };
        let expected = [
            "`model.embed_tokens.weight` is [3, 4], expected [11, 4]",
            "`model.layers.0.self_attn.o_proj.weight` is missing",
            "`model.layers.0.self_attn.q_proj.bias` is unknown to this architecture",
        ];
        assert_eq!(problems, expected);
    }

    #[test]
    fn a_truncated_file_is_rejected() {
        let (source, layout, blocks) = source();
        write_folder(source.path(), source.path(), &layout, &blocks, Kind::Float).unwrap();
        let path = source.path().join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
        assert!(matches!(
            read_tensors(source.path(), &layout, Kind::Float),
            Err(ModelError::Safetensors { .. })
        ));
    }

    #[test]
    fn an_index_cannot_refer_to_files_outside_its_folder() {
        let (source, layout, _) = source();
        std::fs::write(
            source.path().join("model.safetensors.index.json"),
            r#"{"weight_map": {"a": "../a.safetensors"}}"#,
        )
        .unwrap();
        let error = read_tensors(source.path(), &layout, Kind::Float).unwrap_err().to_string();
        assert!(error.ends_with("shard `../a.safetensors` is not a file of the folder"), "{error}");
    }
}
