//! Downloads over HTTP from a local server with the hub's API.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail the test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rljob_hub::{
    HubClient, HubError, RemoteFile, Repository, RepositoryKind, Settings, Snapshot,
    SnapshotDownload, TokenSource,
};
use rljob_tests::Hub;
use rljob_tests::hub::Fault;

const MODEL: &str = "models/lab/tiny";
const WEIGHTS: &str = "model.safetensors";

fn weights() -> Vec<u8> {
    (0..300_000_u32)
        .flat_map(|value| (value.wrapping_mul(2_654_435_761) as u16).to_le_bytes())
        .collect()
}

struct Fixture {
    hub: Hub,
    commit: String,
    folder: tempfile::TempDir,
    repository: Repository,
    settings: Settings,
}

impl Fixture {
    fn new() -> Self {
        let hub = Hub::start().unwrap();
        let weights = weights();
        let files: [(&str, &[u8]); 5] = [
            ("config.json", b"{}"),
            ("tokenizer.json", b"{\"version\": \"1.0\"}"),
            ("onnx/model.onnx", b"unused"),
            ("empty.txt", b""),
            (WEIGHTS, &weights),
        ];
        let commit = hub.commit(MODEL, "main", &files);
        let repository = Repository {
            kind: RepositoryKind::Model,
            name: "lab/tiny".to_owned(),
            revision: "main".to_owned(),
        };
        let settings = Settings {
            endpoint: hub.endpoint(),
            token: TokenSource::Anonymous,
            patience: Duration::from_secs(2),
            backoff: (Duration::from_millis(5), Duration::from_millis(20)),
            max_bytes: 1 << 30,
        };
        Self { hub, commit, folder: tempfile::tempdir().unwrap(), repository, settings }
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("hub/model")
    }

    fn client(&self) -> HubClient {
        HubClient::new(self.settings.clone()).unwrap()
    }

    async fn download(&self) -> Result<Snapshot, HubError> {
        let client = self.client();
        let commit = client.resolve(&self.repository).await?;
        let target = self.target();
        let mut download =
            SnapshotDownload::open(&client, &self.repository, &commit, &target).await?;
        let files = rljob_hub::model_files(&self.repository, download.files(), true)?;
        let progress = download.progress();
        download.fetch(files).await?;
        assert_eq!(progress.downloaded(), progress.total());
        download.complete("weights".to_owned()).await
    }

    async fn error(&self) -> String {
        self.download().await.unwrap_err().to_string()
    }

    fn ranges(&self) -> Vec<Option<String>> {
        let content = self.hub.requests().into_iter().filter(|request| request.content_server);
        content.map(|request| request.range).collect()
    }

    /// Writes what a killed process leaves of the weights.
    fn leave_part(&self, bytes: &[u8]) {
        let partial = self.folder.path().join(format!("hub/model.{}.partial", self.commit));
        fs::create_dir_all(&partial).unwrap();
        fs::write(partial.join("model.safetensors.part"), bytes).unwrap();
    }

