//! The part of the automation that tests of other packages use as well: [`package`] makes packages and images of an agent that is
//! already built.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "automation runs programs and reads files")]

pub mod package;
#[expect(clippy::missing_errors_doc, reason = "what fails is that a program does, everywhere")]
pub mod shell;
