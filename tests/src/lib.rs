//! The harness of the integration tests: a real Kubernetes on this machine, made for one test run
//! and gone with it.
//!
//! ```text
//!  Cluster ─┬─ Enclosure      namespaces of its own; whatever happens, nothing is left behind
//!           ├─ pki            certificates and kubeconfigs
//!           ├─ Node           containerd and kubelet, as many as wanted
//!           └─ Image          a folder of our binaries, given to each node's containerd without a registry
//!  sglang                     an image that runs the real SGLang on the CPU
//!  Proxy ── Api             stands between the operator and the API server, and lets requests, answers and watches go wrong
//!  Namespace ── Kubectl       what a test does, as a user would; a failing test prints what it left
//!  S3 ── Link                 a bucket on a real server, and a link to it that fails as it is told
//!  bench                      medians and verdicts of the benchmarks beside each crate
//!  chaos                      jobs under faults, from a seed (`make chaos`)
//! ```
//!
//! But for `chaos`, it must not know what it tests: only tests name RLJobs. It stands in for
//! nothing either: every program is the real one.

pub mod api;
pub mod audit;
pub mod bench;
pub mod chaos;
pub mod cluster;
pub mod enclosure;
pub mod files;
pub mod image;
pub mod kubectl;
pub mod link;
pub mod namespace;
pub mod node;
pub mod partition;
pub mod pki;
pub mod proc;
pub mod process;
pub mod proxy;
pub mod rootfs;
pub mod s3;
pub mod scrape;
pub mod sglang;

pub use api::Api;
pub use audit::Asked;
pub use cluster::Cluster;
pub use kubectl::Kubectl;
pub use namespace::Namespace;
pub use proxy::Proxy;
pub use s3::S3;
