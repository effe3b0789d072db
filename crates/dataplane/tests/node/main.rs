//! The dataplane of a node against a kernel in memory.

mod basics;
mod common;
mod endpoints;
mod random;
mod walk;
