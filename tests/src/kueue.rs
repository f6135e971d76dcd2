//! The real Kueue on the nodes of a cluster, installed by its own Helm chart: permissions, webhooks
//! and certificates are those of a user's installation.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::process::wait_until;
use crate::{Cluster, Helm, files, image};

/// Namespace of the installation.
const NAMESPACE: &str = "kueue-system";
const IMAGE: &str = "rljob.local/kueue";
const START_LIMIT: Duration = Duration::from_secs(180);

/// Queues RLJobs, and everything else outside the namespaces of the system: Pods and StatefulSets
/// that belong to no queued RLJob would wait for a queue. Kueue renews its certificates itself.
const CONFIGURATION: &str = r#"
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health: {healthProbeBindAddress: ":8081"}
metrics: {bindAddress: ":8443"}
webhook: {port: 9443}
leaderElection: {leaderElect: true, resourceName: c1f6bfd2.kueue.x-k8s.io}
manageJobsWithoutQueueName: true
managedJobsNamespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: NotIn
      values: [kube-system, kueue-system, rljob-system]
integrations:
  frameworks: [batch/job, pod, deployment, statefulset]
  externalFrameworks: [RLJob.v1alpha1.rljob.dev]
"#;

/// Installs Kueue and waits until its webhooks answer.
pub fn install(cluster: &Cluster) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("root");
    fs::create_dir_all(&root)?;
    let program = files::kueue()?;
    fs::copy(&program, root.join("manager")).context("failed to copy Kueue")?;
    let config = json!({"Entrypoint": ["/manager"], "User": "65532:65532"});
    let reference = format!("{IMAGE}:test");
    cluster.import(&image::build(&reference, &root, &config, folder.path())?)?;

    let image = json!({"repository": IMAGE, "tag": "test", "pullPolicy": "Never"});
    let requests = json!({"requests": {"cpu": "50m", "memory": "64Mi"}});
    let probe = json!({"initialDelaySeconds": 1, "periodSeconds": 1});
    let values = json!({
        "controllerManager": {
            "manager": {"image": image, "resources": requests}, "readinessProbe": probe,
        },
        "managerConfig": {"controllerManagerConfigYaml": CONFIGURATION},
    });
    let helm = Helm::new(cluster.kubeconfig(), NAMESPACE)?;
    let chart = program.with_file_name("chart").display().to_string();
    let install = ["install", "kueue", &chart, "--create-namespace", "--values=-"];
    helm.run_with_input(&install, &values.to_string())?;
    let kubectl = cluster.kubectl();
    let flavor = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor",
        "metadata": {"name": "probe"},
    });
    let create = ["create", "--dry-run=server", "--filename=-"];
    wait_until("the webhooks of Kueue", START_LIMIT, || {
        kubectl.run_with_input(&create, &flavor.to_string()).map(|_| true)
    })
    .with_context(|| crate::namespace::report(&kubectl.in_namespace(NAMESPACE)))
}
