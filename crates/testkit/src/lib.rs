//! Oracles, mocks and recorded data for tests of the Tortie workspace. Unpublished, and never a dependency outside tests.
//!
//! | module | what it gives |
//! |---|---|
//! | [`evaluator`] | what policies say about a [`packet`], by brute force |
//! | [`golden`] | recorded data, of the crate or of another folder |
//! | [`oracle`] | what a node must enforce, by brute force from the datastore |
//! | [`mock`] | a dataplane on paper that checks every reference and replays the state |
//! | [`walker`] | takes a [`packet`] through chains of typed rules, as the kernel would |
//!
//! Real kernels and servers are in `tortie-lab`.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "the test kit is where tests get their files from")]

pub mod evaluator;
pub mod golden;
pub mod mock;
pub mod oracle;
pub mod packet;
pub mod walker;

/// Keeps the examples of the front page true; here, as it is in no package.
#[cfg(doctest)]
#[allow(rustdoc::invalid_codeblock_attributes, reason = "its fences tell a test of commands what does not run there")]
#[doc = include_str!("../../../README.md")]
struct FrontPage;

/// Keeps the examples of the page on libraries true.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/book/src/library.md")]
struct LibraryPage;
