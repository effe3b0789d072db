//! Single connections of whole clusters.

mod classes;
mod conformance;
mod endpoints;
