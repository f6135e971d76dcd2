//! Comparison: released versions of Kubeflow Trainer and JobSet with their webhooks
//! (tests/kubeflow/build.sh), and TrainJobs with two nodes.
//!
//! The programs write the certificates of their webhooks into Secrets that kubelet would mount.
//! This program copies them to the mount paths instead.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use rljob_tests::bench::{Aim, note, row, skipped};
use rljob_tests::process::run;
use rljob_tests::sandbox::Program;
use rljob_tests::{Cluster, files};
use serde_json::json;

use super::Seen;
use super::stage::{Stage, Usage, each_job, until};

/// Nodes of a TrainJob.
const NODES: usize = 2;
/// Time for operations in progress to finish.
const SETTLE: Duration = Duration::from_secs(20);
/// Starts a program with a private /tmp, because both read certificates from
/// `/tmp/k8s-webhook-server/serving-certs`.
const START: &str = concat!(
    r#"cp --recursive "$1" "$2" "#,
    r##"&& sed --in-place "s#$1#/tmp/pki#g" "$2/pki/admin.kubeconfig" "##,
    r#"&& mount --bind "$2" /tmp && shift 2 && exec "$@""#
);

/// A controller, and the Secret and Service of its webhooks.
struct Part {
    name: &'static str,
    namespace: &'static str,
    service: &'static str,
    secret: &'static str,
    address: &'static str,
    port: u16,
    arguments: &'static [&'static str],
}

const TRAINER: Part = Part {
    name: "trainer",
    namespace: "kubeflow-system",
    service: "kubeflow-trainer-controller-manager",
    secret: "kubeflow-trainer-webhook-cert",
    address: "10.96.0.21",
    port: 9444,
    arguments: &["--webhook-server-port=9444", "--health-probe-bind-address=:8091"],
};

const JOBSET: Part = Part {
    name: "jobset",
    namespace: "jobset-system",
    service: "jobset-webhook-service",
    secret: "jobset-webhook-server-cert",
    address: "10.96.0.22",
    port: 9443,
    arguments: &["--leader-elect=false"],
};

impl Part {
    /// Starts the program and waits until its webhooks serve.
    async fn start(&self, stage: &Stage, folder: &Path) -> Program {
        let (cluster, kubectl) = (&stage.cluster, stage.cluster.kubectl());
        let Self { name, namespace, service, secret, address, port, .. } = self;
        kubectl
            .run(&[
                "apply",
                "--server-side",
                "--filename",
                &folder.join(format!("{name}.yaml")).display().to_string(),
            ])
            .unwrap();
        kubectl.run(&["create", "namespace", namespace]).unwrap();
        cluster.run("ip", &["address", "add", &format!("{address}/32"), "dev", "lo"]).unwrap();
        let objects = [
            json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": secret, "namespace": namespace},
            }),
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": service, "namespace": namespace},
                "spec": {"clusterIP": address, "ports": [{"port": port}]},
            }),
        ];
        for object in objects {
            kubectl.apply(&object.to_string()).unwrap();
        }
        let run_store = cluster.shared_folder(name).unwrap();
        let pki = cluster.kubeconfig().parent().unwrap().display().to_string();
        let mut arguments: Vec<String> =
            ["--mount", "bash", "-c", START, "bash", &pki].map(ToOwned::to_owned).into();
        arguments.push(run_store.display().to_string());
        arguments.push(folder.join(name).display().to_string());
        arguments.push("--kubeconfig=/tmp/pki/admin.kubeconfig".to_owned());
        arguments.extend(self.arguments.iter().map(|argument| (*argument).to_owned()));
        let program = cluster.start_program(name, "unshare".as_ref(), &arguments).unwrap();
        self.lay_certificates(stage, &run_store).await;
        program
    }

    async fn lay_certificates(&self, stage: &Stage, run_store: &Path) {
        let secrets: Api<Secret> = Api::namespaced(stage.client.clone(), self.namespace);
        let data = async || secrets.get(self.secret).await.unwrap().data.unwrap_or_default();
        until("the webhooks' certificates", async || data().await.contains_key("tls.crt")).await;
        let certificates = run_store.join("k8s-webhook-server/serving-certs");
        fs::create_dir_all(&certificates).unwrap();
        for (name, content) in data().await {
            fs::write(certificates.join(name), content.0).unwrap();
        }
    }

    /// Webhook configuration with a path for each resource.
    fn webhooks(&self, kind: &str, name: &str, hooks: &[(&str, &str, &str)]) -> String {
        let hooks = hooks.iter().map(|(resource, operations, path)| {
            let (group, version) =
                resource.split_once('/').map_or(("", "v1"), |(group, _)| (group, "*"));
            // Only pods of JobSets.
            let expression = json!({"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"});
            let selector = if group.is_empty() {
                json!({"matchExpressions": [expression]})
            } else {
                json!({})
            };
            let plural = resource.rsplit('/').next().unwrap();
            json!({
                "name": format!("{plural}.{}.rljob.dev", self.name),
                "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": "Fail", "objectSelector": selector,
                "clientConfig": {
                    "service": {
                        "name": self.service, "namespace": self.namespace, "port": self.port,
                        "path": path,
                    },
                },
                "rules": [{
                    "apiGroups": [group], "apiVersions": [version],
                    "operations": operations.split(' ').collect::<Vec<_>>(), "resources": [plural],
                }],
            })
        });
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": {"name": name}, "webhooks": hooks.collect::<Vec<_>>(),
        })
        .to_string()
    }
}

