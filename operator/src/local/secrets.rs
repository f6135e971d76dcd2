//! Tokens of servers outside the job on this machine, checked before a process starts.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use rljob_crds::RLJobSpec;
use rljob_crds::names::SECRETS_VARIABLE;
use rljob_crds::service_token::{self, MAX_TOKEN, ServiceToken};

/// The folder of Secrets, if the user names one.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(SECRETS_VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Tokens that the folder lacks, and files that have none.
pub fn missing(spec: &RLJobSpec, folder: Option<&Path>) -> Vec<String> {
    spec.service_tokens().iter().filter_map(|token| problem(token, folder)).collect()
}

fn problem(token: &ServiceToken<'_>, folder: Option<&Path>) -> Option<String> {
    let (field, file) = (format!("{}.tokenSecretRef", token.field), token.secret.file());
    let Some(folder) = folder else {
        return Some(format!(
            "{field}: Secrets are files on this machine: write the token to a file {file} in a \
             folder, and set {SECRETS_VARIABLE} to the folder"
        ));
    };
    let path = folder.join(&file);
    let cause = match path.metadata() {
        Ok(metadata) if !metadata.is_file() => "it is not a file".to_owned(),
        Ok(_) => match read(&path) {
            Ok(content) if service_token::token(&content).is_some() => return None,
            Ok(_) => format!(
                "it must be one line of at most {MAX_TOKEN} visible ASCII characters without spaces"
            ),
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    };
    Some(format!(
        "{field}: failed to read {}: {cause}; write the token to this file, or set \
         {SECRETS_VARIABLE} to the folder that has {file}",
        path.display()
    ))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.take(MAX_TOKEN.saturating_add(1)).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validate::test_support::with_spec;

    #[test]
    fn each_token_must_be_a_file_in_the_folder_of_secrets() {
        let job = with_spec(&json!({"rewards": [
            {"name": "judge", "http": {"url": "http://judge", "tokenSecretRef": {"name": "lab"}}},
        ]}));
        let folder = tempfile::tempdir().unwrap();
        let field = "spec.rewards[0].http.tokenSecretRef";
        let unset = format!(
            "{field}: Secrets are files on this machine: write the token to a file lab/token in a \
             folder, and set RLJOB_SECRETS to the folder"
        );
        assert_eq!(missing(&job.spec, None), [unset]);
        let path = folder.path().join("lab/token");
        let failed = |cause: &str| {
            let path = path.display();
            vec![format!(
                "{field}: failed to read {path}: {cause}; write the token to this file, or set \
                 RLJOB_SECRETS to the folder that has lab/token"
            )]
        };
        let found = || missing(&job.spec, Some(folder.path()));
        assert_eq!(found(), failed("No such file or directory (os error 2)"));
        std::fs::create_dir_all(&path).unwrap();
        assert_eq!(found(), failed("it is not a file"));
        std::fs::remove_dir(&path).unwrap();
        for content in ["", "\n", "two words"] {
            std::fs::write(&path, content).unwrap();
            let cause = "it must be one line of at most 65536 visible ASCII characters without \
                spaces";
            assert_eq!(found(), failed(cause), "{content:?}");
        }
        std::fs::write(&path, "secret\n").unwrap();
        assert_eq!(found(), Vec::<String>::new());
    }
}
