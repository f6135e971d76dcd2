//! Digests of files and folders.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use sha2::{Digest, Sha256};

/// Files up to this size in bytes are hashed whole.
const WHOLE: u64 = 1 << 30;
/// Number of evenly spaced blocks that are hashed of larger files.
const BLOCKS: u64 = 256;
/// Size of a block in bytes.
const BLOCK: u64 = 1 << 20;
/// Maximum depth of folders, against links to a parent.
const DEPTH: usize = 16;
/// Written by Python when it imports a module.
const PYTHON_CACHE: &str = "__pycache__";

/// SHA-256 of a file, or of the names and contents of the files in a folder. Hidden files are
/// ignored.
pub fn digest(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    if path.is_dir() {
        hash_folder(path, Path::new(""), DEPTH, &mut hash)?;
    } else {
        hash_file(path, &mut hash)?;
    }
    Ok(format!("{:x}", hash.finalize()))
}

fn hash_folder(folder: &Path, name: &Path, depth: usize, hash: &mut Sha256) -> io::Result<()> {
    let depth = depth.checked_sub(1).ok_or(io::ErrorKind::QuotaExceeded)?;
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name()));
    let mut names = entries.collect::<io::Result<Vec<_>>>()?;
    names.retain(|name| !name.as_encoded_bytes().starts_with(b".") && name != PYTHON_CACHE);
    names.sort();
    for entry in names {
        let (path, name) = (folder.join(&entry), name.join(&entry));
        if path.is_dir() {
            hash_folder(&path, &name, depth, hash)?;
        } else {
            hash.update(name.as_os_str().as_encoded_bytes());
            hash.update([0]);
            hash_file(&path, hash)?;
        }
    }
    Ok(())
}

/// Hashes the length of a file and its contents, or blocks of a large file.
fn hash_file(path: &Path, hash: &mut Sha256) -> io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    hash.update(length.to_le_bytes());
    if length <= WHOLE {
        io::copy(&mut file, hash)?;
        return Ok(());
    }
    let last = length.saturating_sub(BLOCK);
    for index in 0..BLOCKS {
        let start = last.saturating_mul(index) / (BLOCKS - 1);
        file.seek(SeekFrom::Start(start))?;
        io::copy(&mut (&mut file).take(BLOCK), hash)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_folder_has_names_and_contents() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("model")).unwrap();
        fs::write(folder.path().join("model/config.json"), "{}").unwrap();
        let digest = || digest(folder.path()).unwrap();
        let first = digest();
        fs::write(folder.path().join(".cache"), "x").unwrap();
        fs::create_dir(folder.path().join(PYTHON_CACHE)).unwrap();
        fs::write(folder.path().join(PYTHON_CACHE).join("a.pyc"), "x").unwrap();
        assert_eq!(digest(), first);
        fs::rename(folder.path().join("model"), folder.path().join("other")).unwrap();
        let renamed = digest();
        assert_ne!(renamed, first);
        fs::write(folder.path().join("other/config.json"), "[]").unwrap();
        assert_ne!(digest(), renamed);
    }

    #[test]
    fn blocks_of_a_large_file_are_hashed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let file = File::create(&path).unwrap();
        file.set_len(WHOLE + 12_345).unwrap();
        let first = digest(&path).unwrap();
        std::os::unix::fs::FileExt::write_at(&file, b"x", WHOLE + 12_344).unwrap();
        assert_ne!(digest(&path).unwrap(), first, "the last block");
        file.set_len(WHOLE + 12_346).unwrap();
        assert_ne!(digest(&path).unwrap(), first, "the length");
    }
}
