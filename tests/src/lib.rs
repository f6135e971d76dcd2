//! Harness of the integration tests: real Kubernetes clusters on this machine, created for one test
//! run and removed with it.
//!
//! ```text
//!  Cluster ─┬─ Sandbox      Linux namespaces and cgroups; the kernel removes everything with them
//!           ├─ pki          certificates and kubeconfigs
//!           ├─ Node         containerd and kubelet; idle_node: nodes without them
//!           └─ Image        OCI image of the workspace's binaries, imported without a registry
//!  sglang                   image that runs the real SGLang on the CPU
//!  Proxy ── Api             fault-injecting proxy between the operator and the API server
//!  account                  kubeconfigs of service accounts, and programs of Deployments
//!  Namespace ── Kubectl     user actions; a failing test prints the namespace's objects and logs
//!  panics                   the message of a failing test after that report
//!  Helm                     the operator's chart: rendering, and releases on a cluster
//!  gitops                   health and differences of objects as Argo CD and Flux see them
//!  Prometheus               server that scrapes operators and jobs, and evaluates alerts
//!  NetworkNamespace         connections and listeners of the test process in a pod's network
//!  DevicePlugin             GPUs of a node, or stand-ins of GPUs
//!  policies                 kube-router's firewall, which enforces NetworkPolicies
//!  S3 ── Link               bucket on a real server, and a fault-injecting link to it
//!  Mlflow                   tracking server of MLflow with a database
//!  Otelcol                  OpenTelemetry Collector with a file of what it received
//!  http, https              servers of one test, without and with TLS
//!  documents                code blocks of the documents
//!  TlsListener              server of the simulated coordinators of many jobs
//!  Hub                      server with the Hugging Face hub's HTTP API, with fault injection
//!  Browser                  headless Chromium with pages of the dashboard
//!  metric_types             metrics of a scrape beside a table of the documents
//!  quickstart               model and data of the quick start, with fewer rows
//!  bench                    medians and verdicts of the benchmarks of all crates
//!  chaos                    jobs under seeded fault injection (`make chaos`)
//! ```
//!
//! Only `chaos`, `metric_types` and `quickstart` know the project; the other modules are
//! independent of what is tested. All programs are real; the harness only emulates the Hugging Face
//! hub.

pub mod account;
pub mod api;
pub mod audit;
pub mod bench;
pub mod browser;
pub mod chaos;
pub mod cluster;
pub mod device_plugin;
pub mod documents;
pub mod files;
pub mod firewall;
pub mod gitops;
pub mod helm;
pub mod http;
pub mod https;
pub mod hub;
pub mod idle_node;
pub mod image;
pub mod kubectl;
pub mod kueue;
pub mod link;
pub mod metric_types;
pub mod mlflow;
pub mod namespace;
pub mod netns;
pub mod node;
pub mod otelcol;
pub mod panics;
pub mod partition;
pub mod pki;
pub mod policies;
pub mod process;
pub mod procfs;
pub mod prometheus;
pub mod proxy;
pub mod quickstart;
pub mod rootfs;
pub mod s3;
pub mod sandbox;
pub mod scrape;
pub mod sglang;
pub mod tls;

pub use api::Api;
pub use audit::AuditedRequest;
pub use cluster::Cluster;
pub use device_plugin::DevicePlugin;
pub use helm::Helm;
pub use hub::Hub;
pub use kubectl::Kubectl;
pub use mlflow::Mlflow;
pub use namespace::Namespace;
pub use netns::NetworkNamespace;
pub use otelcol::Otelcol;
pub use prometheus::Prometheus;
pub use proxy::Proxy;
pub use s3::S3;
pub use tls::TlsListener;
