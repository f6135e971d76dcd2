//! Certificates and kubeconfigs of a test cluster, created with openssl; valid for 30 days.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use crate::process::run;

/// A certificate authority whose files are in a folder.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
}

/// A certificate and its private key.
#[derive(Debug)]
pub struct Identity {
    /// PEM certificate.
    pub certificate: PathBuf,
    /// PEM private key.
    pub key: PathBuf,
}

impl Authority {
    /// Creates an authority and a key that signs service account tokens.
    pub fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)
            .with_context(|| format!("failed to create {}", folder.display()))?;
        // openssl's default configuration marks every certificate as a CA.
        fs::write(folder.join("openssl.cnf"), "[req]\ndistinguished_name = name\n[name]\n")?;
        let authority = Self { folder: folder.to_path_buf() };
        authority.request(
            "ca",
            "/CN=rljob-test-ca",
            &["basicConstraints=critical,CA:TRUE"],
            false,
        )?;
        let signing = authority.signing_key();
        run(Command::new("openssl")
            .args(["ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out"])
            .arg(signing))?;
        Ok(authority)
    }

    /// Path of the CA certificate.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Path of the key that signs service account tokens.
    pub fn signing_key(&self) -> PathBuf {
        self.folder.join("service-accounts.key")
    }

    /// Issues a certificate. `subject` is `/O=group/CN=user`; `names` are subject alternative
    /// names, `IP:…` or `DNS:…`.
    pub fn issue(&self, name: &str, subject: &str, names: &str) -> Result<Identity> {
        let alternative = format!("subjectAltName={names}");
        self.request(
            name,
            subject,
            &[
                &alternative,
                "extendedKeyUsage=serverAuth,clientAuth",
                "basicConstraints=critical,CA:FALSE",
            ],
            true,
        )
    }

    /// Writes a kubeconfig for a new identity and returns its path.
    pub fn kubeconfig(&self, name: &str, subject: &str, server: Ipv4Addr) -> Result<PathBuf> {
        let identity = self.issue(name, subject, &format!("DNS:{name}"))?;
        let path = self.folder.join(format!("{name}.kubeconfig"));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "test",
                "cluster": {
                    "server": format!("https://{server}:443"),
                    "certificate-authority": self.certificate(),
                },
            }],
            "users": [{
                "name": name,
                "user": {"client-certificate": identity.certificate, "client-key": identity.key},
            }],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        });
        fs::write(&path, config.to_string())?;
        Ok(path)
    }

    fn request(
        &self,
        name: &str,
        subject: &str,
        extensions: &[&str],
        signed: bool,
    ) -> Result<Identity> {
        let identity = Identity {
            certificate: self.folder.join(format!("{name}.crt")),
            key: self.folder.join(format!("{name}.key")),
        };
        let mut command = Command::new("openssl");
        command.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "30",
            "-subj",
            subject,
        ]);
        command.arg("-config").arg(self.folder.join("openssl.cnf"));
        command.arg("-out").arg(&identity.certificate).arg("-keyout").arg(&identity.key);
        if signed {
            command
                .arg("-CA")
                .arg(self.certificate())
                .arg("-CAkey")
                .arg(self.folder.join("ca.key"));
        }
        for extension in extensions {
            command.args(["-addext", extension]);
        }
        run(&mut command)?;
        Ok(identity)
    }
}
