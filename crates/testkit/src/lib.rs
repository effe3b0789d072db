//! Oracles, mocks and recorded data for tests of the Tortie workspace. This crate is not published,
//! and only tests depend on it.
//!
//! | module | contents |
//! |---|---|
//! | [`evaluator`] | brute-force policy verdicts for a [`packet`] |
//! | [`golden`] | recorded data, of the crate or of another folder |
//! | [`oracle`] | brute-force desired state of a node from the datastore |
//! | [`mock`] | a mock dataplane that checks references and replays the state |
//! | [`walker`] | evaluates chains of typed rules for a [`packet`], as the kernel would |
//!
//! Real kernels and servers are in `tortie-lab`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "the test kit reads files for tests")]

pub mod evaluator;
pub mod golden;
pub mod mock;
pub mod oracle;
pub mod packet;
pub mod walker;

/// Compiles the examples of the front page; here, because the page belongs to no package.
#[cfg(doctest)]
#[allow(rustdoc::invalid_codeblock_attributes, reason = "its code fences mark commands that a test must skip")]
#[doc = include_str!("../../../README.md")]
struct FrontPage;

/// Compiles the examples of the page on libraries.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/src/library.md")]
struct LibraryPage;
