//! List of the sources of a dataset with their fields in the spec.

use super::DatasetSpec;
use super::source::HubDatasetSource;
use crate::names::{HUB_EVALUATION_TOKEN, HUB_TRAIN_TOKEN};

/// A source of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSource<'a> {
    /// Field of the object with the source, such as `spec.dataset.evaluation.suites[0]`.
    pub field: String,
    /// Name of the file with its access token.
    pub token: String,
    /// Split of rows if none is set.
    pub default_split: &'static str,
    /// File or dataset folder.
    pub path: Option<&'a str>,
    /// Dataset repository.
    pub hugging_face: Option<&'a HubDatasetSource>,
}

impl DatasetSpec {
    /// All sources of rows.
    pub fn sources(&self) -> Vec<DataSource<'_>> {
        let mut sources = Vec::new();
        let of_train = |at: String, token, path, hugging_face| DataSource {
            field: format!("spec.dataset.train{at}"),
            token,
            default_split: "train",
            path,
            hugging_face,
        };
        let train = &self.train;
        if !train.is_absent() && train.mixture.is_empty() {
            let (path, hub) = (train.path.as_deref(), train.hugging_face.as_ref());
            sources.push(of_train(String::new(), HUB_TRAIN_TOKEN.to_owned(), path, hub));
        }
        for (index, part) in train.mixture.iter().enumerate() {
            let (path, hub) = (part.path.as_deref(), part.hugging_face.as_ref());
            let token = format!("{HUB_TRAIN_TOKEN}-{index}");
            sources.push(of_train(format!(".mixture[{index}]"), token, path, hub));
        }
        let Some(evaluation) = &self.evaluation else { return sources };
        let of_evaluation = |at: String, token, path, hugging_face| DataSource {
            field: format!("spec.dataset.evaluation{at}"),
            token,
            default_split: "test",
            path,
            hugging_face,
        };
        if evaluation.suites.is_empty() {
            let (path, hub) = (evaluation.path.as_deref(), evaluation.hugging_face.as_ref());
            let token = HUB_EVALUATION_TOKEN.to_owned();
            sources.push(of_evaluation(String::new(), token, path, hub));
        }
        for (index, suite) in evaluation.suites.iter().enumerate() {
            let (path, hub) = (suite.path.as_deref(), suite.hugging_face.as_ref());
            let token = format!("{HUB_EVALUATION_TOKEN}-{index}");
            sources.push(of_evaluation(format!(".suites[{index}]"), token, path, hub));
        }
        sources
    }

    /// The paths of all sources, with their fields.
    pub fn paths_mut(&mut self) -> impl Iterator<Item = (String, &mut String)> {
        let train = self.train.path.iter_mut().map(|path| ("train.path".to_owned(), path));
        let parts = self.train.mixture.iter_mut().enumerate().filter_map(|(index, part)| {
            Some((format!("train.mixture[{index}].path"), part.path.as_mut()?))
        });
        let evaluation = self.evaluation.iter_mut().flat_map(|evaluation| {
            let suites = evaluation.suites.iter_mut().enumerate().filter_map(|(index, suite)| {
                Some((format!("evaluation.suites[{index}].path"), suite.path.as_mut()?))
            });
            let path = evaluation.path.iter_mut();
            path.map(|path| ("evaluation.path".to_owned(), path)).chain(suites)
        });
        let all = train.chain(parts).chain(evaluation);
        all.map(|(field, path)| (format!("spec.dataset.{field}"), path))
    }
}
