//! Service accounts: kubeconfigs with their tokens, and the program that a Deployment runs.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::Cluster;

/// Writes a kubeconfig with a token of a service account, given by namespace and name, and returns
/// its path, which ends with the text `file`. `server` replaces the address of the API server.
pub fn kubeconfig(
    cluster: &Cluster,
    (namespace, account): (&str, &str),
    file: &str,
    server: Option<&str>,
) -> Result<String> {
    let kubectl = cluster.kubectl().in_namespace(namespace);
    let token = kubectl.run(&["create", "token", account, "--duration=1h"])?;
    let admin = cluster.kubeconfig();
    let mut config: Value = serde_json::from_str(&fs::read_to_string(admin)?)?;
    config["users"][0]["user"] = json!({"token": token.trim()});
    if let Some(server) = server {
        config["clusters"][0]["cluster"] = json!({"server": server});
    }
    config["contexts"][0]["context"]["namespace"] = json!(namespace);
    let path = admin.with_file_name(format!("{account}-{file}.kubeconfig"));
    fs::write(&path, config.to_string())?;
    Ok(path.display().to_string())
}

/// Kubeconfig of the program that a Deployment in this namespace runs, and its arguments without
/// that of its listener.
pub fn deployed_program(
    cluster: &Cluster,
    namespace: &str,
    deployment: &str,
) -> Result<(String, Vec<String>)> {
    let kubectl = cluster.kubectl().in_namespace(namespace);
    let deployment = kubectl.get(&[&format!("deployment/{deployment}")])?;
    let pod = &deployment["spec"]["template"]["spec"];
    let account = pod["serviceAccountName"].as_str().context("the pod has no account")?;
    let config = kubeconfig(cluster, (namespace, account), namespace, None)?;
    let command = pod["containers"][0]["command"].as_array().context("it has no command")?;
    let arguments = command.iter().skip(1).filter_map(Value::as_str);
    let arguments = arguments.filter(|argument| !argument.starts_with("--listen="));
    Ok((config, arguments.map(ToOwned::to_owned).collect()))
}
