//! Errors of the system with the object that they are about.

use std::io;

/// An error of the system, with the object that it is about.
#[derive(Debug, thiserror::Error)]
#[error("{place}")]
struct Placed {
    place: String,
    #[source]
    error: io::Error,
}

/// Adds an object to an error, which keeps its kind.
pub(crate) fn placed(place: impl Into<String>) -> impl FnOnce(io::Error) -> io::Error {
    let place = place.into();
    |error| io::Error::new(error.kind(), Placed { place, error })
}
