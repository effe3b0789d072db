//! Changes of whole clusters.

mod budget;
mod claims;
mod conformance;
mod domains;
mod forwarded;
