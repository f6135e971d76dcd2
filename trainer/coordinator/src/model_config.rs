//! `config.json` of model folders.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::de::DeserializeOwned;

/// Maximum size of the file in bytes; the rest of a larger file is cut off.
const MAX_CONFIG: u64 = 16 << 20;

/// Reads fields of the file at `path`. Blocks.
///
/// # Errors
/// The file cannot be read, or has other fields.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_CONFIG).read_to_end(&mut text)?;
    serde_json::from_slice(&text).map_err(io::Error::from)
}
