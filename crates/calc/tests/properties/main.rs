//! Random histories: whatever the order of updates and the points of flushing, the dataplane ends up with what a slow,
//! obvious calculation from the current datastore says, and nothing is left when everything is deleted.
#![allow(clippy::unwrap_used, reason = "a test may stop at what cannot be")]

mod computed;
mod generate;
mod histories;
mod json;
mod kinds;
mod overlay_oracle;
mod overlays;
mod passed;
mod verdicts;
