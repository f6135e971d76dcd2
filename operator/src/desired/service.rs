//! Headless Service of a role. Its host names are published before pods are ready, because
//! processes wait for each other.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Role, meta};
use crate::validate::ValidatedJob;

pub(super) fn build_service(job: &ValidatedJob, role: Role) -> Service {
    let port = ServicePort {
        name: Some(role.port_name().to_owned()),
        port: i32::from(role.port()),
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::String(role.port_name().to_owned())),
        ..ServicePort::default()
    };
    Service {
        metadata: meta::child(job, meta::role_name(job, role), Some(role)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(meta::role_labels(job, role)),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}
