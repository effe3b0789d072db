//! The dataplane of a node against a kernel in memory.

mod basics;
mod common;
mod endpoints;
mod faults;
mod random;
mod walk;
mod whole;
