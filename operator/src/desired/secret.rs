//! Secret with the tokens and certificates. Each role mounts only what it needs.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use rljob_crds::names::{
    SGLANG_CONFIG_FILE, TOKEN_ENGINE_ADMIN, TOKEN_ENGINE_API, TOKEN_LEARNER, TOKEN_OPERATOR,
};
use rljob_crds::roles::EngineKind;
use rljob_http as tls;

use super::{Role, Tokens, meta};
use crate::sglang;
use crate::validate::ValidatedJob;

pub(super) fn build_secret(job: &ValidatedJob, tokens: &Tokens) -> Secret {
    let Tokens { operator, learner, engine_api, engine_admin, certificates } = tokens;
    let tokens = [
        (TOKEN_OPERATOR, operator),
        (TOKEN_LEARNER, learner),
        (TOKEN_ENGINE_API, engine_api),
        (TOKEN_ENGINE_ADMIN, engine_admin),
    ];
    let mut data: BTreeMap<String, ByteString> = tokens
        .into_iter()
        .map(|(name, token)| (name.to_owned(), ByteString(token.clone().into_bytes())))
        .collect();
    // The operator derives its own certificate and mounts nothing.
    for role in [tls::Role::Coordinator, tls::Role::Trainer, tls::Role::Inference] {
        let pem = certificates.of(role).as_bytes().to_vec();
        data.insert(role.file().to_owned(), ByteString(pem));
    }
    if job.spec.verifiers.is_some() {
        let (file, pem) = (tls::Role::Verifier.file(), certificates.of(tls::Role::Verifier));
        data.insert(file.to_owned(), ByteString(pem.as_bytes().to_vec()));
    }
    if job.spec.engine_sets().any(|set| set.engines.engine() == EngineKind::SGLang) {
        data.insert(
            SGLANG_CONFIG_FILE.to_owned(),
            ByteString(sglang::config_text(engine_api, engine_admin).into_bytes()),
        );
    }
    Secret {
        metadata: meta::child(job, meta::secret_name(job), None),
        type_: Some("Opaque".to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}

/// Names of the entries that a role's pods see.
pub(super) fn tokens_of(job: &ValidatedJob, role: Role) -> Vec<&'static str> {
    let engines = role.engines(&job.spec);
    let is_sglang = engines.is_some_and(|engines| engines.engine() == EngineKind::SGLang);
    let (tokens, certificate): (&[_], _) = match role {
        Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher if is_sglang => {
            (&[SGLANG_CONFIG_FILE], tls::Role::Inference)
        }
        Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher => {
            (&[TOKEN_ENGINE_API, TOKEN_ENGINE_ADMIN], tls::Role::Inference)
        }
        Role::Coordinator => (
            &[TOKEN_OPERATOR, TOKEN_LEARNER, TOKEN_ENGINE_API, TOKEN_ENGINE_ADMIN],
            tls::Role::Coordinator,
        ),
        Role::Trainer | Role::Group => (&[TOKEN_LEARNER], tls::Role::Trainer),
        Role::Verifier => (&[], tls::Role::Verifier),
    };
    tokens.iter().copied().chain([certificate.file()]).collect()
}
