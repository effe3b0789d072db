//! Test support for the Tortie workspace (unpublished).
#![forbid(unsafe_code)]
