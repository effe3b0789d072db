//! The part of the automation that tests of other packages use as well: [`package`] makes packages
//! and images of an agent that is already built.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "automation runs programs and reads files")]

pub mod files;
pub mod package;
pub mod shell;
