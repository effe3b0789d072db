//! Shared parts of tests, and a measurement.

pub(super) mod fixture;
mod measured;
