//! `rljob init`: writes a job file from a preset.

mod data;
mod preset;

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

pub use preset::Preset;

use crate::local::jobs::parse_objects;
use crate::local::relative_programs;

/// Registry of the images in samples, which no node can pull.
const EXAMPLE_REGISTRY: &str = "registry.example/";

/// Write a commented job file from a preset.
///
/// The preset names models, data, claims and images that you replace; `rljob validate` checks the
/// result.
#[derive(clap::Args, Debug)]
pub struct InitArgs {
    /// What to start from.
    #[arg(value_enum, default_value = "grpo")]
    pub preset: Preset,
    /// File to write, or `-` for standard output.
    #[arg(short, long, value_name = "FILE", default_value = "job.yaml")]
    pub file: PathBuf,
    /// Name of the job. Default: that of the preset.
    #[arg(long)]
    pub name: Option<String>,
    /// Folder of the preset's data, which `manifests/samples/quickstart/make_data.py` or
    /// `manifests/samples/tools/make_data.py` generates. Default: the paths of the sample, which
    /// start at its folder in a checkout.
    #[arg(long, value_name = "FOLDER")]
    pub data: Option<PathBuf>,
    /// Overwrite FILE if it exists.
    #[arg(long)]
    pub force: bool,
}

/// Writes the file; returns the answer, or the file's text for standard output.
///
/// # Errors
/// The file exists or cannot be written, or the name is invalid.
pub fn init(arguments: &InitArgs) -> anyhow::Result<String> {
    let InitArgs { preset, file, name, data, force } = arguments;
    let is_output = file == Path::new("-");
    let shown = if is_output { "job.yaml".to_owned() } else { file.display().to_string() };
    let text = preset.text(&shown, name.as_deref())?;
    let text = match data {
        Some(folder) => data::with_folder(&text, folder)?,
        None => text,
    };
    if is_output {
        return Ok(text);
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).create_new(!force);
    let mut opened = options.open(file).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            anyhow!("{shown} exists: choose another --file, or pass --force to overwrite it")
        }
        _ => anyhow::Error::new(error).context(format!("failed to create {shown}")),
    })?;
    opened.write_all(text.as_bytes()).with_context(|| format!("failed to write {shown}"))?;
    let relative = data::generator(&text).filter(|_| data.is_none());
    let hint = relative.map(|generator| {
        format!(
            "\nits relative paths start at its folder: pass --data FOLDER for data elsewhere, \
             which `python3 {generator}` of a checkout generates"
        )
    });
    let what = match data {
        Some(_) => "read its comments",
        None if text.contains(EXAMPLE_REGISTRY) => {
            "replace its model, data, storage and images of registry.example by yours"
        }
        None => "replace its model, data and storage by yours",
    };
    let programs = absent_programs(&text, file)?;
    Ok(format!(
        "wrote {shown}: {what}, then run\n\x20 rljob validate -f {shown}{}{}",
        hint.unwrap_or_default(),
        programs.unwrap_or_default()
    ))
}

