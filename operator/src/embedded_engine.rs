//! Startup of `rljob-engine`, in pods and in local runs. Pure: where it runs is a parameter.

use std::path::Path;

use rljob_crds::RLJobSpec;
use rljob_crds::names::{TOKEN_ENGINE_ADMIN, TOKEN_ENGINE_API};
use rljob_http as tls;

use crate::served_model::ServedModel;
use crate::sglang::DOWNLOAD_SECONDS;

/// Name of the program.
pub const PROGRAM: &str = "rljob-engine";

/// Flags of the engine except `--port`, which the caller appends. `tokens` is the folder of the
/// keys and of the certificate, `uid` that of the job.
pub fn arguments(
    spec: &RLJobSpec,
    model: ServedModel<'_>,
    host: &str,
    tokens: &Path,
    uid: &str,
) -> Vec<String> {
    let file = |name: &str| tokens.join(name).display().to_string();
    let mut arguments = model.arguments(host);
    arguments.extend([
        format!("--api-key-file={}", file(TOKEN_ENGINE_API)),
        format!("--admin-api-key-file={}", file(TOKEN_ENGINE_ADMIN)),
        format!("--tls-file={}", file(tls::Role::Inference.file())),
        format!("--tls-client-name={}", tls::Role::Coordinator.server_name(uid)),
    ]);
    if spec.training.deterministic {
        arguments.push("--deterministic".to_owned());
    }
    if model.is_downloaded() {
        arguments.push(format!("--model-timeout-seconds={DOWNLOAD_SECONDS}"));
    }
    arguments
}
