//! Temporary folder of a target, reused by all inputs of the process.

use std::cell::RefCell;
use std::path::Path;

use tempfile::TempDir;

thread_local! {
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
}

/// Calls `target` with the folder of this thread, which `prepare` has filled once.
pub fn with_folder(prepare: impl FnOnce(&Path), target: impl FnOnce(&Path)) {
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| {
            let created = tempfile::tempdir().unwrap_or_else(|error| panic!("no folder: {error}"));
            prepare(created.path());
            created
        });
        target(folder.path());
    });
}

/// Writes a file of the folder.
pub fn write(path: &Path, bytes: &[u8]) {
    let parent = path.parent().unwrap_or(path);
    std::fs::create_dir_all(parent)
        .and_then(|()| std::fs::write(path, bytes))
        .unwrap_or_else(|error| panic!("failed to write {}: {error}", path.display()));
}
