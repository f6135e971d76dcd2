//! Repositories, their files with checksums, and the files that a model needs.

use reqwest::Url;
use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::HubError;

/// A repository at a revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repository {
    pub kind: RepositoryKind,
    /// `name` or `owner/name`.
    pub name: String,
    /// Branch, tag or commit.
    pub revision: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RepositoryKind {
    Model,
    Dataset,
}

impl Repository {
    /// `base/api/models/<name>/<rest…>`. Slashes in the elements of `rest` are escaped.
    pub(crate) fn api_url(&self, base: &Url, rest: &[&str]) -> Result<Url, HubError> {
        let collection = match self.kind {
            RepositoryKind::Model => "models",
            RepositoryKind::Dataset => "datasets",
        };
        self.url(base, &["api", collection], rest.iter().copied())
    }

    /// URL of a file's content at a commit.
    pub(crate) fn file_url(&self, base: &Url, commit: &str, file: &str) -> Result<Url, HubError> {
        let collection: &[&str] = match self.kind {
            RepositoryKind::Model => &[],
            RepositoryKind::Dataset => &["datasets"],
        };
        self.url(base, collection, ["resolve", commit].into_iter().chain(file.split('/')))
    }

    fn url<'a>(
        &self,
        base: &Url,
        before: &[&str],
        after: impl Iterator<Item = &'a str>,
    ) -> Result<Url, HubError> {
        let valid = |part: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            !part.is_empty() && part.bytes().all(allowed) && !part.starts_with('.')
        };
        let parts: Vec<&str> = self.name.split('/').collect();
        if parts.len() > 2 || !parts.iter().copied().all(valid) {
            return Err(HubError::RepositoryName(self.name.clone()));
        }
        let mut url = base.clone();
        url.path_segments_mut()
            .map_err(|()| HubError::Endpoint(base.to_string()))?
            .pop_if_empty()
            .extend(before)
            .extend(parts)
            .extend(after);
        Ok(url)
    }
}

impl std::fmt::Display for Repository {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            RepositoryKind::Model => "model",
            RepositoryKind::Dataset => "dataset",
        };
        write!(formatter, "{kind} repository {}", self.name)
    }
}

/// A file of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteFile {
    /// Path in the repository, with `/`.
    pub path: String,
    /// Bytes.
    pub size: u64,
    pub checksum: Checksum,
}

/// Checksum of a file's content, in lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Checksum {
    /// Of files in large-file storage.
    Sha256(String),
    /// Of all other files: Git's blob id.
    GitSha1(String),
}

impl Checksum {
    pub(crate) fn value(&self) -> &str {
        let (Self::Sha256(value) | Self::GitSha1(value)) = self;
        value
    }
}

/// Incremental checksum of a file's content.
pub(crate) enum Hasher {
    Sha256(Sha256),
    GitSha1(Sha1),
}

