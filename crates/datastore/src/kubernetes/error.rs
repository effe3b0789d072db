//! What can go wrong.

use std::path::PathBuf;
use std::time::Duration;

use kube::client::AuthError;
use tortie_model::{Cause, with_causes};

/// What is wrong with a configuration. No variant has a secret in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KubeConfigError {
    /// What follows `kubernetes:` is none of `[KUBECONFIG][?context=NAME]` and `in-cluster`.
    #[error("`{0}` is not known after `?`; `context=NAME` is")]
    Option(String),
    /// No configuration was named, and none is where one is looked for.
    #[error("no kubeconfig: $KUBECONFIG is not set, this is no pod, and there is no ~/.kube/config")]
    None,
    /// A kubeconfig cannot be used.
    #[error("kubeconfig {}: {why}", .file.display())]
    File {
        /// Which one.
        file: PathBuf,
        /// Why.
        why: String,
    },
    /// What a pod finds in its environment and file system cannot be used.
    #[error("the in-cluster configuration cannot be used")]
    InCluster(#[source] Cause),
    /// The system has no means to read it.
    #[error("the configuration cannot be read, as no runtime can be started")]
    Runtime(#[source] Cause),
    /// Certificates, keys or tokens cannot be used.
    #[error("credentials: {0}")]
    Credentials(String),
}

/// Why the API server did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The configuration cannot be used, or no longer.
    #[error(transparent)]
    Config(#[from] KubeConfigError),
    /// There is no connection, or it broke.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// There was no answer, or no more of it, for this long.
    #[error("the API server was silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// It refused; the fields are those of `Status` of `meta/v1`.
    #[error("{message} ({code} {reason})")]
    Status {
        /// The HTTP status.
        code: u16,
        /// One word, such as `Conflict`.
        reason: String,
        /// For people.
        message: String,
        /// When to ask again at the earliest.
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
    /// The answer, or one object in it, is larger than anything that could be meant.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The answer is not what was asked for.
    #[error("the answer makes no sense")]
    Malformed(#[source] Cause),
}

impl ApiError {
    /// The HTTP status; `None` if there was no answer.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether there is no such object, or no such kind.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether the object has changed since the version that the request was made from.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Status { code: 409, reason, .. } if reason != "AlreadyExists")
    }

    /// Whether an object of this name is there already.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Status { code: 409, reason, .. } if reason == "AlreadyExists")
    }

    /// Whether roles do not allow it.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Whether the version that was asked for is no longer, or not yet, to be had.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        match self {
            Self::Status { code, reason, message, .. } => {
                *code == 410
                    || reason == "Expired"
                    || reason == "Gone"
                    // The server has gone back behind what it told before; older ones say so by the message alone.
                    || *code == 504 && message.contains("Too large resource version")
            }
            _ => false,
        }
    }

    /// Whether the answer stays the same until somebody changes a configuration, credentials or rights.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Status { code: 401 | 403, .. })
    }

    /// When to ask again at the earliest, as the server wishes.
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
        // The error's own text would show the plugin's arguments and environment.
        kube::Error::Auth(AuthError::AuthExecRun { out, .. }) => {
            format!("the credential plugin failed: {}", out.status)
        }
        kube::Error::Auth(AuthError::AuthExecParse(_)) => {
            "the credential plugin printed something that is not understood".into()
        }
        _ => with_causes(error),
    }
}