/// Installs the webhook configurations of the release manifests.
fn install_webhooks(cluster: &Cluster) {
    let kubectl = cluster.kubectl();
    let jobset = |verb: &str| {
        let (jobsets, pods) =
            (format!("/{verb}-jobset-x-k8s-io-v1alpha2-jobset"), format!("/{verb}--v1-pod"));
        let operations = if verb == "mutate" { "CREATE" } else { "CREATE UPDATE" };
        let kind = if verb == "mutate" {
            "MutatingWebhookConfiguration"
        } else {
            "ValidatingWebhookConfiguration"
        };
        let name = if verb == "mutate" {
            "jobset-mutating-webhook-configuration"
        } else {
            "jobset-validating-webhook-configuration"
        };
        JOBSET.webhooks(
            kind,
            name,
            &[("jobset.x-k8s.io/jobsets", operations, &jobsets), ("pods", "CREATE", &pods)],
        )
    };
    let path = |kind: &str| format!("/validate-trainer-kubeflow-org-v1alpha1-{kind}");
    let (jobs, runtimes) = (path("trainjob"), path("clustertrainingruntime"));
    let trainer = [
        ("trainer.kubeflow.org/trainjobs", "CREATE UPDATE", jobs.as_str()),
        ("trainer.kubeflow.org/clustertrainingruntimes", "CREATE UPDATE", &runtimes),
    ];
    let trainer = TRAINER.webhooks(
        "ValidatingWebhookConfiguration",
        "validator.trainer.kubeflow.org",
        &trainer,
    );
    for webhooks in [jobset("mutate"), jobset("validate"), trainer] {
        kubectl.apply(&webhooks).unwrap();
    }
}

fn runtime() -> String {
    let container = json!({"name": "node", "image": "rljob:bench"});
    let template = json!({
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    });
    json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch-distributed"},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": template}]}},
        },
    })
    .to_string()
}

fn resource(group: &str, version: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

/// Creates all TrainJobs. Returns the seconds until all JobSets and Jobs exist.
async fn create(stage: &Stage, jobs: usize) -> f64 {
    let train_jobs: Api<DynamicObject> = Api::default_namespaced_with(
        stage.client.clone(),
        &resource("trainer.kubeflow.org", "v1alpha1", "TrainJob"),
    );
    let start = Instant::now();
    let create = each_job(jobs, async |name| {
        let spec =
            json!({"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": NODES}});
        let job = json!({
            "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": name}, "spec": spec,
        });
        drop(
            train_jobs
                .create(&PostParams::default(), &serde_json::from_value(job).unwrap())
                .await
                .unwrap(),
        );
    });
    let kinds = [resource("jobset.x-k8s.io", "v1alpha2", "JobSet"), ApiResource::erase::<Job>(&())];
    let ((), seconds) =
        tokio::join!(create, stage.wait_for("all JobSets and Jobs", &kinds, jobs * 2, start));
    stage.wait_for("all pods", &[ApiResource::erase::<Pod>(&())], jobs * NODES, start).await;
    seconds
}

/// Measures and compares with RLJobs.
pub async fn measure(jobs: usize, ours: &Seen) {
    let folder = match run(&mut Command::new(files::workspace().join("tests/kubeflow/build.sh"))) {
        Ok(folder) => folder,
        Err(error) => {
            return skipped(
                "scale-kubeflow",
                &format!("Kubeflow Trainer cannot be built: {error:#}"),
            );
        }
    };
    let folder = Path::new(folder.trim());
    let stage = Stage::start("jobset.sigs.k8s.io/jobset-name").await;
    install_webhooks(&stage.cluster);
    let programs = [TRAINER.start(&stage, folder).await, JOBSET.start(&stage, folder).await];
    let kubectl = stage.cluster.kubectl();
    until("the webhooks", async || kubectl.apply(&runtime()).is_ok()).await;
    let before = programs.each_ref().map(Usage::of);
    let seconds = create(&stage, jobs).await;
    tokio::time::sleep(SETTLE).await;
    let after = programs.each_ref().map(Usage::of);
    let cpu = [0, 1].map(|part| after[part].cpu_seconds - before[part].cpu_seconds);
    let memory = after.map(|usage| usage.memory_mib);
    let figures = format!(
        "{jobs} TrainJobs of {NODES} nodes had their JobSets and Jobs after {seconds:.1} s; \
            Trainer and JobSet took {:.1} and {:.1} s of CPU and {:.1} and {:.1} MiB",
        cpu[0], cpu[1], memory[0], memory[1]
    );
    note("scale-kubeflow", &figures);
    row(
        "scale-kubeflow-time",
        "× the time of TrainJobs to all JobSets and Jobs, for RLJobs to all children",
        ours.seconds / seconds,
        Aim::AtMost(0.5),
    );
    row(
        "scale-kubeflow-memory",
        "× the resident memory of Kubeflow Trainer and JobSet",
        ours.usage.memory_mib / memory.iter().sum::<f64>(),
        Aim::AtMost(0.34),
    );
}
