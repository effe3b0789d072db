//! The source and the store in etcd against real clusters.
#![allow(clippy::disallowed_methods, reason = "a test that waits for other processes")]

mod cluster;
mod feed;
mod source;
mod store;
mod suite;
#[path = "../support/syncer_reader.rs"]
mod syncer_reader;
mod syncers;

use serde_json::{Value, json};

fn order(order: u32) -> Value {
    json!({"spec": {"order": order}})
}