/// Names the programs of a job file that are not beside it.
fn absent_programs(text: &str, file: &Path) -> anyhow::Result<Option<String>> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let jobs = parse_objects(file, text, &[])?;
    let programs = jobs.iter().flat_map(|job| relative_programs(&job.spec));
    let mut absent: Vec<&str> = programs.filter(|path| !folder.join(path).exists()).collect();
    absent.dedup();
    Ok((!absent.is_empty()).then(|| {
        format!(
            "\nthe job runs {}, which `init` does not write: copy from manifests/samples of a \
             checkout, or set yours",
            absent.join(", ")
        )
    }))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::cli::test_support::{arguments as validate_arguments, validated};

    fn arguments(preset: Preset, file: &Path) -> InitArgs {
        InitArgs { preset, file: file.to_owned(), name: None, data: None, force: false }
    }

    fn problems(file: &Path) -> Result<String, String> {
        validated(&validate_arguments(&[&file.to_owned()]))
    }

    #[test]
    fn every_preset_is_valid_and_names_its_file() {
        let folder = tempfile::tempdir().unwrap();
        for preset in Preset::value_variants() {
            let file = folder.path().join(format!("{preset:?}.yaml"));
            init(&arguments(*preset, &file)).unwrap();
            let lines = problems(&file).unwrap();
            assert!(lines.ends_with(" is valid"), "{preset:?}: {lines}");
            let text = std::fs::read_to_string(&file).unwrap();
            assert!(text.starts_with("# "), "{preset:?} has no comment: {text}");
            let sample = format!("{}.yaml", preset.sample().path);
            assert!(!text.contains(&sample), "{preset:?} names the sample: {text}");
            assert!(text.contains("-f "), "{preset:?} shows no command: {text}");
        }
    }

    #[test]
    fn the_answer_names_what_must_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let answer = |preset| {
            let file = folder.path().join(format!("{preset:?}.yaml"));
            init(&arguments(preset, &file)).unwrap().lines().next().unwrap().to_owned()
        };
        let expected = |preset: &str, what: &str| {
            let file = folder.path().join(preset);
            format!("wrote {}: replace its model, data{what} by yours, then run", file.display())
        };
        let images = ", storage and images of registry.example";
        assert_eq!(answer(Preset::Grpo), expected("Grpo.yaml", images));
        assert_eq!(answer(Preset::Cpu), expected("Cpu.yaml", " and storage"));
    }

    #[test]
    fn the_name_is_that_of_the_job_and_of_its_commands() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        let named = |preset, name: &str| {
            let name = Some(name.to_owned());
            let force = true;
            init(&InitArgs { name, force, ..arguments(preset, &file) })
                .map_err(|error| error.to_string())
        };
        named(Preset::Queue, "mine").unwrap();
        assert!(problems(&file).unwrap().ends_with("rljob mine is valid"));
        named(Preset::Grpo, "mine").unwrap();
        assert!(problems(&file).unwrap().ends_with("rljob mine is valid"));
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("rljob/mine ") && !text.contains("gsm8k-grpo"), "{text}");
        let invalid = named(Preset::Grpo, "Not a name").unwrap_err();
        assert!(invalid.contains("metadata.name"), "{invalid}");
        let several = named(Preset::Quickstart, "mine").unwrap_err();
        assert!(several.contains("several jobs"), "{several}");
    }

    #[test]
    fn data_are_in_the_folder_that_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        let generated = folder.path().join("my data");
        let error = init(&InitArgs {
            data: Some(generated.clone()),
            ..arguments(Preset::Quickstart, &file)
        });
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("is not a folder: generate the data"), "{error}");
        std::fs::create_dir(&generated).unwrap();
        let with_data = |preset| {
            let data = Some(generated.clone());
            let answer = init(&InitArgs { data, force: true, ..arguments(preset, &file) });
            answer.map(|answer| (answer, std::fs::read_to_string(&file).unwrap()))
        };
        for preset in [Preset::Quickstart, Preset::Dpo, Preset::Tools, Preset::CodeAgent] {
            let (answer, text) = with_data(preset).unwrap();
            assert!(!answer.contains("--data"), "{answer}");
            assert!(problems(&file).unwrap().ends_with(" is valid"), "{text}");
            let jobs = parse_objects(&file, &text, &[]).unwrap();
            let paths = jobs.iter().filter_map(|job| job.spec.dataset.train.path.as_deref());
            assert!(paths.clone().count() > 0);
            for path in paths {
                assert!(Path::new(path).starts_with(&generated), "{path}");
            }
        }
        let error = with_data(Preset::Grpo).unwrap_err().to_string();
        assert!(error.contains("the preset reads no generated data"), "{error}");
        let answer = init(&InitArgs { force: true, ..arguments(Preset::Tools, &file) }).unwrap();
        assert!(answer.contains("manifests/samples/tools/make_data.py FOLDER` of"), "{answer}");
        let answer = init(&InitArgs { force: true, ..arguments(Preset::CodeAgent, &file) });
        let answer = answer.unwrap();
        assert!(answer.contains("tools/make_data.py FOLDER python` of"), "{answer}");
    }

    #[test]
    fn programs_that_are_not_beside_the_file_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        let answer = |preset| init(&InitArgs { force: true, ..arguments(preset, &file) }).unwrap();
        let hint = "\nthe job runs ./agent/two_turns.py, which `init` does not write: ";
        assert!(answer(Preset::Agent).contains(hint), "{}", answer(Preset::Agent));
        std::fs::create_dir(folder.path().join("agent")).unwrap();
        std::fs::write(folder.path().join("agent/two_turns.py"), "").unwrap();
        assert!(!answer(Preset::Agent).contains("the job runs"));
        assert!(!answer(Preset::Grpo).contains("the job runs"));
    }

    #[test]
    fn a_file_is_overwritten_only_with_force() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("job.yaml");
        std::fs::write(&file, "mine").unwrap();
        let error = init(&arguments(Preset::Sft, &file)).unwrap_err().to_string();
        assert!(error.contains("exists: choose another --file"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        init(&InitArgs { force: true, ..arguments(Preset::Sft, &file) }).unwrap();
        assert_ne!(std::fs::read_to_string(&file).unwrap(), "mine");
    }
}
