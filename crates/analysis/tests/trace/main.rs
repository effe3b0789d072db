//! Connections of whole clusters, asked one by one.

mod classes;
mod conformance;
mod places;
