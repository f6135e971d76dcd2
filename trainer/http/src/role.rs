//! Roles of a job in its certificates.

/// Holder of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The operator or `rljob run`.
    Operator,
    Coordinator,
    /// Supervisors and learners.
    Trainer,
    /// Engines.
    Inference,
    /// Verifier pods.
    Verifier,
}

impl Role {
    pub const ALL: [Self; 5] =
        [Self::Operator, Self::Coordinator, Self::Trainer, Self::Inference, Self::Verifier];

    /// Name of the role.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Coordinator => "coordinator",
            Self::Trainer => "trainer",
            Self::Inference => "inference",
            Self::Verifier => "verifier",
        }
    }

    /// Name in the certificate of this role of the job with this UID. It is not resolved.
    pub fn server_name(self, uid: &str) -> String {
        format!("{}.{uid}.rljob", self.as_str())
    }

    /// File of the role's certificate and key, in the folder of tokens.
    pub fn file(self) -> &'static str {
        match self {
            Self::Operator => "tls-operator.pem",
            Self::Coordinator => "tls-coordinator.pem",
            Self::Trainer => "tls-trainer.pem",
            Self::Inference => "tls-inference.pem",
            Self::Verifier => "tls-verifier.pem",
        }
    }
}
