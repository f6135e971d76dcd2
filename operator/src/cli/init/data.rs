//! Generated data of presets: samples read them in a folder beside their own.

use std::path::Path;

use anyhow::{Context, ensure};

/// A folder of data in the paths of samples, and the program of a checkout that generates it, with
/// its arguments.
struct Generated {
    folder: &'static str,
    program: &'static str,
}

/// The folders of all samples, those that contain another one first.
const ALL: [Generated; 4] = [
    Generated {
        folder: "../quickstart/data/",
        program: "manifests/samples/quickstart/make_data.py FOLDER",
    },
    Generated {
        folder: "quickstart/data/",
        program: "manifests/samples/quickstart/make_data.py FOLDER",
    },
    Generated { folder: "tools/data/", program: "manifests/samples/tools/make_data.py FOLDER" },
    Generated {
        folder: "agent/data/",
        program: "manifests/samples/tools/make_data.py FOLDER python",
    },
];

/// The program that generates the data of a job file.
pub(super) fn generator(text: &str) -> Option<&'static str> {
    text.lines().find_map(|line| Some(generated(line)?.2.program))
}

/// The job file with its data in `folder`.
///
/// # Errors
/// It reads no generated data, or the folder does not exist or its path is not UTF-8.
pub(super) fn with_folder(text: &str, folder: &Path) -> anyhow::Result<String> {
    ensure!(
        generator(text).is_some(),
        "--data: the preset reads no generated data: omit it, and edit the paths of the file"
    );
    let folder = std::path::absolute(folder)
        .with_context(|| format!("failed to resolve {}", folder.display()))?;
    ensure!(folder.is_dir(), "--data: {} is not a folder: generate the data", folder.display());
    let changed = |line: &str| match generated(line) {
        Some((key, file, _)) => {
            let path = folder.join(file);
            let path = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
            // JSON strings are YAML.
            Ok(format!("{key}{}\n", serde_json::to_string(path)?))
        }
        None => Ok(line.to_owned()),
    };
    text.split_inclusive('\n').map(changed).collect()
}

/// A line whose path is that of generated data: the line until the path, the file in the folder,
/// and the folder.
fn generated(line: &str) -> Option<(&str, &str, &'static Generated)> {
    let (key, path) = line.split_once("path: ").filter(|(indent, _)| indent.trim().is_empty())?;
    let key = line.get(..key.len().checked_add("path: ".len())?)?;
    let path = path.split_once(" #").map_or(path, |(path, _)| path).trim_end();
    ALL.iter().find_map(|data| Some((key, path.strip_prefix(data.folder)?, data)))
}