    fn assert_weights(&self) {
        assert!(fs::read(self.target().join(WEIGHTS)).unwrap() == weights());
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_snapshot_holds_the_selected_files_and_a_marker_with_the_commit() {
    let fixture = Fixture::new();
    let snapshot = fixture.download().await.unwrap();
    fixture.assert_weights();
    assert_eq!(snapshot.commit, fixture.commit);
    let files = ["config.json", "empty.txt", WEIGHTS, "tokenizer.json"];
    assert_eq!(snapshot.files.iter().map(|file| &file.path).collect::<Vec<_>>(), files);
    assert_eq!(
        names(&fixture.target()),
        ["complete.json", "config.json", "empty.txt", WEIGHTS, "tokenizer.json"]
    );
    assert_eq!(names(&fixture.folder.path().join("hub")), ["model", "model.lock"]);
    assert_eq!(Snapshot::read(&fixture.target()).unwrap().unwrap(), snapshot);
}

#[tokio::test]
async fn a_broken_transfer_continues_at_the_byte_where_it_broke() {
    let fixture = Fixture::new();
    fixture.hub.inject([Fault::Break(100_000), Fault::Status(503), Fault::Break(32_768)]);
    fixture.download().await.unwrap();
    fixture.assert_weights();
    let ranges = fixture.ranges();
    assert_eq!(ranges.len(), 4, "{ranges:?}");
    assert_eq!(ranges[0], None);
    assert_eq!(ranges[1], ranges[2], "a 503 changes nothing");
    assert!(ranges[1..].iter().all(Option::is_some), "{ranges:?}");
}

#[tokio::test]
async fn a_new_process_continues_the_part_files_of_a_killed_one() {
    let fixture = Fixture::new();
    fixture.leave_part(&weights()[..123_457]);
    fixture.download().await.unwrap();
    fixture.assert_weights();
    assert_eq!(fixture.ranges(), [Some("bytes=123457-".to_owned())]);
}

#[tokio::test]
async fn altered_part_files_are_downloaded_again() {
    let fixture = Fixture::new();
    let mut altered = weights()[..50_000].to_vec();
    altered[10] ^= 1;
    fixture.leave_part(&altered);
    fixture.download().await.unwrap();
    fixture.assert_weights();
    assert_eq!(fixture.ranges(), [Some("bytes=50000-".to_owned()), None]);
}

#[tokio::test]
async fn a_part_longer_than_the_file_and_a_server_that_ignores_ranges_start_over() {
    let fixture = Fixture::new();
    fixture.leave_part(&[&weights()[..], b"x"].concat());
    fixture.hub.inject([Fault::Break(70_000), Fault::IgnoreRange]);
    fixture.download().await.unwrap();
    fixture.assert_weights();
    assert_eq!(fixture.ranges()[0], None);
}

#[tokio::test]
async fn content_that_never_matches_its_checksum_is_an_error() {
    let fixture = Fixture::new();
    fixture.hub.inject([Fault::Corrupt]);
    fixture.download().await.unwrap();
    fixture.assert_weights();

    let fixture = Fixture::new();
    fixture.hub.inject([Fault::Corrupt, Fault::Corrupt, Fault::Corrupt]);
    let error = fixture.error().await;
    assert!(
        error.starts_with("model.safetensors of model repository lab/tiny does not match"),
        "{error}"
    );
    assert!(!fixture.target().exists(), "a corrupt snapshot has no folder");
}

#[tokio::test]
async fn the_token_goes_to_the_hub_and_never_to_the_content_server() {
    let mut fixture = Fixture::new();
    let token = fixture.folder.path().join("token");
    fs::write(&token, "hf_right\n").unwrap();
    fixture.settings.token = TokenSource::File(token);
    fixture.hub.require_token(MODEL, "hf_right");
    fixture.download().await.unwrap();
    for request in fixture.hub.requests() {
        let expected = (!request.content_server).then(|| "Bearer hf_right".to_owned());
        assert_eq!(request.authorization, expected, "{}", request.path);
    }
}

#[tokio::test]
async fn denied_and_missing_repositories_are_named() {
    let mut fixture = Fixture::new();
    let endpoint = fixture.hub.endpoint();
    fixture.hub.require_token(MODEL, "hf_right");
    assert_eq!(
        fixture.error().await,
        format!(
            "{endpoint} denied access to model repository lab/tiny (401): the request had no \
             token; set tokenSecretRef, or HF_TOKEN in local runs"
        )
    );
    let token = fixture.folder.path().join("token");
    fs::write(&token, "hf_wrong").unwrap();
    fixture.settings.token = TokenSource::File(token.clone());
    assert_eq!(
        fixture.error().await,
        format!(
            "{endpoint} denied access to model repository lab/tiny (401): the token in {} is \
             invalid or lacks read permission",
            token.display()
        )
    );
    fixture.repository.name = "lab/none".to_owned();
    let missing = fixture.error().await;
    assert!(
        missing.starts_with(&format!("{endpoint} has no model repository lab/none, or hides it")),
        "{missing}"
    );
}

#[tokio::test]
async fn revisions_are_resolved_and_a_missing_one_is_named() {
    let mut fixture = Fixture::new();
    let old = fixture.commit.clone();
    let new = fixture.hub.commit(MODEL, "main", &[("config.json", b"{\"new\": true}")]);
    let client = fixture.client();
    assert_eq!(client.resolve(&fixture.repository).await.unwrap(), new);
    fixture.repository.revision = old.clone();
    assert_eq!(client.resolve(&fixture.repository).await.unwrap(), old);
    fixture.repository.revision = "v9".to_owned();
    assert_eq!(fixture.error().await, "model repository lab/tiny has no revision `v9`");
}

#[tokio::test]
async fn another_commit_replaces_the_snapshot_and_removes_other_partial_folders() {
    let fixture = Fixture::new();
    fixture.download().await.unwrap();
    fixture.leave_part(b"old");
    let files: [(&str, &[u8]); 2] = [("config.json", b"{\"new\": true}"), (WEIGHTS, b"new")];
    let new = fixture.hub.commit(MODEL, "main", &files);
    let snapshot = fixture.download().await.unwrap();
    assert_eq!(snapshot.commit, new);
    assert_eq!(fs::read(fixture.target().join(WEIGHTS)).unwrap(), b"new");
    assert_eq!(names(&fixture.folder.path().join("hub")), ["model", "model.lock"]);
}

#[tokio::test]
async fn file_lists_of_several_pages_are_complete() {
    let fixture = Fixture::new();
    let files = fixture.client().files(&fixture.repository, &fixture.commit).await.unwrap();
    let paths: Vec<String> = files.into_iter().map(|file| file.path).collect();
    let expected = ["config.json", "empty.txt", WEIGHTS, "onnx/model.onnx", "tokenizer.json"];
    assert_eq!(paths, expected);
}

#[tokio::test]
async fn an_unavailable_hub_and_too_large_snapshots_are_errors() {
    let mut fixture = Fixture::new();
    fixture.settings.max_bytes = 1000;
    let error = fixture.error().await;
    assert!(error.ends_with("the limit is 1000"), "{error}");

    fixture.settings.max_bytes = 1 << 30;
    fixture.settings.patience = Duration::from_millis(100);
    fixture.hub.inject(std::iter::repeat_n(Fault::Status(500), 100));
    let error = fixture.error().await;
    assert!(error.starts_with("lab/tiny/model.safetensors was unavailable for"), "{error}");
    fixture.settings.endpoint = "ftp://x".to_owned();
    let error = HubClient::new(fixture.settings.clone()).unwrap_err().to_string();
    assert_eq!(error, "HF_ENDPOINT `ftp://x` is not an http or https URL");
}

#[tokio::test]
async fn a_snapshot_larger_than_the_volume_is_rejected_before_the_download() {
    let mut fixture = Fixture::new();
    fixture.settings.max_bytes = u64::MAX;
    let (client, target) = (fixture.client(), fixture.target());
    let mut download =
        SnapshotDownload::open(&client, &fixture.repository, &fixture.commit, &target)
            .await
            .unwrap();
    let huge = RemoteFile { size: 1 << 62, ..download.files()[0].clone() };
    for (count, size) in [(1, 1 << 62), (4, u64::MAX)] {
        let error = download.fetch(vec![huge.clone(); count]).await.unwrap_err();
        assert!(matches!(error, HubError::DiskFull { needed, .. } if needed == size), "{error}");
    }
    assert_eq!(fixture.ranges(), []);
}
