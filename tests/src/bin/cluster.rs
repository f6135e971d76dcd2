//! `rljob-test-cluster`: a cluster for interactive use and for scripts. Prints the variables
//! for a shell that uses it, and runs until the end of standard input (Ctrl-D).

use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;
use rljob_tests::{Cluster, DevicePlugin, files, image, rootfs};
use serde_json::json;

/// Starts Kubernetes nodes on this machine.
#[derive(Parser)]
#[command(name = "rljob-test-cluster")]
struct Arguments {
    /// Number of nodes.
    #[arg(default_value_t = 2)]
    nodes: u8,
    /// Name of an image of the project's programs, which is imported into each node.
    image: Option<String>,
    /// Imports an image of the files in a folder into each node.
    #[arg(long, value_name = "IMAGE=FOLDER", value_parser = image_of_folder)]
    folder: Option<(String, PathBuf)>,
    /// Advertises the GPUs of this machine under the name of an extended resource, or a number of
    /// stand-ins of GPUs. Needs one node.
    #[arg(long, value_name = "RESOURCE[=STAND_INS]", value_parser = resource)]
    gpus: Option<(String, u32)>,
    /// Number of containers that can use a GPU at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    gpu_replicas: u32,
}

fn image_of_folder(text: &str) -> Result<(String, PathBuf), String> {
    let pair = text.split_once('=').ok_or_else(|| format!("`{text}` is not IMAGE=FOLDER"))?;
    Ok((pair.0.to_owned(), pair.1.into()))
}

fn resource(text: &str) -> Result<(String, u32), String> {
    let Some((name, number)) = text.split_once('=') else { return Ok((text.to_owned(), 0)) };
    let number = number.parse().map_err(|error| format!("stand-ins `{number}`: {error}"))?;
    Ok((name.to_owned(), number))
}

/// The line for a shell that finds `rljob`, `kubectl` and, if it is installed for tests, `helm`.
fn export_of_path() -> String {
    let programs = [files::binary("rljob"), files::kubernetes("kubectl"), files::helm()];
    let folders = programs.iter().flatten().filter_map(|program| program.parent());
    let folders: Vec<String> = folders.map(|folder| folder.display().to_string()).collect();
    format!("export PATH={}:$PATH", folders.join(":"))
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    anyhow::ensure!(arguments.gpus.is_none() || arguments.nodes == 1, "--gpus needs one node");
    let cluster = Cluster::start(arguments.nodes)?;
    let output = tempfile::tempdir()?;
    if let Some(reference) = &arguments.image {
        cluster.import(&rootfs::image(reference, output.path())?)?;
    }
    if let Some((reference, folder)) = &arguments.folder {
        let user = json!({"User": "65532:65532"});
        cluster.import(&image::build(reference, folder, &user, output.path())?)?;
    }
    let start = |(resource, stand_ins): &(String, u32)| {
        DevicePlugin::start(&cluster, resource, (*stand_ins, arguments.gpu_replicas))
    };
    let plugin = arguments.gpus.as_ref().map(start).transpose()?;
    if let Some(plugin) = &plugin {
        eprintln!("{} devices", plugin.devices);
    }
    eprintln!("{}", export_of_path());
    eprintln!("export KUBECONFIG={}", cluster.kubeconfig().display());
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop).context("failed to read standard input")
}
