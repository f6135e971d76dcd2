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

use std::path::Path;
use std::sync::{Arc, mpsc};

use tch::{Kind, Tensor};

use super::exported_config::{exported_config, is_scalar};
use super::safetensors_file;
use super::weights::{SINGLE, Weights};
use super::{Layout, ModelError, ModelLayout};

/// Threads that read blocks, each of which holds one block at most.
const READERS: usize = 4;

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
    Ok(read_ahead(Weights::open(folder, layout)?, layout.blocks().to_vec()))
}

/// Checks the headers of the weights, and reads no tensor.
///
/// # Errors
/// As [`read_tensors`].
pub fn check_tensors(folder: &Path, layout: &ModelLayout) -> Result<(), ModelError> {
    Weights::open(folder, layout).map(|_| ())
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

#[cfg(test)]
mod tests {
    use super::{check_tensors, named_tensors, read_tensors, write_folder};
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
            "`model.embed_tokens.weight` in model.safetensors is [3, 4], expected [11, 4]",
            "`model.layers.0.self_attn.o_proj.weight` is missing",
            "`model.layers.0.self_attn.q_proj.bias` in model.safetensors is unknown to this \
             architecture",
        ];
        assert_eq!(problems, expected);
    }

    #[test]
    fn headers_are_checked_without_reading_a_tensor() {
        let (source, layout, blocks) = source();
        write_folder(source.path(), source.path(), &layout, &blocks, Kind::Float).unwrap();
        check_tensors(source.path(), &layout).unwrap();
        let mut tensors = named_tensors(&layout, &blocks);
        tensors[0].1 = tensors[0].1.to_kind(Kind::Int64);
        let views = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
        let path = source.path().join("model.safetensors");
        Tensor::write_safetensors(&views.collect::<Vec<_>>(), path).unwrap();
        let error = check_tensors(source.path(), &layout).unwrap_err().to_string();
        let problem = "do not fit its config.json: `model.embed_tokens.weight` in \
            model.safetensors is I64, expected a floating-point type; use the config.json and \
            the weights of one model";
        assert!(error.ends_with(problem), "{error}");
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
