//! Hugging Face sources: downloads the repositories of a run once, before its input is opened.
//!
//! ```text
//!  source ─▶ commit, recorded as hub/…/NAME.json in the run store ─▶ files ─▶ hub/…/NAME/
//! ```
//!
//! A restarted run uses the recorded commit. Other roles wait for the folder of the model
//! (docs/decisions/0011).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rljob_crds::RunConfig;
use rljob_crds::data::{HubDatasetSource, TrainDataset};
use rljob_crds::model::InitialWeights;
use rljob_crds::names::{HUB_MODEL_TOKEN, HUB_TOKENS_MOUNT};
use rljob_crds::storage::SecretKeyReference;
use rljob_hub::{
    HubClient, HubError, Progress, RemoteFile, Repository, RepositoryKind, Settings, Snapshot,
    SnapshotDownload, TokenSource, model_files,
};
use rljob_protocol::status::DownloadProgress;
use rljob_storage::{MAX_MANIFEST, RunStore, StorageError};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::data::{self, DataError, FileSelector};

/// Dataset files that describe configurations and splits.
const CARD_FILES: [&str; 2] = ["README.md", "dataset_info.json"];

/// A failed download.
#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("failed to download {field}")]
    Hub { field: String, source: HubError },
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("failed to parse the recorded commit {path}")]
    Record { path: String, source: serde_json::Error },
    #[error("the download was interrupted")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// The commit of a source, as recorded in the run store.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PinnedCommit {
    repository: Repository,
    commit: String,
}

/// Files of a repository that a run uses.
#[derive(Clone, Debug)]
enum Content {
    Model { weights: bool },
    Dataset { split: Option<String>, default_split: &'static str, config: Option<String> },
}

impl Content {
    fn describe(&self) -> String {
        match self {
            Self::Model { weights: true } => "model".to_owned(),
            Self::Model { weights: false } => "model without weights".to_owned(),
            Self::Dataset { split, default_split, config } => {
                let split = split.as_deref().unwrap_or(default_split);
                format!("{}/{split}", config.as_deref().unwrap_or_default())
            }
        }
    }

    fn selector(&self) -> Option<FileSelector<'_>> {
        let Self::Dataset { split, default_split, config } = self else { return None };
        Some(FileSelector { split: split.as_deref(), default_split, subset: config.as_deref() })
    }
}

/// A repository with everything that the run uses of it.
#[derive(Debug)]
struct Source {
    field: String,
    secret: Option<TokenSecret>,
    repository: Repository,
    contents: Vec<Content>,
}

/// A Secret with an access token.
#[derive(Debug)]
struct TokenSecret {
    /// File name in the mounted folder.
    file: String,
    reference: SecretKeyReference,
}

impl TokenSecret {
    fn new(file: &str, reference: Option<&SecretKeyReference>) -> Option<Self> {
        reference.map(|reference| Self { file: file.to_owned(), reference: reference.clone() })
    }

    /// The token, unless this is a local run.
    fn mounted(&self) -> Option<TokenSource> {
        let path = Path::new(HUB_TOKENS_MOUNT).join(&self.file);
        let SecretKeyReference { name, key } = self.reference.clone();
        path.is_file().then_some(TokenSource::Secret { path, name, key })
    }
}

/// The download in progress, for the status of the run.
#[derive(Clone, Debug, Default)]
pub struct Downloads(watch::Sender<Option<(String, Arc<Progress>)>>);

impl Downloads {
    /// Progress of the download; `None` if none is in progress.
    pub fn progress(&self) -> Option<DownloadProgress> {
        let current = self.0.borrow();
        let (repository, progress) = current.as_ref()?;
        Some(DownloadProgress {
            repository: repository.clone(),
            downloaded_bytes: progress.downloaded(),
            total_bytes: progress.total(),
        })
    }
}

/// Downloads the Hugging Face sources of a run that are not complete yet.
pub async fn download(
    config: &RunConfig,
    run_store: &RunStore,
    downloads: &Downloads,
) -> Result<(), DownloadError> {
    download_with(config, run_store, downloads, |source| {
        Settings::from_environment(source.secret.as_ref().and_then(TokenSecret::mounted))
    })
    .await
}

/// Downloads only the model, into the scratch space of a pod whose run is in a bucket. Its revision
/// is a commit, so that all pods have the same model.
pub async fn download_model(config: &RunConfig) -> Result<(), DownloadError> {
    let mut config = config.clone();
    config.spec.dataset.train = TrainDataset::default();
    config.spec.dataset.evaluation = None;
    let run_store = RunStore::Folder(config.run_directory.clone());
    download(&config, &run_store, &Downloads::default()).await
}

