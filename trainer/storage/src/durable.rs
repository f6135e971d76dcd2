//! Files and folders whose names survive a power cut: a new name is on disk only after its folder
//! is synced.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Creates a folder with its parents, durably. An existing folder is left unchanged.
pub fn create_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = parent(path);
    if parent != path {
        create_folder(parent)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => sync_parent(path),
    }
}

/// Writes or replaces a file: after a power cut it has the old or the new content. Folders of the
/// path are created.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_folder(parent(path))?;
    let mut writing = path.as_os_str().to_owned();
    writing.push(".writing");
    let writing = PathBuf::from(writing);
    fs::write(&writing, bytes)?;
    File::open(&writing)?.sync_all()?;
    fs::rename(&writing, path)?;
    sync_parent(path)
}

/// Makes the name of a file or folder durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

/// The folder that contains `path`; `.` for a relative name.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_replaced_and_folders_are_created_with_their_parents() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/file.json");
        for text in ["first", "second"] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let names: Vec<_> = fs::read_dir(parent(&path))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(names, ["file.json"]);
        create_folder(parent(&path)).unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        assert!(create_folder(&folder.path().join("file/below")).is_err());
    }

    #[test]
    fn relative_names_have_the_working_directory_as_parent() {
        assert_eq!(parent(Path::new("name")), Path::new("."));
        assert_eq!(parent(Path::new("/")), Path::new("/"));
    }
}
