//! Errors of the system with the place that they are about.

use std::io;

/// An error of the system. It shows the error itself, as users of an [`io::Error`] print it alone.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {error}")]
struct Placed {
    place: String,
    error: io::Error,
}

/// Adds a place to an error, which keeps its kind.
pub(crate) fn placed(place: impl Into<String>) -> impl FnOnce(io::Error) -> io::Error {
    let place = place.into();
    |error| io::Error::new(error.kind(), Placed { place, error })
}
