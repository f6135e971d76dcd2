//! Probes of the main container of a role.

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Probe, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Role;
use super::command::is_sglang;
use crate::validate::ValidatedJob;

/// Adds the probes of a role. An engine has no liveness probe, because a server that pauses for
/// weights must not be killed; the coordinator detects hung engines. The start of an engine may
/// take an hour: 100 GB of weights at 50 MB/s, kernel compilation, or a wait for the export of
/// another job. Of rljob's programs, probes get plain answers on the port of TLS; SGLang's port
/// speaks TLS only, except in pods of an engine that do not serve: these listen, without TLS, once
/// their ranks are ready.
pub(super) fn with_probes(job: &ValidatedJob, role: Role) -> Container {
    let is_sglang = is_sglang(job, role);
    let engines = role.engines(&job.spec);
    let spans_pods = engines.is_some_and(|engines| engines.pods_per_engine() > 1);
    let port = || IntOrString::String("http".to_owned());
    let get = |path: &str, period: i32, failures: i32| Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: port(),
            scheme: is_sglang.then(|| "HTTPS".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    };
    // A hung process fails three consecutive probes within 3 · 5 s + 4 s; a busy one answers one of
    // them. A hung process ignores SIGTERM, so that it gets no grace period.
    let alive = Probe {
        timeout_seconds: Some(4),
        termination_grace_period_seconds: Some(1),
        ..get("/healthz", 5, 3)
    };
    let connect = Probe {
        tcp_socket: Some(TCPSocketAction { port: port(), host: None }),
        period_seconds: Some(5),
        timeout_seconds: Some(5),
        ..Probe::default()
    };
    match role {
        Role::Inference | Role::Evaluation | Role::Reward | Role::Teacher => Container {
            startup_probe: Some(if spans_pods {
                Probe { period_seconds: Some(2), failure_threshold: Some(1800), ..connect.clone() }
            } else {
                get("/health", 2, 1800)
            }),
            readiness_probe: Some(connect),
            ..Container::default()
        },
        Role::Coordinator | Role::Trainer | Role::Group => Container {
            startup_probe: Some(get("/healthz", 1, 120)),
            readiness_probe: Some(get("/healthz", 5, 3)),
            liveness_probe: Some(alive),
            ..Container::default()
        },
        Role::Verifier => Container::default(),
    }
}
