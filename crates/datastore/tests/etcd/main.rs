//! The etcd source against real clusters.
#![allow(clippy::disallowed_methods, reason = "a test that waits for what other processes do")]

#[path = "../../../store/tests/etcd/cluster.rs"]
mod cluster;
mod source;
mod suite;
#[path = "../support/syncer_reader.rs"]
mod syncer_reader;
mod syncers;
