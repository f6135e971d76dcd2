//! Copy of the programs of this container into a folder that containers with other images read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;

/// The runner starts it from its own folder.
const SANDBOX: &str = "rljob-sandbox";

/// Copies this program and the sandbox beside it. A copy of an init container that was interrupted
/// is replaced.
pub fn copy(folder: &Path) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("failed to find the path of this program")?;
    for program in [own.with_file_name(SANDBOX), own] {
        let name = program.file_name().context("the program has no name")?;
        let (partial, target) = (folder.join("partial"), folder.join(name));
        let failed = || format!("failed to copy {} to {}", program.display(), target.display());
        // Not writable: a program that is executed is never written.
        let _ = fs::remove_file(&partial);
        fs::copy(&program, &partial).with_context(failed)?;
        fs::set_permissions(&partial, fs::Permissions::from_mode(0o555)).with_context(failed)?;
        fs::rename(&partial, &target).with_context(failed)?;
    }
    Ok(())
}
