//! Tokens of a spec for servers outside the job: which field sends which key of a Secret where.

use crate::RLJobSpec;
use crate::storage::SecretKeyReference;

/// Longest token in bytes.
pub const MAX_TOKEN: u64 = 64 << 10;

/// The token of a file, without white space at its ends. `None` unless it is one line of at most
/// [`MAX_TOKEN`] visible ASCII characters without spaces.
pub fn token(file: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(file).ok()?.trim();
    let is_token = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    (is_token && file.len() as u64 <= MAX_TOKEN).then_some(text)
}

/// A server outside the job to which the coordinator sends a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceToken<'a> {
    /// Path of the object with `url` and `tokenSecretRef`.
    pub field: String,
    /// URL of the server.
    pub url: &'a str,
    /// Key of the Secret with the token.
    pub secret: &'a SecretKeyReference,
}

/// A server of a spec: field, URL and the token, if it has one.
type Server<'a> = (String, &'a str, Option<&'a SecretKeyReference>);

impl RLJobSpec {
    /// The servers of the spec that get a token: those of rewards, of a teacher and of the
    /// workflow.
    pub fn service_tokens(&self) -> Vec<ServiceToken<'_>> {
        let teacher = self.algorithm.teacher_field().into_iter().filter_map(|(field, teacher)| {
            let server = teacher.server?;
            let token = server.token_secret_ref.as_ref();
            Some((format!("{field}.server"), server.url.as_str(), token))
        });
        let servers = self.reward_servers().chain(teacher).chain(self.workflow_servers());
        servers
            .filter_map(|(field, url, secret)| Some(ServiceToken { field, url, secret: secret? }))
            .collect()
    }

    fn reward_servers(&self) -> impl Iterator<Item = Server<'_>> {
        self.rewards.iter().enumerate().filter_map(|(index, reward)| {
            let path = format!("spec.rewards[{index}]");
            let model = reward.model.as_ref().and_then(|model| {
                let url = model.url.as_deref()?;
                Some((format!("{path}.model"), url, model.token_secret_ref.as_ref()))
            });
            model.or_else(|| {
                let http = reward.http.as_ref()?;
                Some((format!("{path}.http"), http.url.as_str(), http.token_secret_ref.as_ref()))
            })
        })
    }

    fn workflow_servers(&self) -> impl Iterator<Item = Server<'_>> {
        let workflow = self.rollout.workflow.iter();
        let environments = workflow.clone().filter_map(|workflow| workflow.environment.as_ref());
        let environments = environments.filter_map(|environment| {
            let field = "spec.rollout.workflow.environment".to_owned();
            Some((field, environment.url.as_deref()?, environment.token_secret_ref.as_ref()))
        });
        let tools = workflow.flat_map(|workflow| &workflow.tools).flat_map(|of| &of.tools);
        let tools = tools.enumerate().filter_map(|(index, tool)| {
            let path = format!("spec.rollout.workflow.tools.tools[{index}]");
            let http = tool.http.as_ref().map(|http| {
                (format!("{path}.http"), http.url.as_str(), http.token_secret_ref.as_ref())
            });
            http.or_else(|| {
                let mcp = tool.mcp.as_ref()?;
                Some((format!("{path}.mcp"), mcp.url.as_str(), mcp.token_secret_ref.as_ref()))
            })
        });
        environments.chain(tools)
    }
}
