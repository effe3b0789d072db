//! The store in etcd against real clusters.
#![allow(clippy::disallowed_methods, reason = "a test that waits for what other processes do")]

mod cluster;
mod feed;
mod store;

use serde_json::{Value, json};

fn order(order: u32) -> Value {
    json!({"spec": {"order": order}})
}