async fn download_with(
    config: &RunConfig,
    run_store: &RunStore,
    downloads: &Downloads,
    settings: impl Fn(&Source) -> Settings,
) -> Result<(), DownloadError> {
    for (folder, source) in sources(config) {
        let failed = |error| DownloadError::Hub { field: source.field.clone(), source: error };
        let selection = source.selection();
        let snapshot = Snapshot::read(&folder).map_err(failed)?;
        if let Some(snapshot) = snapshot.filter(|snapshot| snapshot.selection == selection) {
            tracing::info!(
                repository = source.repository.name,
                commit = snapshot.commit,
                "using the downloaded repository"
            );
            continue;
        }
        let client = HubClient::new(settings(&source)).map_err(failed)?;
        let commit = pinned_commit(config, run_store, &folder, &source, &client).await?;
        tracing::info!(
            repository = source.repository.name,
            revision = source.repository.revision,
            commit,
            "downloading the repository"
        );
        let mut download = SnapshotDownload::open(&client, &source.repository, &commit, &folder)
            .await
            .map_err(failed)?;
        let progress = (source.repository.name.clone(), download.progress());
        downloads.0.send_replace(Some(progress));
        let files = select(&source, &folder, &mut download).await?;
        download.fetch(files).await.map_err(failed)?;
        download.complete(selection).await.map_err(failed)?;
        downloads.0.send_replace(None);
    }
    Ok(())
}

/// The sources by folder. Training and evaluation data of one repository share a folder.
fn sources(config: &RunConfig) -> BTreeMap<PathBuf, Source> {
    let (model, dataset) = (&config.spec.model, &config.spec.dataset);
    let mut sources: BTreeMap<PathBuf, Source> = BTreeMap::new();
    if let Some(hub) = &model.hugging_face {
        let source = Source {
            field: "spec.model.huggingFace".to_owned(),
            secret: TokenSecret::new(HUB_MODEL_TOKEN, hub.token_secret_ref.as_ref()),
            repository: Repository {
                kind: RepositoryKind::Model,
                name: hub.repo.clone(),
                revision: hub.revision.clone(),
            },
            contents: vec![Content::Model { weights: model.weights == InitialWeights::Pretrained }],
        };
        sources.insert(config.model_directory.clone(), source);
    }
    for source in dataset.sources() {
        let Some(hub) = source.hugging_face else { continue };
        let field = format!("{}.huggingFace", source.field);
        let own = sources
            .entry(config.hub_dataset(hub).into())
            .or_insert_with(|| dataset_source(field.clone(), hub));
        if let Some(secret) = TokenSecret::new(&source.token, hub.token_secret_ref.as_ref()) {
            (own.field, own.secret) = (field, Some(secret));
        }
        own.contents.push(Content::Dataset {
            split: hub.split.clone(),
            default_split: source.default_split,
            config: hub.config.clone(),
        });
    }
    sources
}

fn dataset_source(field: String, hub: &HubDatasetSource) -> Source {
    let repository = Repository {
        kind: RepositoryKind::Dataset,
        name: hub.repo.clone(),
        revision: hub.revision.clone(),
    };
    Source { field, secret: None, repository, contents: Vec::new() }
}

impl Source {
    /// Identifies the contents of a complete folder.
    fn selection(&self) -> String {
        let mut all: Vec<String> = self.contents.iter().map(Content::describe).collect();
        all.sort();
        all.dedup();
        all.join(", ")
    }
}

/// Returns the recorded commit of a source, or resolves its revision and records the commit.
async fn pinned_commit(
    config: &RunConfig,
    run_store: &RunStore,
    folder: &Path,
    source: &Source,
    client: &HubClient,
) -> Result<String, DownloadError> {
    let folder = folder.strip_prefix(&config.run_directory).unwrap_or(folder);
    let name = format!("{}.json", folder.display());
    let (store, path) = (run_store.clone(), name.clone());
    if let Some(json) =
        tokio::task::spawn_blocking(move || store.read(&path, MAX_MANIFEST)).await??
    {
        let pinned: PinnedCommit = serde_json::from_slice(&json)
            .map_err(|error| DownloadError::Record { path: name.clone(), source: error })?;
        return Ok(pinned.commit);
    }
    let commit = client
        .resolve(&source.repository)
        .await
        .map_err(|error| DownloadError::Hub { field: source.field.clone(), source: error })?;
    let pinned = PinnedCommit { repository: source.repository.clone(), commit };
    let json = serde_json::to_vec_pretty(&pinned)
        .map_err(|error| DownloadError::Record { path: name.clone(), source: error })?;
    let store = run_store.clone();
    tokio::task::spawn_blocking(move || store.put(&name, json)).await??;
    Ok(pinned.commit)
}

/// Selects the files of a source. The cards of a dataset are downloaded first.
async fn select(
    source: &Source,
    folder: &Path,
    download: &mut SnapshotDownload<'_>,
) -> Result<Vec<RemoteFile>, DownloadError> {
    let failed = |error| DownloadError::Hub { field: source.field.clone(), source: error };
    if let Some(Content::Model { weights }) = source.contents.first() {
        return model_files(&source.repository, download.files(), *weights).map_err(failed);
    }
    let all = download.files().to_vec();
    let is_card = |file: &&RemoteFile| CARD_FILES.contains(&file.path.as_str());
    download.fetch(all.iter().filter(is_card).cloned().collect()).await.map_err(failed)?;
    let mut listing = folder.as_os_str().to_owned();
    listing.push(".listing");
    let (contents, cards) = (source.contents.clone(), download.partial_folder().to_owned());
    tokio::task::spawn_blocking(move || {
        let selectors: Vec<_> = contents.iter().filter_map(Content::selector).collect();
        let names: Vec<&str> = all.iter().map(|file| file.path.as_str()).collect();
        let selected = data::select_remote(&names, &cards, Path::new(&listing), &selectors)?;
        Ok(all.into_iter().filter(|file| selected.contains(&file.path)).collect())
    })
    .await?
}

#[cfg(test)]
mod tests;
