//! Errors of kernel calls.

use tortie_model::Cause;

/// An error of a kernel call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The object is missing (`ENOENT`, `ESRCH`, `ENODEV`).
    #[error("not found")]
    NotFound,
    /// An object of that name exists already (`EEXIST`).
    #[error("it exists already")]
    Exists,
    /// The kernel does not support the operation (`EOPNOTSUPP`).
    #[error("the kernel does not support it")]
    Unsupported,
    /// The interface is down (`ENETDOWN`).
    #[error("the interface is down")]
    LinkDown,
    /// Any other error, from the system or as a text.
    #[error(transparent)]
    Failed(Cause),
}

impl KernelError {
    /// Returns the error of a change whose outcome is missing.
    pub(crate) fn no_answer() -> Self {
        Self::Failed("no outcome was reported".into())
    }
}
