//! Random histories. For any order of updates and any times of flushes, the dataplane ends up with
//! the result of a slow, simple calculation from the current datastore. No state is left when all
//! objects are deleted.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod computed;
mod generate;
mod histories;
mod json;
mod kinds;
mod overlay_oracle;
mod overlays;
mod passed;
mod verdicts;
