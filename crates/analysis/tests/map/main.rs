//! Pictures of whole clusters.

mod conformance;
mod pictures;
