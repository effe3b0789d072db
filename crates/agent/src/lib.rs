//! The Tortie agent: command line, configuration, and everything that touches the world.
#![forbid(unsafe_code)]

pub mod config;
