//! Tests of `data` with dataset folders.

use super::*;
use crate::data::DataError;

fn fixture(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(path)
        .to_str()
        .unwrap()
        .to_owned()
}

/// Row numbers and prompts of training data in file order; FOLDER replaces the fixture's path.
pub(super) fn opened(spec: &TrainDataset) -> Result<Vec<(u64, String)>, String> {
    let describe =
        |error: DataError| crate::error_line(&error).replace(&fixture("hub-dataset"), "FOLDER");
    let dataset =
        Dataset::open_train(spec, &tokenizer(), 1, &KeptFields::None).map_err(describe)?;
    let mut rows: Vec<_> = (0..dataset.len())
        .map(|position| dataset.prompt(position).unwrap())
        .map(|prompt| (prompt.row, prompt.text))
        .collect();
    rows.sort_unstable();
    Ok(rows)
}

fn folder(prompt: &str) -> TrainDataset {
    TrainDataset { path: Some(fixture("hub-dataset")), answer: None, ..File::new("").train(prompt) }
}

#[test]
fn a_split_is_read_from_all_its_files_in_order() {
    let prompt = "{{question}} {{answer}} {{level}} {{weight}} {{tags | join('+')}} \
                  {{meta.source}} {{meta.ok}}";
    let rows = opened(&folder(prompt)).unwrap();
    assert_eq!(rows.len(), 5);
    assert_eq!(rows[0], (0, "What is 0 + 0? 0 0 0.0 sum+n0 made True".to_owned()));
    assert_eq!(rows[3], (3, "What is 3 + 3? 6 3 0.3 sum+n3 made False".to_owned()));
    assert_eq!(rows[4], (4, "What is 4 + 4? 8 4 0.4 sum+n4 made True".to_owned()));
}

#[test]
fn parquet_types_are_converted_for_templates() {
    let prompt = "{{question or 'none'}}|{{answer}}|{{day}}|{{price}}|{{raw or 'none'}}|{{big}}|\
                  {{half or 'none'}}|{{map | tojson}}";
    let rows = opened(&TrainDataset { split: Some("test".to_owned()), ..folder(prompt) }).unwrap();
    let expected = [
        "é 漢字|1.5|2024-07-26|12.50|text|9223372036854775808|1.5|{\"a\":1}",
        "none|2.0|2024-07-26|12.50|none|1|none|{}",
    ];
    assert_eq!(rows.into_iter().map(|(_, text)| text).collect::<Vec<_>>(), expected);
}

#[test]
fn a_subset_selects_its_own_files() {
    let spec = TrainDataset { subset: Some("hard".to_owned()), ..folder("{{question}}") };
    assert_eq!(opened(&spec).unwrap(), [(0, "What is 100 + 100?".to_owned())]);
}

#[test]
fn without_a_card_file_names_select_the_split() {
    let folder = tempfile::tempdir().unwrap();
    let row = |name: &str| {
        fs::write(folder.path().join(name), format!("{{\"q\": \"{name}\", \"a\": 1}}\n")).unwrap();
    };
    fs::create_dir(folder.path().join("validation")).unwrap();
    for name in [
        "train-00001.jsonl",
        "train-00000.jsonl",
        "my_test.jsonl",
        "validation/part.jsonl",
        "notes.txt",
        ".hidden-train.jsonl",
    ] {
        row(name);
    }
    let spec = |split: Option<&str>| TrainDataset {
        path: Some(folder.path().to_str().unwrap().to_owned()),
        split: split.map(str::to_owned),
        ..File::new("").train("{{q}}")
    };
    let texts = |split| {
        opened(&spec(split)).map(|rows| rows.into_iter().map(|(_, text)| text).collect::<Vec<_>>())
    };
    assert_eq!(texts(None).unwrap(), ["train-00000.jsonl", "train-00001.jsonl"]);
    assert_eq!(texts(Some("test")).unwrap(), ["my_test.jsonl"]);
    assert_eq!(texts(Some("validation")).unwrap(), ["validation/part.jsonl"]);
    let name = folder.path().display();
    assert_eq!(
        texts(Some("dev2")).unwrap_err(),
        format!(
            "the dataset folder {name} has no split `dev2`: \
             set dataset.split to one of test, train, validation"
        )
    );
}

#[test]
fn folder_errors_name_the_folder_and_the_fix() {
    let split = |split: &str| {
        opened(&TrainDataset { split: Some(split.to_owned()), ..folder("{{question}}") })
            .unwrap_err()
    };
    assert_eq!(
        split("validation"),
        "the dataset folder FOLDER has no split `validation`: \
         set dataset.split to one of train, test"
    );
    let subset =
        opened(&TrainDataset { subset: Some("easy".to_owned()), ..folder("{{question}}") })
            .unwrap_err();
    assert_eq!(
        subset,
        "the dataset folder FOLDER has no subset `easy`; its README.md lists default, hard"
    );
    let field = opened(&folder("{{query}}")).unwrap_err();
    let expected = "FOLDER/data/train-00000-of-00002.parquet row 1 has no field `query`: it has ";
    assert!(field.starts_with(expected), "{field}");

    let file = File::new("{\"q\": \"x\", \"a\": 1}");
    let of_file = opened(&TrainDataset { split: Some("train".to_owned()), ..file.train("{{q}}") })
        .unwrap_err();
    assert_eq!(
        of_file,
        format!(
            "dataset.split applies to dataset folders, but {} is a file: remove the field",
            file.path()
        )
    );
}

