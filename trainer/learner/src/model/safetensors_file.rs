//! Safetensors files of libtorch tensors: reads one tensor at a time, and writes without a copy of
//! all bytes.

#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)
)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, TensorInfo, View, serialize_to_file};
use tch::{Kind, Tensor};

use super::ModelError;
use crate::heartbeat;

/// Maximum header size, as in the safetensors library.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// An open file whose header has been read.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    /// Offset of the tensors' bytes in the file.
    data: u64,
    metadata: Metadata,
}

impl SafetensorsFile {
    /// Opens a file, reads its header and checks the length of the file.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let failed = |source| ModelError::File { operation: "read", path: path.to_owned(), source };
        let damaged =
            |source| ModelError::Safetensors { operation: "read", path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let (metadata, data) = read_header(&mut file, size).map_err(|error| match error {
            HeaderError::Io(source) => failed(source),
            HeaderError::Json(source) => ModelError::Json { path: path.to_owned(), source },
            HeaderError::Safetensors(source) => damaged(source),
        })?;
        Ok(Self { path: path.to_owned(), file, data, metadata })
    }

    /// Name of the file in its folder.
    pub fn name(&self) -> Cow<'_, str> {
        self.path.file_name().unwrap_or_default().to_string_lossy()
    }

    /// Names of the tensors.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Kind and shape of a tensor.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.metadata.info(name)
    }

    /// Reads a tensor of `kind`, which must be its kind in the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, info: &TensorInfo, kind: Kind) -> Result<Tensor, ModelError> {
        heartbeat::advance();
        let (begin, end) = info.data_offsets;
        let mut bytes = vec![0; end.saturating_sub(begin)];
        let offset = self.data.saturating_add(begin as u64);
        self.file.read_exact_at(&mut bytes, offset).map_err(|source| ModelError::File {
            operation: "read",
            path: self.path.clone(),
            source,
        })?;
        let shape: Vec<i64> = info.shape.iter().map(|&size| size as i64).collect();
        Ok(Tensor::f_from_data_size(&bytes, &shape, kind)?)
    }
}

/// A header that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Safetensors(#[from] SafeTensorError),
}

/// Reads the header of a file of `size` bytes: the tensors, and the offset of their bytes.
///
/// # Errors
/// The header cannot be read, or does not fit the size.
pub fn read_header(file: &mut impl Read, size: u64) -> Result<(Metadata, u64), HeaderError> {
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(SafeTensorError::HeaderTooLarge.into());
    }
    if length > size {
        return Err(SafeTensorError::InvalidHeaderLength.into());
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    let metadata: Metadata = serde_json::from_slice(&header)?;
    let data = length.saturating_add(8);
    if data.checked_add(metadata.data_len() as u64) != Some(size) {
        return Err(SafeTensorError::MetadataIncompleteBuffer.into());
    }
    Ok((metadata, data))
}

/// libtorch's kind of a floating-point type.
pub fn kind(dtype: Dtype) -> Option<Kind> {
    match dtype {
        Dtype::F32 => Some(Kind::Float),
        Dtype::BF16 => Some(Kind::BFloat16),
        Dtype::F16 => Some(Kind::Half),
        Dtype::F64 => Some(Kind::Double),
        _ => None,
    }
}

/// Writes `tensors` with the metadata that transformers expects.
///
/// # Errors
/// The file cannot be written, or `kind` is not supported.
pub fn write(path: &Path, tensors: Vec<(String, Tensor)>, kind: Kind) -> Result<(), ModelError> {
    let views = tensors
        .into_iter()
        .map(|(name, tensor)| Ok((name, Lazy::new(tensor, kind)?)))
        .collect::<Result<Vec<_>, ModelError>>()?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    serialize_to_file(views, Some(metadata), path).map_err(|source| ModelError::Safetensors {
        operation: "write",
        path: path.to_owned(),
        source,
    })
}

/// A tensor that is converted to bytes when it is written.
struct Lazy {
    tensor: Tensor,
    kind: Kind,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl Lazy {
    fn new(tensor: Tensor, kind: Kind) -> Result<Self, ModelError> {
        let dtype = match kind {
            Kind::Float => Dtype::F32,
            Kind::BFloat16 => Dtype::BF16,
            Kind::Half => Dtype::F16,
            other => {
                return Err(tch::TchError::Kind(format!(
                    "model folders cannot have {other:?}, only Float, BFloat16 and Half"
                ))
                .into());
            }
        };
        let shape = tensor.size().iter().map(|&size| size as usize).collect();
        Ok(Self { tensor, kind, dtype, shape })
    }
}

impl View for Lazy {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        heartbeat::advance();
        let tensor = self.tensor.to_kind(self.kind).contiguous();
        let mut bytes = vec![0; self.data_len()];
        tensor.copy_data_u8(&mut bytes, tensor.numel());
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.tensor.numel().saturating_mul(self.kind.elt_size_in_bytes())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::SafetensorsFile;

    fn open(header: &str, length: u64, data: usize) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let bytes = [&length.to_le_bytes(), header.as_bytes(), &vec![0; data]].concat();
        std::fs::write(&path, bytes).unwrap();
        SafetensorsFile::open(&path).map(|file| file.names()).map_err(|error| {
            let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| {
                error.source()
            });
            causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
        })
    }

    fn header(header: &Value, data: usize) -> Result<Vec<String>, String> {
        let text = header.to_string();
        open(&text, text.len() as u64, data)
    }

    #[test]
    fn hostile_headers_are_errors() {
        let tensor = |shape: &[u64], offsets: [u64; 2]| {
            let mut info = json!({"dtype": "F32", "shape": shape});
            info["data_offsets"] = json!(offsets);
            info
        };
        assert_eq!(header(&json!({"a": tensor(&[2], [0, 8])}), 8), Ok(vec!["a".to_owned()]));
        let huge = u64::MAX;
        let hostile = [
            (json!({"a": tensor(&[2], [0, 8]), "b": tensor(&[2], [4, 12])}), "overlap"),
            (json!({"a": tensor(&[2], [8, 0])}), "reversed"),
            (json!({"a": tensor(&[huge, huge], [0, 8])}), "overflow of the shape"),
            (json!({"a": tensor(&[huge / 4], [0, huge])}), "overflow of the length"),
            (json!({"a": tensor(&[3], [0, 8])}), "shape and offsets differ"),
            (json!({"a": tensor(&[4], [0, 16])}), "beyond the file"),
            (json!({"a": tensor(&[1], [4, 8])}), "a gap"),
        ];
        for (value, case) in hostile {
            assert!(header(&value, 8).is_err(), "{case}");
        }
        for length in [u64::MAX, 100_000_001, 99_999_999, 3] {
            assert!(open("{}", length, 0).is_err(), "{length}");
        }
        let nested = format!("{{\"a\": {}", "[".repeat(1_000_000));
        assert!(open(&nested, nested.len() as u64, 0).unwrap_err().contains("recursion limit"));
    }
}
