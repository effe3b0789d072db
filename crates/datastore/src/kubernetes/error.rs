//! Errors of configuration and requests.

use std::path::PathBuf;
use std::time::Duration;

use kube::client::AuthError;
use tortie_model::{Cause, with_causes};

use super::resource::ApiResource;

/// Error in a configuration. No variant contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KubeConfigError {
    /// The text after `kubernetes:` is none of `[KUBECONFIG][?context=NAME]` and `in-cluster`.
    #[error("`{0}` is not known after `?`; `context=NAME` is")]
    Option(String),
    /// No configuration was named, and none exists in the default places.
    #[error("no kubeconfig: $KUBECONFIG is not set, this is no pod, and there is no ~/.kube/config")]
    None,
    /// A kubeconfig cannot be used.
    #[error("kubeconfig {}: {why}", .file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// The environment or files of a pod cannot be used.
    #[error("the in-cluster configuration cannot be used")]
    InCluster(#[source] Cause),
    /// No runtime for reading the configuration can be started.
    #[error("the configuration cannot be read, as no runtime can be started")]
    Runtime(#[source] Cause),
    /// Certificates, keys or tokens cannot be used.
    #[error("credentials: {0}")]
    Credentials(String),
}

/// Reason why a request to the API server failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The configuration cannot be used, or not any more.
    #[error(transparent)]
    Config(#[from] KubeConfigError),
    /// There is no connection, or it broke.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// There was no response, or no further part of it, for this long.
    #[error("the API server was silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// The server refused; the fields are those of `Status` of `meta/v1`.
    #[error("{message} ({code} {reason})")]
    Status {
        /// The HTTP status.
        code: u16,
        /// One word, such as `Conflict`.
        reason: String,
        /// Message for people.
        message: String,
        /// Minimum wait before the next attempt.
        retry_after: Option<Duration>,
    },
    /// The server has a kind only in versions that are not read.
    #[error("the API server has {kind} in version {} only; version {supported} is supported", served.join(", "))]
    OtherVersions {
        /// The kind, as `clusternetworkpolicies.policy.networking.k8s.io`.
        kind: String,
        /// The versions that the server has.
        served: Vec<String>,
        /// The version that is read.
        supported: &'static str,
    },
    /// The server has Calico's kinds by two APIs, and this client may not read which one counts.
    #[error(
        "the API server has Calico's resources by two APIs; without the right to list {unreadable} it is unclear \
         which of them counts: grant it, or set CALICO_API_GROUP to crd.projectcalico.org/v1 or projectcalico.org/v3"
    )]
    UnclearApi {
        /// The unreadable kind.
        unreadable: ApiResource,
    },
    /// The response, or one object in it, is larger than the limit.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The response does not match the request.
    #[error("the answer makes no sense")]
    Malformed(#[source] Cause),
}

impl ApiError {
    /// Returns the HTTP status; `None` if there was no response.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Reports whether the object or its kind does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Reports whether the object has changed since the version that the request was based on.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Status { code: 409, reason, .. } if reason != "AlreadyExists")
    }

    /// Reports whether an object of this name exists already.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Status { code: 409, reason, .. } if reason == "AlreadyExists")
    }

    /// Reports whether RBAC does not permit the request.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Reports whether the requested version has expired, or the server has not reached it yet.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        match self {
            Self::Status { code, reason, message, .. } => {
                *code == 410
                    || reason == "Expired"
                    || reason == "Gone"
                    // The server is behind a version that it sent earlier; older releases report
                    // this by the message alone.
                    || *code == 504 && message.contains("Too large resource version")
            }
            _ => false,
        }
    }

    /// Reports whether the request will be refused until the configuration, credentials or
    /// permissions change.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Config(_) | Self::UnclearApi { .. } | Self::Status { code: 401 | 403, .. })
    }

    /// Returns the minimum wait before the next attempt, as requested by the server.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Returns the text of an error and of its causes, without the output of a credential plugin.
pub(super) fn describe(error: &kube::Error) -> String {
    match error {
        // The error's own text would contain the plugin's arguments and environment.
        kube::Error::Auth(AuthError::AuthExecRun { out, .. }) => {
            format!("the credential plugin failed: {}", out.status)
        }
        kube::Error::Auth(AuthError::AuthExecParse(_)) => {
            "the credential plugin printed something that is not understood".into()
        }
        _ => with_causes(error),
    }
}
