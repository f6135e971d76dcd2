//! Teachers: models whose distribution a policy learns.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::roles::InferenceSpec;
use crate::storage::SecretKeyReference;
use crate::union::{Union, exactly_one};
use crate::verifier::{concurrency, max_outage_seconds, retries, timeout_seconds};

/// A teacher. Exactly one of `path` and `server`. Its tokenizer must be that of the
/// policy. One that `server` or `engines` serve computes its log-probabilities of each finished
/// sample, at temperature 1; learners do not hold it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
#[x_kube(
    validation = Rule::new("!has(self.engines) || has(self.path)")
        .message("engines serve the model in path: set path")
)]
#[x_kube(
    validation = Rule::new("!has(self.engines) || self.engines.replicas >= 1")
        .message("engines.replicas must be at least 1")
)]
#[x_kube(
    validation = Rule::new("!has(self.calls) || has(self.engines)")
        .message("calls are those of engines: set engines, or remove calls")
)]
pub struct TeacherSpec {
    /// Folder with `config.json`, `tokenizer.json` and `*.safetensors`, as trainer pods, or those
    /// of `engines`, see it. Its vocabulary is that of the policy; its shape may differ. `rljob
    /// run` resolves a relative path against the job file. Without `engines`, learners hold the
    /// teacher beside the policy, divided among themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Engines of the job that serve the teacher in `path`, with the fields of `inference`, of
    /// which nothing is inherited. They compute its log-probabilities of each finished sample, at
    /// temperature 1; learners do not hold it, and its weights never change. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engines: Option<Box<InferenceSpec>>,
    /// Limits of calls of `engines`. Default those of its fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<TeacherCalls>,
    /// Server of the teacher that the job does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<TeacherServer>,
}

impl Union for TeacherSpec {
    const MEMBERS: &'static [&'static str] = &["path", "server"];
}

/// A teacher that no engines of the job serve. Exactly one of `path` and `server`. Its tokenizer
/// must be that of the policy.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(validation = exactly_one(Self::MEMBERS))]
pub struct JointTeacher {
    /// Folder of the teacher, as in `distillation`. Learners hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Server of the teacher that the job does not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<TeacherServer>,
}

impl Union for JointTeacher {
    const MEMBERS: &'static [&'static str] = TeacherSpec::MEMBERS;
}

/// Where the teacher of an algorithm is, of any kind of setting.
#[derive(Clone, Copy, Debug)]
pub struct TeacherSource<'a> {
    /// Its folder.
    pub path: Option<&'a str>,
    /// Server that the job does not start.
    pub server: Option<&'a TeacherServer>,
    /// Engines of the job that serve the folder.
    pub engines: Option<&'a InferenceSpec>,
    /// Limits of calls of the engines.
    calls: Option<&'a TeacherCalls>,
}

impl TeacherSpec {
    /// Where it is.
    pub fn source(&self) -> TeacherSource<'_> {
        TeacherSource {
            path: self.path.as_deref(),
            server: self.server.as_ref(),
            engines: self.engines.as_deref(),
            calls: self.calls.as_ref(),
        }
    }
}

impl JointTeacher {
    /// Where it is.
    pub fn source(&self) -> TeacherSource<'_> {
        let (path, server) = (self.path.as_deref(), self.server.as_ref());
        TeacherSource { path, server, engines: None, calls: None }
    }
}

impl<'a> TeacherSource<'a> {
    /// The model folder and the engines that serve it, if they are of the job.
    pub fn on_engines(self) -> Option<(&'a str, &'a InferenceSpec)> {
        Some((self.path?, self.engines?))
    }

    /// The folder of a teacher that learners hold.
    pub fn held(self) -> Option<&'a str> {
        self.path.filter(|_| self.engines.is_none())
    }

    /// Whether a server or engines of the job serve it.
    pub fn is_served(self) -> bool {
        self.server.is_some() || self.engines.is_some()
    }

    /// Whether it has limits of calls of engines.
    pub fn has_calls(self) -> bool {
        self.calls.is_some()
    }

    /// Limits of calls of a served teacher.
    pub fn calls(self) -> TeacherCalls {
        match self.server {
            Some(server) => server.calls(),
            None => self.calls.cloned().unwrap_or_default(),
        }
    }
}

/// Limits of calls of a teacher's engines, with the defaults of `server`.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TeacherCalls {
    /// Seconds per try. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Retries after a failed try, after growing waits of at most 30 s. A call that loses its
    /// engine is repeated on another one first. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Concurrent requests, to all engines together. Default 64.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub concurrency: u32,
    /// Seconds for which sampling waits while no engine is ready, with reason RewardUnavailable of
    /// Ready. Then the run fails. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

impl Default for TeacherCalls {
    fn default() -> Self {
        Self {
            timeout_seconds: timeout_seconds(),
            retries: retries(),
            concurrency: concurrency(),
            max_outage_seconds: max_outage_seconds(),
        }
    }
}

/// SGLang or `rljob-engine` with the teacher. The run compares the tokens of some texts with those
/// of the policy, unless the server has no tokenizer (SGLang with `--skip-tokenizer-init`).
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TeacherServer {
    /// URL of the server, without `/generate` and without a query.
    #[schemars(length(min = 1, max = 2048), regex(pattern = "^https?://[^/ ?#]+[^ ?#]*$"))]
    pub url: String,
    /// Key of a Secret with a bearer token, read for every request; `rljob run` reads `NAME/KEY` in
    /// the folder `RLJOB_SECRETS`. `http://` is not encrypted. Default none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyReference>,
    /// Seconds per try. Default 15.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: u32,
    /// Retries, after growing waits of at most 30 s. Then the sample is rejected. Default 5.
    #[serde(default = "retries")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: u32,
    /// Concurrent requests. Default 64.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = 4096))]
    pub concurrency: u32,
    /// Seconds for which sampling waits for a server that is down, with reason RewardUnavailable of
    /// Ready. Then the run fails. Default 1800.
    #[serde(default = "max_outage_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub max_outage_seconds: u32,
}

impl TeacherServer {
    fn calls(&self) -> TeacherCalls {
        TeacherCalls {
            timeout_seconds: self.timeout_seconds,
            retries: self.retries,
            concurrency: self.concurrency,
            max_outage_seconds: self.max_outage_seconds,
        }
    }
}