#[test]
fn files_outside_the_dataset_folder_are_rejected() {
    let parent = tempfile::tempdir().unwrap();
    let row = "{\"q\": \"secret\", \"a\": 1}\n";
    fs::write(parent.path().join("train.jsonl"), row).unwrap();
    let folder = parent.path().join("data");
    fs::create_dir(&folder).unwrap();
    let opened = |card: &str| {
        fs::write(folder.join("README.md"), card).unwrap();
        let path = folder.to_str().unwrap().to_owned();
        opened(&TrainDataset { path: Some(path), ..File::new("").train("{{q}}") })
            .unwrap_err()
            .replace(&parent.path().display().to_string(), "PARENT")
    };
    let card = |files: &str| format!("---\nconfigs:\n- config_name: default\n{files}---\n");
    for below in ["..", "/", "x/../.."] {
        let error = opened(&card(&format!("  data_dir: {below}\n")));
        let expected = format!("data_dir `{below}` must be a path below the folder");
        assert!(error.ends_with(&expected), "{error}");
    }
    std::os::unix::fs::symlink("../train.jsonl", folder.join("train.jsonl")).unwrap();
    let expected = "PARENT/data/train.jsonl is outside the dataset folder PARENT/data: copy the \
        file into the folder, or set the path of the dataset to it";
    for files in ["", "  data_files: '*.jsonl'\n"] {
        assert_eq!(opened(&card(files)), expected);
    }
    assert_eq!(opened(""), expected);
    for bomb in ["[".repeat(100_000), "{a: ".repeat(100_000), format!("\n{}", "- ".repeat(100_000))]
    {
        let error = opened(&card(&format!("  data_dir: {bomb}\n")));
        assert!(error.ends_with("README.md: more than 128 nested lists or objects"), "{error}");
    }
}

#[test]
fn links_in_the_cache_of_the_hub_lead_to_files_of_the_repository() {
    let cache = tempfile::tempdir().unwrap();
    let repository = cache.path().join("datasets--lab--sums");
    let snapshot = repository.join("snapshots/0123");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir(repository.join("blobs")).unwrap();
    fs::write(repository.join("blobs/ab"), "{\"q\": \"x\", \"a\": 1}\n").unwrap();
    std::os::unix::fs::symlink("../../blobs/ab", snapshot.join("train.jsonl")).unwrap();
    let path = Some(snapshot.to_str().unwrap().to_owned());
    let rows = opened(&TrainDataset { path, ..File::new("").train("{{q}}") });
    assert_eq!(rows.unwrap(), [(0, "x".to_owned())]);
}

#[test]
fn folder_content_errors_name_the_file_and_the_cause() {
    let written = |files: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let path = folder.path().to_str().unwrap().to_owned();
        opened(&TrainDataset { path: Some(path.clone()), ..File::new("").train("{{q}}") })
            .unwrap_err()
            .replace(&path, "FOLDER")
    };
    let row = "{\"q\": \"x\", \"a\": 1}\n";
    assert_eq!(
        written(&[("state.json", "{}"), ("data-00000-of-00001.arrow", "")]),
        "the dataset folder FOLDER has no .parquet or .jsonl file \
         (save_to_disk writes Arrow files: use to_parquet)"
    );
    assert_eq!(
        written(&[
            ("train.jsonl", row),
            (
                "dataset_info.json",
                r#"{"splits": {"train": {"name": "train", "num_examples": 7473}}}"#
            )
        ]),
        "the data at FOLDER has 1 rows, expected 7473 according to dataset_info: \
         is the download complete?"
    );
    assert_eq!(
        written(&[(
            "README.md",
            "---\nconfigs:\n- config_name: default\n  data_files: data/train-*\n---\n"
        )]),
        "invalid dataset card FOLDER/README.md: data_files `data/train-*`: no file matches; \
         is the download complete?"
    );
    assert_eq!(
        written(&[(
            "README.md",
            "---\nconfigs:\n- config_name: a\n  data_files: a.jsonl\n\
             - config_name: b\n  data_files: b.jsonl\n---\n"
        )]),
        "the dataset folder FOLDER has several subsets and no default: \
         set dataset.subset to one of a, b"
    );
    assert_eq!(
        written(&[("train.parquet", "PAR1 and then nothing")]),
        "failed to read the Parquet file FOLDER/train.parquet: \
         Parquet error: Invalid Parquet file. Corrupt footer"
    );
}
