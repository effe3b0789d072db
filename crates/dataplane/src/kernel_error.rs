//! Errors of kernel calls.

/// Why the kernel did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The object is not there (`ENOENT`, `ESRCH`, `ENODEV`).
    #[error("not found")]
    NotFound,
    /// There is one of that name already (`EEXIST`).
    #[error("it exists already")]
    Exists,
    /// The kernel does not know of such things (`EOPNOTSUPP`).
    #[error("the kernel does not support it")]
    Unsupported,
    /// The interface is down (`ENETDOWN`).
    #[error("the interface is down")]
    LinkDown,
    /// Anything else, in the words of the system.
    #[error("{0}")]
    Failed(String),
}

impl KernelError {
    /// A change of several of which the kernel's answer is missing.
    pub(crate) fn no_answer() -> Self {
        Self::Failed("no outcome was reported".to_owned())
    }
}