impl Hasher {
    pub(crate) fn new(file: &RemoteFile) -> Self {
        match file.checksum {
            Checksum::Sha256(_) => Self::Sha256(Sha256::new()),
            Checksum::GitSha1(_) => {
                Self::GitSha1(Sha1::new_with_prefix(format!("blob {}\0", file.size)))
            }
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitSha1(hash) => hash.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> String {
        match self {
            Self::Sha256(hash) => format!("{:x}", hash.finalize()),
            Self::GitSha1(hash) => format!("{:x}", hash.finalize()),
        }
    }
}

/// Extensions of the files beside the weights that tokenizers and model loaders read.
const METADATA: [&str; 5] = ["json", "jinja", "model", "tiktoken", "txt"];

/// Selects the files of a model folder: configuration, tokenizer and, with `weights`, safetensors.
/// Subfolders and other weight formats are left out.
pub fn model_files(
    repository: &Repository,
    files: &[RemoteFile],
    weights: bool,
) -> Result<Vec<RemoteFile>, HubError> {
    let extension =
        |file: &&RemoteFile| file.path.rsplit_once('.').map_or("", |(_, end)| end).to_owned();
    let top_level: Vec<&RemoteFile> =
        files.iter().filter(|file| !file.path.contains('/')).collect();
    let missing = |found, expected| HubError::MissingFiles {
        repository: repository.to_string(),
        found,
        expected,
    };
    if !top_level.iter().any(|file| file.path == "config.json") {
        return Err(missing("no config.json", "a model of the transformers library"));
    }
    let metadata = top_level.iter().filter(|file| METADATA.contains(&extension(file).as_str()));
    let mut selected: Vec<RemoteFile> = metadata.copied().cloned().collect();
    if weights {
        let all: Vec<&RemoteFile> =
            top_level.iter().copied().filter(|file| extension(file) == "safetensors").collect();
        // Some repositories hold the weights a second time, as consolidated.safetensors.
        let has_prefix = |file: &&RemoteFile| file.path.starts_with("model");
        let preferred = all.iter().any(has_prefix);
        selected.extend(all.into_iter().filter(|file| !preferred || has_prefix(file)).cloned());
        if !selected.iter().any(|file| file.path.ends_with(".safetensors")) {
            return Err(missing("no safetensors", "weights in the safetensors format"));
        }
    }
    Ok(selected)
}

/// Whether a path from a server stays inside the folder that it is joined to.
pub(crate) fn is_safe(path: &str) -> bool {
    let safe = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.len() <= 1024 && path.split('/').all(safe) && !path.contains(['\\', '\0'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(kind: RepositoryKind, name: &str) -> Repository {
        Repository { kind, name: name.to_owned(), revision: "main".to_owned() }
    }

    fn file(path: &str) -> RemoteFile {
        RemoteFile { path: path.to_owned(), size: 1, checksum: Checksum::Sha256(String::new()) }
    }

    #[test]
    fn urls_escape_revisions_and_keep_the_path_of_the_endpoint() {
        let base: Url = "https://mirror.example/hf/".parse().unwrap();
        let dataset = repository(RepositoryKind::Dataset, "openai/gsm8k");
        assert_eq!(
            dataset.api_url(&base, &["revision", "refs/convert/parquet"]).unwrap().as_str(),
            "https://mirror.example/hf/api/datasets/openai/gsm8k/revision/refs%2Fconvert%2Fparquet"
        );
        assert_eq!(
            dataset.file_url(&base, "abc", "main/a b.parquet").unwrap().as_str(),
            "https://mirror.example/hf/datasets/openai/gsm8k/resolve/abc/main/a%20b.parquet"
        );
        assert_eq!(
            repository(RepositoryKind::Model, "gpt2").file_url(&base, "abc", "x").unwrap().path(),
            "/hf/gpt2/resolve/abc/x"
        );
        for name in ["", "a/b/c", "../b", "a/..", "a?b"] {
            let error = repository(RepositoryKind::Model, name).api_url(&base, &[]).unwrap_err();
            assert!(matches!(error, HubError::RepositoryName(_)), "{name}");
        }
    }

    #[test]
    fn a_model_needs_configuration_tokenizer_and_one_set_of_safetensors() {
        let model = repository(RepositoryKind::Model, "a/b");
        let select = |names: &[&str], weights| {
            let files: Vec<RemoteFile> = names.iter().map(|name| file(name)).collect();
            model_files(&model, &files, weights)
                .map(|files| files.into_iter().map(|file| file.path).collect::<Vec<_>>())
                .map_err(|error| error.to_string())
        };
        let names = [
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "model-00001-of-00001.safetensors",
            "original/params.json",
            "pytorch_model.bin",
            "tokenizer.json",
        ];
        let metadata = ["config.json", "tokenizer.json"];
        assert_eq!(select(&names, false).unwrap(), metadata);
        assert_eq!(
            select(&names, true).unwrap(),
            [&metadata[..], &["model-00001-of-00001.safetensors"]].concat()
        );
        assert_eq!(
            select(&["config.json", "pytorch_model.bin"], true).unwrap_err(),
            "model repository a/b contains no safetensors; \
             expected weights in the safetensors format"
        );
        assert!(select(&["adapter_config.json"], true).unwrap_err().contains("no config.json"));
    }

    #[test]
    fn paths_that_leave_the_folder_are_unsafe() {
        for path in ["a/b.json", ".gitattributes", "a..b"] {
            assert!(is_safe(path), "{path}");
        }
        for path in ["", "/etc/passwd", "../a", "a/../b", "a//b", "a\\b", "./a"] {
            assert!(!is_safe(path), "{path}");
        }
    }

    #[test]
    fn the_git_checksum_is_the_blob_id() {
        let file = RemoteFile {
            path: "a".to_owned(),
            size: 6,
            checksum: Checksum::GitSha1(String::new()),
        };
        let mut hasher = Hasher::new(&file);
        hasher.update(b"hello\n");
        assert_eq!(hasher.finish(), "ce013625030ba8dba906f756967f9e9ca394464a");
    }
}
