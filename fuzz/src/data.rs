//! Datasets, batches and checkpoint manifests.

use std::path::Path;

use rljob_coordinator::data::{Dataset, KeptFields};
use rljob_coordinator::persistence::checkpoints::{MANIFEST, Verifier};
use rljob_crds::data::TrainDataset;
use rljob_protocol::batch::RankBatch;
use rljob_storage::RunStore;

use crate::folder::{with_folder, write};
use crate::tokenizer::{TOKENIZER, tokenizer};

/// Rows of the dataset folder.
const ROWS: &[u8] = b"{\"q\":\"1+1\",\"a\":\"2\"}\n{\"q\":\"2+2\",\"a\":\"4\"}\n";
/// A complete checkpoint.
const CHECKPOINT: &str = "checkpoints/step-1.attempt-0";

/// Opens the data at a path with the spec of the samples.
pub fn open(path: &Path, prompt: &str) {
    let spec =
        serde_json::json!({ "path": path, "prompt": prompt, "answer": "a", "format": "Text" });
    let spec: TrainDataset = serde_json::from_value(spec)
        .unwrap_or_else(|error| panic!("the spec of the data is outdated: {error}"));
    let open = |tokenizer: &_| Dataset::open_train(&spec, tokenizer, 1, &KeptFields::None);
    let Ok(data) = tokenizer(open) else { return };
    for position in 0..data.len().min(4) {
        let _ = data.prompt(position);
    }
}

/// README.md of a dataset folder.
pub fn dataset_card(data: &[u8]) {
    let prepare = |folder: &Path| {
        write(&folder.join("tokenizer.json"), TOKENIZER);
        for name in ["data/train-0.jsonl", "data/test-0.jsonl", "hard/rows.jsonl"] {
            write(&folder.join("cards").join(name), ROWS);
        }
    };
    with_folder(prepare, |folder| {
        let folder = folder.join("cards");
        write(&folder.join("README.md"), data);
        open(&folder, "{{q}}");
    });
}

/// A JSONL file.
pub fn dataset_rows(data: &[u8]) {
    with_folder(
        |_| {},
        |folder| {
            let path = folder.join("rows.jsonl");
            write(&path, data);
            open(&path, "{{q}}");
        },
    );
}

/// A batch as learners receive it.
pub fn rank_batch(data: &[u8]) {
    let Ok(batch) = RankBatch::from_bytes(data) else { return };
    let bytes = batch
        .to_bytes()
        .unwrap_or_else(|error| panic!("a batch that was read cannot be written: {error}"));
    if let Err(error) = RankBatch::from_bytes(&bytes) {
        panic!("a batch that was written cannot be read: {error}");
    }
}

/// `manifest.json` of a checkpoint, as the coordinator verifies it.
pub fn checkpoint_manifest(data: &[u8]) {
    let prepare = |folder: &Path| write(&folder.join(CHECKPOINT).join("rank-0"), b"weights");
    with_folder(prepare, |folder| {
        write(&folder.join(CHECKPOINT).join(MANIFEST), data);
        let run_store = RunStore::Folder(folder.to_owned());
        let found = Verifier::default().usable(&run_store);
        found.unwrap_or_else(|error| panic!("a local folder can be listed: {error}"));
    });
}
