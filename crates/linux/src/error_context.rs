//! Errors of the system with the object that they are about.

use std::io;

/// An error of the system, with the object that it is about.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
struct WithContext {
    context: String,
    #[source]
    error: io::Error,
}

/// Adds an object to an error, which keeps its kind.
pub(crate) fn with_context(context: impl Into<String>) -> impl FnOnce(io::Error) -> io::Error {
    let context = context.into();
    |error| io::Error::new(error.kind(), WithContext { context, error })
}
